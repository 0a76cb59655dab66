"""What a flush refuses before it begins: nothing is sent, and every edit is where it was.

:func:`refuse_unread`: an object may stand for a row without anybody having seen it:
``make_transient_to_detached()``, a pickle of an expired object, or an object that was read after an
UPDATE statement which has been rolled back. Edited blindly, it would go over whatever is stored.
What SQLAlchemy does without a version depends on the mapping (columns of a joined child it writes
without a check).

:func:`refuse_two_classes`: objects of two classes over one table (:mod:`optilock.mapping.tables`).
:func:`refuse_guarded_writes`: rows that are guarded, over a connection where nothing is
(:mod:`optilock.watched.session.connections`). :func:`refuse_forgotten_rows`: rows without a
version, in a strict session (:mod:`optilock.watched.statements.refusals`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, event
from sqlalchemy.orm import Mapper, PassiveFlag, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError
from optilock.mapped import State, facts, identity_of
from optilock.mapping.attribute import load_always
from optilock.mapping.moves import move_by_key
from optilock.mapping.tables import is_shared, know_tables, share_table, two_classes
from optilock.resolvers.column_groups import check_declared
from optilock.undocumented.mappers import mapped_by, registries
from optilock.watched.guard.dependents import LeftOut
from optilock.watched.guard.records import Flush
from optilock.watched.rows.members import notice_orphans
from optilock.watched.rows.rolled_back import tell_pickles
from optilock.watched.rows.seen import version_seen, watch_loads
from optilock.watched.rows.unknown_versions import never_seen, unread
from optilock.watched.session.connections import INSTEAD, autocommits, engine_to_write
from optilock.watched.session.watched import Watched
from optilock.watched.statements.refusals import forgotten
from optilock.watched.writes.shapes import compared_columns


def refuse_guarded_writes(session: Session, connections: Iterable[Connection]) -> None:
    """Refuse a flush that would write guarded rows over one of these connections.

    Raises:
        ConfigurationError: so it would; nothing was sent.
    """
    engines = {connection.engine for connection in connections if autocommits(connection)}
    if not engines:
        return
    for obj in (*session.new, *session.dirty, *session.deleted):
        mapper = instance_state(obj).mapper
        if facts(mapper).guarded and engine_to_write(session, mapper) in engines:
            raise ConfigurationError(
                f"{mapper.class_.__name__} would be written over a connection in AUTOCOMMIT mode:"
                " every statement is stored at once, so a refused flush could not be taken back,"
                f" and no lock would hold. {INSTEAD} Nothing was sent."
            )


def refuse_two_classes(session: Session, known: Watched) -> None:
    """Refuse to write one table through two classes.

    Raises:
        ConfigurationError: this flush would, or a row was written through the other class before
            and this object is as old as it was then. Nothing was sent.
    """
    first: dict[Table, Mapper[Any]] = {}
    for obj in (*session.new, *session.dirty, *session.deleted):
        state = instance_state(obj)
        mapper = state.mapper
        if is_shared(mapper):
            other = _written_as(state, known) or first.setdefault(facts(mapper).table, mapper)
            if other.base_mapper is not mapper.base_mapper:
                raise two_classes(other, mapper)


def _written_as(state: State, known: Watched) -> Mapper[Any] | None:
    """The class through which the transaction has moved the row on from the object's version."""
    token = facts(state.mapper).token
    if state.key is None or not token:
        return None
    place = facts(state.mapper).table, identity_of(state), version_seen(state, token)
    for shape, params in known.sent:
        if place == (shape.table, shape.key_of(params), params.get(shape.token.parameter)):
            return shape.mapper
    return None


def refuse_unread(session: Session, objects: Any) -> None:
    """Raise ``ConfigurationError`` for an edit or a delete of a row that nobody has read."""
    for state in unread(session):
        obj = state.obj()
        if objects and not any(obj is one for one in objects):
            continue
        if obj in session.deleted or (state.modified and _counts(state)):
            assert state.key is not None
            raise never_seen(state.mapper, identity_of(state))


def refuse_forgotten_rows(session: Session, objects: Any) -> None:
    """Refuse to update or delete, in a strict session, a row of a class without a version.

    Raises:
        ConfigurationError: there is one, and its class does not say that it needs none. Nothing was
            sent.
    """
    for obj in (*session.deleted, *session.dirty):
        state = instance_state(obj)
        if not facts(state.mapper).forgotten or (objects and not any(obj is o for o in objects)):
            continue
        if obj in session.deleted or _is_changed(state):
            raise forgotten(state.mapper, identity_of(state))


def _is_changed(state: State) -> bool:
    """Is a column of the row to have another value, a foreign key among them?"""
    columns, others = state.mapper.columns, state.mapper.relationships
    return any(
        state.get_history(name, PassiveFlag.PASSIVE_NO_INITIALIZE).has_changes()
        for name in state.committed_state
        if name in columns
        or (name in others and others[name].direction is RelationshipDirection.MANYTOONE)
    )


def refuse_forgotten_statement(flush: Flush, statement: Any, params: Any) -> None:
    """The same of a statement of the unit of work that nobody has seen coming.

    Raises:
        ConfigurationError: it changes such a row; it is not sent, and the flush is rolled back.
    """
    assert flush.uow is not None
    states = [
        state
        for mapper, some in flush.uow.mappers.items()
        if statement.table in mapper.tables and facts(mapper).forgotten
        for state in some
        if state.key is not None
    ]
    if not states:
        return
    of_rows = LeftOut(statement.table, compared_columns(statement) or {})
    of_rows.take((), frozenset(states))
    if any(row in of_rows for row in (params if isinstance(params, list) else [params])):
        raise forgotten(states[0].mapper, then="It was not sent, and the flush is rolled back.")


def _counts(state: State) -> bool:
    """Does a column change that is not ignored, a foreign key among them?"""
    ignored, columns = facts(state.mapper).ignored, state.mapper.columns
    return any(
        columns[name] not in ignored for name in state.committed_state if name in columns
    ) or any(
        one.direction is RelationshipDirection.MANYTOONE
        for one in state.mapper.relationships
        if one.key in state.committed_state
    )


# -- classes with SQLAlchemy's own version_id_col --------------------------------------------------


def read_versions_with_rows() -> None:
    """Load the version of every class together with its row, from here on.

    :class:`~optilock.Versioned` does that for its own classes while they are mapped; this is for
    classes that have SQLAlchemy's own ``version_id_col`` alone. The version is read with its row
    even where ``load_only()`` or ``defer()`` omit it: SQLAlchemy would read it inside the flush,
    when it already is the other writer's. The tables of these classes become known, too, so that
    statements that bypass the version are found.
    """
    if event.contains(Mapper, "mapper_configured", _configured):
        return
    event.listen(Mapper, "mapper_configured", _configured)
    for registry in registries():
        for mapper in mapped_by(registry):
            if mapper.configured:
                _configured(mapper, mapper.class_)


def _configured(mapper: Mapper[Any], cls: type[Any]) -> None:
    notice_orphans(mapper)
    version: Any = mapper.version_id_col
    if not isinstance(version, ColumnElement):  # SQLAlchemy takes anything, and fails in the flush
        return
    if facts(mapper).kind is None:  # the mixin has looked at its classes
        check_declared(mapper, cls)
        if isinstance(version, Column):
            move_by_key(mapper)
    load_always(mapper)
    watch_loads(mapper)
    tell_pickles(mapper)
    if isinstance(version, Column):
        know_tables(mapper, version)
        share_table(mapper)
