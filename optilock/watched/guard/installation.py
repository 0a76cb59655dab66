"""``watch``: the guarded flush for sessions one already has.

::

    SessionLocal = optilock.watch(sessionmaker(engine), on_conflict=merge_fields)

That is all an application with its own session handling needs (a FastAPI dependency,
Flask-SQLAlchemy, a Celery task). Every flush of a watched session (``flush``, ``commit``,
autoflush, ``begin_nested``) is guarded; nothing else about the session changes.

:func:`guard_class` replaces methods of the session class, and registers the events of
:mod:`optilock.watched.guard.session_events`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, event
from sqlalchemy.orm import Mapper, Session, sessionmaker

from optilock.errors import ConfigurationError
from optilock.mapped import facts
from optilock.mapping.attribute import load_always
from optilock.mapping.moves import move_by_key
from optilock.mapping.tables import register_tables, share_table
from optilock.resolvers.column_groups import check_declared
from optilock.resolvers.resolution import DeletePolicies, OnConflict, check_on_delete
from optilock.resolvers.rules import check_on_conflict
from optilock.undocumented.mappers import mappers_in, registries
from optilock.watched.guard.flush import before_flush, begin_ahead_of_listeners, guarded_flush
from optilock.watched.guard.own_flush import (
    OWN_FLUSH,
    check_own_flush,
    check_release,
    installed_release,
)
from optilock.watched.guard.session_events import (
    LISTENERS,
    delete_each,
    guarded_delete,
    guarded_expire,
    guarded_expire_all,
)
from optilock.watched.rows.members import notice_orphans
from optilock.watched.rows.merge import guarded_merge, guarded_merge_all
from optilock.watched.rows.reads_by_key import guarded_get, guarded_refresh
from optilock.watched.rows.rolled_back import guarded_expunge, guarded_expunge_all, mark_pickles
from optilock.watched.rows.seen import watch_loads
from optilock.watched.session.connections import refuse_autocommit_of, refuse_shards
from optilock.watched.session.order import add_step, listen_to_class
from optilock.watched.session.record import (
    GUARD_KEY,
    ON_DELETE_KEY,
    RECORD_KEY,
    RESOLVER_KEY,
    STRICT_KEY,
    RecordAttribute,
    check_strict,
)
from optilock.watched.statements.execute import guarded_connection, guarded_execute
from optilock.watched.statements.legacy_bulk import (
    guarded_bulk_insert,
    guarded_bulk_save,
    guarded_bulk_update,
)
from optilock.watched.writes.send import require_row_counts_of

T = TypeVar("T")

#: Whether sessions that are watched from here on are strict without ``strict=True``. Tests of an
#: application set it (:mod:`optilock.testing.strict_sessions`).
strict_by_default = False


def watch(
    target: T,
    *,
    on_conflict: OnConflict = None,
    on_delete: DeletePolicies = None,
    strict: bool = False,
    own_flush: bool | None = None,
) -> T:
    """Guard every session that ``target`` makes, and return ``target``.

    ``target`` is a ``sessionmaker``, ``async_sessionmaker``, ``scoped_session``,
    ``async_scoped_session`` or a ``Session`` class. ``on_conflict`` is a resolver, or a mapping of
    model classes to resolvers; without one a conflict is raised as ``ConcurrencyError``.
    ``on_delete`` is an :class:`~optilock.resolvers.OnDelete`, or a mapping of model classes to
    them. With ``strict`` the sessions refuse to update or delete rows of a class without a version,
    unless the class has ``__version_token__ = None``, and statements that overwrite versioned rows
    unseen (:mod:`optilock.watched.statements.unguarded`). ``own_flush``: see
    :mod:`optilock.watched.guard.own_flush`.

    A second call for the same target, or for a class below it, adds to the first: options that it
    leaves out stay as they are, mappings are joined, and ``strict`` sessions stay strict.

    Raises ``ConfigurationError`` for any other target, for an option that contradicts an earlier
    call, for a resolver or a policy that is not one,
    for an engine whose driver cannot count rows, or that is in AUTOCOMMIT mode, and with a release
    of SQLAlchemy that has not what the guard needs.
    """
    check_release()
    resolver, policy = check_on_conflict(on_conflict), check_on_delete(on_delete)
    check_strict(strict)
    cls = _session_class(target)
    require_row_counts_of(target)
    refuse_autocommit_of(target)
    given = {RESOLVER_KEY: resolver, ON_DELETE_KEY: policy}
    options = {key: _joined(cls, key, value) for key, value in given.items() if value is not None}
    guard_class(cls)
    check_own_flush(cls, own_flush)
    if strict:
        options[STRICT_KEY] = True
    for key, value in options.items():
        setattr(cls, key, value)
    return target


_NAMES = {RESOLVER_KEY: "on_conflict", ON_DELETE_KEY: "on_delete"}


def _joined(cls: type[Session], key: str, value: Any) -> Any:
    """Return the option with what an earlier ``watch`` of the same class has said.

    Raises:
        ConfigurationError: they contradict each other.
    """
    before = cls.__dict__.get(key)
    if before is None or before == value:
        return value
    both = isinstance(before, Mapping) and isinstance(value, Mapping)
    if both and all(before.get(model, one) == one for model, one in value.items()):
        return {**before, **value}
    raise ConfigurationError(
        f"watch() was called before for these sessions, with another {_NAMES[key]}: one of the two"
        f" would have no effect. Say {_NAMES[key]} in one place, leave it out of the other, or"
        " watch a sessionmaker of its own. The sessions are as they were."
    )


def _session_class(target: Any) -> type[Session]:
    """Return the session class that ``target`` instantiates, and that belongs to it alone."""
    factory = getattr(target, "session_factory", None)  # scoped_session, async_scoped_session
    if factory is not None:
        return _session_class(factory)
    if isinstance(target, sessionmaker):
        return target.class_
    if isinstance(target, type) and issubclass(target, Session):
        return target
    if hasattr(target, "class_") and hasattr(target.class_, "sync_session_class"):
        return _sync_class_of(target)
    raise ConfigurationError(
        f"watch() got {target!r}: it takes a sessionmaker, an async_sessionmaker, a scoped_session"
        " or a Session class. For one session, watch the sessionmaker that makes it."
    )


def _sync_class_of(target: Any) -> type[Session]:
    """Return an async_sessionmaker's own subclass of the Session behind its AsyncSessions."""
    given = target.kw.get("sync_session_class") or target.class_.sync_session_class
    if GUARD_KEY not in given.__dict__:
        given = type(given.__name__, (given,), {})
        target.kw["sync_session_class"] = given
    result: type[Session] = given
    return result


