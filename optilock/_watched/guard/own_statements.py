"""Rows that a statement of the transaction itself has moved, and objects that did not follow.

::

    post = session.get_one(Post, 1)                                  # version 1
    session.execute(upsert_that_counts(post_id=1))                   # version 2, and post has 1
    post.title = "New"                                               # the flush finds version 2

The row has missed, and no other transaction was there: each run of the unit would end so. The
database knows this: outside of the transaction the row is still as it was read. That is asked when
a row has missed, where statements of the transaction may have written its table. It needs a
connection of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql import visitors

from optilock._mapped import facts
from optilock._watched.rows.entries import Missed, has_moved
from optilock._watched.rows.stored import read_stored
from optilock._watched.session.connections import engine_to_write, separate_connection
from optilock._watched.session.record import record_of
from optilock._watched.statements.refusals import inner_writes_of, tables_set_by
from optilock._watched.statements.sql_text import sql_of, tables_touched
from optilock.dialects.transient import is_transient
from optilock.errors import ConcurrencyError, MovedByOwnStatement


def told_as_own(session: Session, misses: Iterable[Missed], error: Exception) -> Exception:
    """Return the error of a flush; of the rows alone that its own statements moved, if any did."""
    statements = record_of(session).own_statements
    if not statements or type(error) is not ConcurrencyError:
        return error
    by_mapper: dict[Mapper[Any], list[Missed]] = {}
    for missed in misses:
        by_mapper.setdefault(missed.state.mapper, []).append(missed)
    own = [
        missed
        for mapper, some in by_mapper.items()
        if any(_may_write(statement, mapper) for statement in statements)
        for missed in _moved_here_alone(session, mapper, some)
    ]
    if not own:
        return error
    told = MovedByOwnStatement(missed.entry for missed in own)
    told.__cause__ = error.__cause__
    return told


def _may_write(statement: Any, mapper: Mapper[Any]) -> bool:
    """Return whether it may have written rows of the class."""
    tables = [one for member in facts(mapper).root.self_and_descendants for one in member.tables]
    if isinstance(statement, str):
        names = {one.name.lower() for one in tables if isinstance(one, sa.Table)}
        return bool(tables_touched(statement, names))
    if (sql := sql_of(statement)) is not None:
        return _may_write(sql, mapper)
    if isinstance(statement, (sa.Update, sa.Delete, sa.Insert)):
        written = {*visitors.iterate(statement.table)}
        if isinstance(statement, sa.Update):
            written.update(tables_set_by(statement))
        if not written.isdisjoint(tables):
            return True
    return any(_may_write(one, mapper) for one in inner_writes_of(statement))


def _moved_here_alone(session: Session, mapper: Mapper[Any], some: list[Missed]) -> list[Missed]:
    """Return those whose rows are still as they were read, outside of the transaction."""
    identities = [missed.attempt.identity for missed in some]
    try:
        with separate_connection(engine_to_write(session, mapper)) as connection:
            stored = read_stored(connection, mapper, identities, lock=False)
    except DBAPIError as error:  # a database in memory is the connection's alone
        return [] if is_transient(error) else some
    return [missed for missed in some if _is_alone(missed, stored.get(missed.attempt.identity))]


def _is_alone(missed: Missed, committed: Any) -> bool:
    if committed is None:
        return missed.stored is not None  # a row that no other transaction can see
    return not has_moved(missed.attempt, committed)
