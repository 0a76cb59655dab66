"""Statements that write all of their rows, or raise an error and write none.

COMMIT goes behind the last writes before anybody has seen how many rows they matched. So the server
must judge: after an error it skips what follows. SQL has no statement that raises one, but a text
that is no number cannot be cast to one, and an error of that kind (22P02) says the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Integer, bindparam, case, cast, func, literal_column, select, update

from optilock.conditions.write import Params, Shape, Write

#: What the error says. PostgreSQL writes it into its log as well.
MARK = "optilock: rows were changed or deleted by others, so nothing was written"
_NOT_A_NUMBER = "22P02"

#: A parameter that is called as a column would be taken for a new value of that column.
_OWN = "optilock_"


def all_or_error(written: Any, expected: Any) -> Any:
    """The statement around a change with RETURNING: as many rows as ``expected``, or an error."""
    count = select(func.count()).select_from(written).scalar_subquery()
    judged = case((count == expected, literal_column("'0'")), else_=literal_column(f"'{MARK}'"))
    return select(cast(judged, Integer))


def is_mark(error: BaseException) -> bool:
    """Is it the error of such a statement?"""
    return getattr(error, "sqlstate", None) == _NOT_A_NUMBER and MARK in str(error)


class _OneRow(NamedTuple):
    statement: Any
    #: Its parameters, by those of the write.
    names: Mapping[str, str]


def one_or_error(write: Write) -> tuple[Any, Params]:
    """The statement for a single row of a plain shape, and its parameters."""
    shape, params = write
    known: _OneRow | None = shape.forms.get("or_error")
    if known is None:
        known = shape.forms["or_error"] = _one_row(shape)
    return known.statement, {ours: params[theirs] for theirs, ours in known.names.items()}


def _one_row(shape: Shape) -> _OneRow:
    names: dict[str, str] = {}

    def given(name: str, kind: Any) -> Any:
        ours = names.setdefault(name, f"{_OWN}{len(names)}")
        return bindparam(ours, type_=kind)

    where = [
        one.column == given(one.parameter, one.column.type) for one in (*shape.keys, *shape.matches)
    ]
    values = {column: given(name, column.type) for name, column in shape.all_sets().items()}
    change = update(shape.table).where(*where).values(values)
    written = change.returning(literal_column("1").label("one")).cte("optilock_written")
    return _OneRow(all_or_error(written, literal_column("1")), names)
