"""``update(Model).where(...)`` in a watched session: the objects it moves, and their new versions.

The rules are in :mod:`optilock.watched.statements.execute`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from sqlalchemy.orm import Mapper, Session

from optilock.mapped import facts
from optilock.watched.session.record import session_record
from optilock.watched.statements.by_table import refuse_apart_in_flush, send_in_flush
from optilock.watched.statements.call import Call, flush_before
from optilock.watched.statements.follower import objects_follow
from optilock.watched.statements.version import (
    class_stands_still,
    columns_set,
    keep_version,
    move_in_other_table,
    move_version,
    refuse_children_by_key,
    version_not_moved_error,
)


def update_by_criteria(call: Call, mapper: Mapper[Any]) -> Any:
    """Send the UPDATE of a class with a version."""
    version = facts(mapper).version
    columns = columns_set(mapper, call.statement, call.params)
    explicit, apart = version in columns, False
    if not explicit:
        if _keeps_version(call.session, mapper, columns):
            return _send_unmoved(call.with_statement(keep_version(mapper, call.statement)), mapper)
        if not _is_moved(mapper, columns):
            return _send_unmoved(call, mapper)
        if version.table is mapper.local_table:
            call = call.with_statement(move_version(mapper, call.statement))
        else:
            apart = not _writes(version.table, columns)
    return send_and_follow(call, mapper, apart=apart)


def _send_unmoved(call: Call, mapper: Mapper[Any]) -> Any:
    """Send a statement that moves no version, so that no object has to follow it."""
    return (
        call.send() if session_record(call.session).flush is None else send_in_flush(call, mapper)
    )


def send_and_follow(call: Call, mapper: Mapper[Any], *, apart: bool = False) -> Any:
    """Send the statement, and bring the session's objects of its rows up to date.

    ``apart``: the version is in another table than the columns.
    """
    if session_record(call.session).flush is not None:
        if apart:
            refuse_apart_in_flush(mapper)
        return send_in_flush(call, mapper)
    call.flush_before()
    connection, given = call.connection(mapper), (call.statement, call.params)
    with objects_follow(call.session, connection, *given, mapper=mapper, held=call.synchronizes):
        if apart:
            move_in_other_table(connection, mapper, mapper.local_table, *given)
        return call.without_synchronizing().send()


def _is_moved(mapper: Mapper[Any], columns: set[Any]) -> bool:
    """Return whether an UPDATE of these columns moves the version, if it does not name it."""
    if not columns.isdisjoint(facts(mapper).made_of):
        raise version_not_moved_error(
            mapper, "it is made from values, which only their object knows"
        )
    return not (facts(mapper).by_application or facts(mapper).by_values)


def update_with_children(call: Call, mapper: Mapper[Any], children: list[Mapper[Any]]) -> Any:
    """Send the UPDATE of a class without a version, and move the versions of joined children."""
    if isinstance(call.params, list):
        refuse_children_by_key(mapper, children)
    columns = columns_set(mapper, call.statement, call.params)
    flush_before(call.session, {})
    with ExitStack() as following:
        for child in children:
            if _keeps_version(call.session, child, columns) or not _is_moved(child, columns):
                continue
            if session_record(call.session).flush is not None:
                refuse_apart_in_flush(child)
            connection, given = call.connection(mapper), (call.statement, call.params)
            follow = objects_follow(call.session, connection, *given, mapper=child)
            following.enter_context(follow)
            move_in_other_table(connection, child, mapper.local_table, *given)
        return call.send()


def delete_promised(call: Call, mapper: Mapper[Any]) -> Any:
    """Send the DELETE, and keep the promises about rows that we delete in the promised version."""
    call.flush_before()
    given = call.session, call.connection(mapper), call.statement, call.params
    with objects_follow(*given, mapper=mapper, held=False):
        return call.send()


def _keeps_version(session: Session, mapper: Mapper[Any], columns: set[Any]) -> bool:
    """Return whether only ignored columns change, or a ``no_bump`` block is open."""
    return (bool(columns) and columns <= facts(mapper).ignored) or class_stands_still(
        session, mapper
    )


def _writes(table: Any, columns: set[Any]) -> bool:
    """Return whether it sets columns of ``table``, too (MariaDB). Its ``onupdate`` acts then."""
    return any(getattr(column, "table", None) is table for column in columns)
