"""Rows as names: ``(Page, 7)``, or the stored object, in the place of ``"pages/7"``.

::

    class Page(Shared, Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)

    handle = shares.open(session, page, "RW", share="R")

The name is the table's and the key, as they are stored. To open a row locks it first, and so waits
for the COMMIT of whoever is writing it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, String, Table, cast, inspect, literal, select
from sqlalchemy.orm import InstanceState, Mapper, Session

from optilock.dialects import database_of
from optilock.dialects.rows import native, with_hint
from optilock.errors import ConfigurationError, described
from optilock.http.errors import NotFound
from optilock.http.identities import identity_given
from optilock.mapped import facts, identity_of
from optilock.preconditions.values import refuse_impossible_key
from optilock.session.connections import connection_to_write, session_given
from optilock.shares.locked import Row, Shares, checked

__all__ = ["name_and_row", "name_in_sql", "shares_of"]


def shares_of(mapper: Mapper[Any]) -> Shares | None:
    """What the class says of its rows' handles, if it has the mixin."""
    found: Shares | None = getattr(mapper.class_, "__shares__", None)
    return found


def name_in_sql(mapper: Mapper[Any]) -> ColumnElement[str]:
    """The name of a row, as the database says it."""
    table: Any = facts(mapper).root.local_table
    name: ColumnElement[Any] = literal(f"{table.name}/", String)
    for number, column in enumerate(facts(mapper).root.primary_key):
        if number:
            name = name + literal(",", String)
        name = name + (column if isinstance(column.type, String) else cast(column, String))
    return name


def name_and_row(
    session: Session, given: Any, call: str, *, lock: bool = False
) -> tuple[str, Row | None]:
    """The name that was given, and the row that it stands for, if it is one.

    Raises:
        ConfigurationError: it is neither a name nor a row of a class with the mixin.
        NotFound: there is no such row.
    """
    if isinstance(given, str):
        return checked(given), None
    mapper, identity = _row_given(given, call)
    session = session_given(session, call, f"await optilock.asyncio.shares.{call}(...)")
    refuse_impossible_key(session, mapper, identity)
    connection = connection_to_write(session, mapper)
    keys = facts(mapper).root.primary_key
    query = select(name_in_sql(mapper), *keys).where(
        *(key == value for key, value in zip(keys, identity, strict=True))
    )
    if lock:
        database, table = database_of(connection.dialect), facts(mapper).root.local_table
        assert isinstance(table, Table)
        database.begin_writing(connection, table)
        locked = partial(database.lock, query, table, deleting=False)
        found = with_hint(database, table, lambda: native(connection, locked()).first())
    else:
        found = native(connection, query).first()
    if found is None:
        raise NotFound(mapper.class_, identity)
    return checked(found[0]), (mapper, tuple(found[1:]))


def _row_given(given: Any, call: str) -> Row:
    if isinstance(given, tuple) and len(given) == 2:
        mapper = inspect(given[0], raiseerr=False)
        if isinstance(mapper, Mapper) and shares_of(mapper):
            return mapper, tuple(identity_given(f"shares.{call}", mapper, given[1]))
    state = inspect(given, raiseerr=False)
    if isinstance(state, InstanceState) and state.key and shares_of(state.mapper):
        return state.mapper, identity_of(state)
    raise ConfigurationError(
        f"shares.{call}() takes a name, a stored object of a class with the mixin Shared, or"
        f" (Model, key), not {described(given)}. A name is a text of 1 to 200 characters. Nothing"
        " was sent."
    )
