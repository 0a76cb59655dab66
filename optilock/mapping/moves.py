"""Does the version that the database makes really move?

A ``RowVersion`` moves by a trigger. Where the trigger is missing every write would pass, and every
lost update too; so each UPDATE's version is compared with the one before it, which costs nothing:
both are here.

SQLite's RETURNING shows the row before the trigger changed it
(https://sqlite.org/lang_returning.html, "Limitations And Caveats"), so there the version is read
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, event, select
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.state import InstanceState

from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.mapped.facts import facts
from optilock.mapping.makers import any_changed
from optilock.session.connections import connection_to_write
from optilock.tokens import Token

__all__ = ["does_not_move", "require_moves"]

_BEFORE = "optilock_version_before"
#: Equal to no version.
_MISSED = object()


def require_moves(mapper: Mapper[Any], column: Column[Any], token: Token) -> None:
    """Read the version of ``mapper``'s rows as the trigger leaves it; refuse one that stays."""
    key = facts(mapper).names[column]
    if token.is_system:

        def before_insert(mapper: Mapper[Any], connection: Any, state: InstanceState[Any]) -> None:
            state.dict.pop(key, None)  # of the row that the object stood for before

        event.listen(mapper, "before_insert", before_insert, raw=True)
        return
    names = {p.key for p in mapper.iterate_properties if hasattr(p, "columns")} - {key}

    def before_update(mapper: Mapper[Any], connection: Any, state: InstanceState[Any]) -> None:
        loaded = state.manager[key].impl.get(state, state.dict)
        state.info[_BEFORE] = state.committed_state.get(key, loaded)

    def refresh_flush(state: InstanceState[Any], uow: Any, attributes: Iterable[str]) -> None:
        if key in attributes:
            _read_again(state, uow.session, column, key)

    def after_update(mapper: Mapper[Any], connection: Any, state: InstanceState[Any]) -> None:
        before = state.info.pop(_BEFORE, _MISSED)
        if state.dict.get(key) == before and any_changed(state, names):
            raise _does_not_move(mapper, column, key)

    event.listen(mapper, "before_update", before_update, raw=True)
    event.listen(mapper, "after_update", after_update, raw=True)
    event.listen(mapper.class_, "refresh_flush", refresh_flush, raw=True)


def does_not_move(state: InstanceState[Any]) -> None:
    """The row was found to be another one than was read: nothing is written for the object."""
    state.info.pop(_BEFORE, None)


def _read_again(state: InstanceState[Any], session: Any, column: Column[Any], key: str) -> None:
    """After an UPDATE on SQLite; an INSERT's RETURNING is right."""
    mapper = state.mapper
    connection = connection_to_write(session, mapper)
    if not database_of(connection.dialect).returns_before_triggers:
        return
    identity = mapper.identity_key_from_instance(state.obj())
    if state.key is None and identity not in session.identity_map:  # otherwise a row switch
        return
    keys = tuple(column.table.primary_key) or mapper.primary_key
    where = (k == state.dict[facts(mapper).names[k]] for k in keys)
    statement = select(column).where(*where)
    state.dict[key] = type(connection).execute(connection, statement).scalar_one()


def _does_not_move(mapper: Mapper[Any], column: Column[Any], key: str) -> ConfigurationError:
    return ConfigurationError(
        f"{mapper.class_.__name__}.{key} did not move when a row was updated: the trigger of"
        f" {column.table}.{column.name} is missing, and lost updates would not be noticed. The"
        " transaction is rolled back. metadata.create_all() makes the trigger with the table; for"
        " a table that exists, op.create_version_trigger() of optilock.alembic does, or run the"
        " statements that optilock.mapping.triggers.trigger_ddl("
        f"{mapper.class_.__name__}.__table__, {mapper.class_.__name__}.__table__.c."
        f"{column.key}, engine.dialect).create gives."
    )
