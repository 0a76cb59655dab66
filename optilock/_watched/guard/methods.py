"""The methods of a watched session class, and the listeners to the rows of a class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, ColumnElement
from sqlalchemy.orm import Mapper, Session

from optilock._mapped import facts
from optilock._mapping.attribute import load_always
from optilock._mapping.moves import move_by_key
from optilock._mapping.tables import register_tables, share_table
from optilock._watched.guard.flush import before_flush, begin_ahead_of_listeners, guarded_flush
from optilock._watched.guard.own_flush import (
    OWN_FLUSH,
    installed_release,
)
from optilock._watched.guard.session_events import (
    delete_each,
    guarded_delete,
    guarded_expire,
    guarded_expire_all,
)
from optilock._watched.rows.members import notice_orphans
from optilock._watched.rows.merge import guarded_merge, guarded_merge_all
from optilock._watched.rows.reads_by_key import guarded_get, guarded_refresh
from optilock._watched.rows.rolled_back import guarded_expunge, guarded_expunge_all, mark_pickles
from optilock._watched.rows.version_reads import note_reads, watch_loads
from optilock._watched.session.order import add_step
from optilock._watched.session.record import (
    GUARD_KEY,
    RECORD_KEY,
    STRICT_KEY,
    RecordAttribute,
)
from optilock._watched.statements.execute import guarded_connection, guarded_execute
from optilock._watched.statements.legacy_bulk import (
    guarded_bulk_insert,
    guarded_bulk_save,
    guarded_bulk_update,
)
from optilock.resolvers.column_groups import check_declared


def cover_methods(cls: type[Session]) -> None:
    """Guard the methods of ``cls``, and set its options to their defaults."""
    add_step("guard", RECORD_KEY, begin=begin_ahead_of_listeners, before_flush=before_flush)
    for name, first in (
        (GUARD_KEY, True),
        (RECORD_KEY, RecordAttribute()),
        (STRICT_KEY, False),
        (OWN_FLUSH, installed_release),
    ):
        setattr(cls, name, first)
    cls.flush = guarded_flush(cls.flush)  # type: ignore[method-assign]
    cls.merge = guarded_merge(cls.merge)  # type: ignore[method-assign]
    if hasattr(cls, "merge_all"):
        setattr(cls, "merge_all", guarded_merge_all(cls.merge_all))  # noqa: B010
    cls.delete = guarded_delete(cls.delete)  # type: ignore[method-assign]
    if hasattr(cls, "delete_all"):
        setattr(cls, "delete_all", delete_each)  # noqa: B010
    cls.expire = guarded_expire(cls.expire)  # type: ignore[method-assign]
    cls.refresh = guarded_refresh(guarded_expire(cls.refresh))  # type: ignore[method-assign]
    cls.connection = guarded_connection(cls.connection)  # type: ignore[method-assign]
    cls.get = guarded_get(cls.get)  # type: ignore[method-assign]
    cls.expunge = guarded_expunge(cls.expunge)  # type: ignore[method-assign]
    cls.expunge_all = guarded_expunge_all(cls.expunge_all)  # type: ignore[method-assign]
    cls.expire_all = guarded_expire_all(cls.expire_all)  # type: ignore[method-assign]
    for name in ("execute", "scalar", "scalars"):
        setattr(cls, name, guarded_execute(getattr(cls, name)))
    if any(_is_of_sqlmodel(base.__dict__.get("exec")) for base in cls.__mro__):
        setattr(cls, "exec", _guarded_exec(cls.exec))  # type: ignore[attr-defined]  # noqa: B010
    cls.bulk_save_objects = guarded_bulk_save(  # type: ignore[method-assign]
        cls.bulk_save_objects
    )
    cls.bulk_update_mappings = guarded_bulk_update(  # type: ignore[method-assign]
        cls.bulk_update_mappings
    )
    cls.bulk_insert_mappings = guarded_bulk_insert(  # type: ignore[method-assign]
        cls.bulk_insert_mappings
    )


def _is_of_sqlmodel(method: Any) -> bool:
    return getattr(method, "__module__", "").startswith("sqlmodel.")


def _guarded_exec(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace SQLModel's ``Session.exec``, or the program's own over it.

    SQLModel's calls SQLAlchemy's ``execute`` past the guarded one. ``AsyncSession.exec`` calls it,
    too.
    """
    if _is_of_sqlmodel(original):
        return exec_of_sqlmodel

    def send(self: Any, statement: Any, params: Any = None, **options: Any) -> Any:
        given = {} if params is None else {"params": params}
        return original(self, statement, **given, **options)

    execute = guarded_execute(functools.wraps(original)(send))

    @functools.wraps(original)
    def exec(self: Any, statement: Any, *, params: Any = None, **options: Any) -> Any:
        return execute(self, statement, params, **options)

    return exec


def exec_of_sqlmodel(self: Any, statement: Any, **options: Any) -> Any:
    """Do what SQLModel's ``Session.exec`` does, with the guarded ``execute``."""
    from sqlmodel.sql.expression import SelectOfScalar

    results = self.execute(statement, **options)
    return results.scalars() if isinstance(statement, SelectOfScalar) else results


def follow_tables(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Note the version of a class that is mapped: a statement may come before it is configured."""
    version: Any = mapper.version_id_col
    if isinstance(version, Column):
        register_tables(mapper, version)
        share_table(mapper)


def follow_mapping(mapper: Mapper[Any], cls: type[Any]) -> None:
    notice_orphans(mapper)
    version: Any = mapper.version_id_col
    if not isinstance(version, ColumnElement):  # SQLAlchemy takes anything, and fails in the flush
        return
    if facts(mapper).kind is None:  # the mixin has looked at its classes
        check_declared(mapper, cls)
        if isinstance(version, Column):
            move_by_key(mapper)
    load_always(mapper)
    note_reads(mapper)
    watch_loads(mapper)
    mark_pickles(mapper)


#: By their events, for classes without the mixin.
MAPPER_LISTENERS = {"after_mapper_constructed": follow_tables, "mapper_configured": follow_mapping}