def guard_class(cls: type[Session]) -> None:
    """Guard the flush of ``cls`` and its subclasses, unless a class above it is guarded.

    Raises ``ConfigurationError`` for a class that chooses a connection for each object.
    """
    if hasattr(cls, GUARD_KEY):
        return
    refuse_shards(cls)
    read_versions_with_rows()
    cover_methods(cls)
    listen_to_class(cls, **LISTENERS)


def cover_methods(cls: type[Session]) -> None:
    """Guard the methods of ``cls``, and set its options to their defaults."""
    add_step("guard", RECORD_KEY, begin=begin_ahead_of_listeners, before_flush=before_flush)
    for name, first in (
        (GUARD_KEY, True),
        (RECORD_KEY, RecordAttribute()),
        (STRICT_KEY, strict_by_default),
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


# -- classes with SQLAlchemy's own version_id_col --------------------------------------------------


def read_versions_with_rows() -> None:
    """Load the version of every class together with its row, from here on.

    :class:`~optilock.Versioned` does that for its own classes while they are mapped; this is for
    classes that have SQLAlchemy's own ``version_id_col`` alone. The version is read with its row
    even where ``load_only()`` or ``defer()`` omit it: SQLAlchemy would read it inside the flush,
    when it already is the other writer's. The tables of these classes become known, too, so that
    statements that bypass the version are found.
    """
    if event.contains(Mapper, "mapper_configured", follow_mapping):
        return
    event.listen(Mapper, "mapper_configured", follow_mapping)
    for registry in registries():
        for mapper in mappers_in(registry):
            if mapper.configured:
                follow_mapping(mapper, mapper.class_)


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
    watch_loads(mapper)
    mark_pickles(mapper)
    if isinstance(version, Column):
        register_tables(mapper, version)
        share_table(mapper)
