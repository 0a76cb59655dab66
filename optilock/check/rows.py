"""What is asked of the rows: has each a version, and are random ones different?

A table is read only where it can have some: not for NULL in a column that is NOT NULL. Many tables
are read in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    CompoundSelect,
    Connection,
    ScalarSelect,
    Uuid,
    func,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.exc import DBAPIError

from optilock.check.findings import Finding, error, unreadable, warning
from optilock.check.subjects import Seen

#: Counts that one statement takes (SQLite: 500 at most).
_AT_ONCE = 100


class _Question(NamedTuple):
    """A number of rows that should be 0, and what it means if it is not."""

    name: str
    number: ScalarSelect[int]
    finding: Callable[[int], Finding]


def check_rows(connection: Connection, seen: Iterable[Seen]) -> Iterator[Finding]:
    """Count the rows that should not be there."""
    asked = [question for one in seen for question in _questions(one)]
    for start in range(0, len(asked), _AT_ONCE):
        yield from _answered(connection, asked[start : start + _AT_ONCE])


def _questions(seen: Seen) -> Iterator[_Question]:
    if seen.version is None:
        return  # the table's check says so
    name, token, column = seen.version
    if column.nullable:
        yield _Question(name, _missing(token), lambda number: _null_versions(seen, name, number))
    if isinstance(token.type, Uuid):
        yield _Question(name, _repeated(token), lambda number: _repeated_versions(name, number))


def _answered(connection: Connection, asked: list[_Question]) -> Iterator[Finding]:
    if not asked:
        return
    counts: CompoundSelect[Any] = union_all(
        *(select(literal_column(str(n)), question.number) for n, question in enumerate(asked))
    )
    try:
        answers = connection.execute(counts).all()
    except DBAPIError as refusal:
        connection.rollback()
        if len(asked) == 1:
            yield unreadable(asked[0].name, refusal)
            return
        for question in asked:
            yield from _answered(connection, [question])
        return
    for n, number in answers:
        if number:
            yield asked[n].finding(number)


def _missing(token: Column[Any]) -> ScalarSelect[int]:
    rows = select(func.count()).select_from(token.table).where(token.is_(None))
    return rows.scalar_subquery()


def _repeated(token: Column[Any]) -> ScalarSelect[int]:
    groups = select(token).where(token.is_not(None)).group_by(token).having(func.count() > 1)
    return select(func.count()).select_from(groups.subquery()).scalar_subquery()


def _null_versions(seen: Seen, name: str, number: int) -> Finding:
    rows = "1 row has" if number == 1 else f"{number} rows have"
    return error(
        "null-versions",
        name,
        f"{rows} no version: writing one of them is refused.",
        f"{seen.subject.roll_out}: it fills them beside the writers.",
    )


def _repeated_versions(name: str, number: int) -> Finding:
    return warning(
        "repeated-versions",
        name,
        f"{number} random versions are carried by more than one row: something copies them.",
        "Look for INSERT … SELECT and for rows that are cloned with their version.",
    )
