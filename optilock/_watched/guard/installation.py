"""``watch``: the guarded flush for sessions one already has.

::

    SessionLocal = optilock.watch(sessionmaker(engine), on_conflict=merge_fields)

That is all an application with its own session handling needs (a FastAPI dependency,
Flask-SQLAlchemy, a Celery task). Every flush of a watched session (``flush``, ``commit``,
autoflush, ``begin_nested``) is guarded; nothing else about the session changes.

:func:`guard_class` replaces methods of the session class (:mod:`optilock._watched.guard.methods`),
and registers the events of :mod:`optilock._watched.guard.session_events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy.orm import Mapper, Session, sessionmaker

from optilock._mapped import all_mappers
from optilock._watched.guard.methods import (
    MAPPER_LISTENERS,
    cover_methods,
    follow_mapping,
    follow_tables,
)
from optilock._watched.guard.own_flush import check_own_flush
from optilock._watched.guard.release import check_release
from optilock._watched.guard.session_events import (
    LISTENERS,
)
from optilock._watched.session.connections import refuse_autocommit_of, refuse_shards
from optilock._watched.session.order import listen_to_class
from optilock._watched.session.record import (
    GUARD_KEY,
    ON_DELETE_KEY,
    RESOLVER_KEY,
    STRICT_KEY,
    check_strict,
)
from optilock._watched.writes.send import require_row_counts_of
from optilock.errors import ConfigurationError
from optilock.resolvers.resolution import DeletePolicies, OnConflict, check_on_delete
from optilock.resolvers.rules import check_on_conflict

T = TypeVar("T")

#: Whether sessions that are watched from here on are strict without ``strict=True``. Tests of an
#: application set it (:mod:`optilock.testing.strict_sessions`).
strict_by_default = False


def watch(
    target: T,
    *,
    on_conflict: OnConflict = None,
    on_delete: DeletePolicies = None,
    strict: bool | None = None,
    own_flush: bool | None = None,
) -> T:
    """Guard every session that ``target`` makes, and return ``target``.

    ``target`` is a ``sessionmaker``, ``async_sessionmaker``, ``scoped_session``,
    ``async_scoped_session`` or a ``Session`` class. ``on_conflict`` is a resolver, or a mapping of
    model classes to resolvers; without one a conflict is raised as ``ConcurrencyError``.
    ``on_delete`` is an :class:`~optilock.resolvers.OnDelete`, or a mapping of model classes to
    them. With ``strict`` the sessions refuse to update or delete rows of a class without a version,
    unless the class has ``__version_token__ = None``, and statements that overwrite versioned rows
    unseen (:mod:`optilock._watched.statements.unguarded`). Without the word such a statement is
    sent with an ``UnguardedStatementWarning``, once for each class and kind of statement, and with
    ``strict=False`` silently. ``own_flush``: see :mod:`optilock._watched.guard.own_flush`.

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
    is_first = not hasattr(cls, GUARD_KEY)
    guard_class(cls)
    check_own_flush(cls, own_flush)
    if strict or (not getattr(cls, STRICT_KEY) and (is_first or strict is False)):
        options[STRICT_KEY] = strict
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
    setattr(cls, STRICT_KEY, strict_by_default)
    listen_to_class(cls, **LISTENERS)


# -- classes with SQLAlchemy's own version_id_col --------------------------------------------------


def read_versions_with_rows() -> None:
    """Load the version of every class together with its row, from here on.

    :class:`~optilock.Versioned` does that for its own classes while they are mapped; this is for
    classes that have SQLAlchemy's own ``version_id_col`` alone. The version is read with its row
    even where ``load_only()`` or ``defer()`` omit it: SQLAlchemy would read it inside the flush,
    when it already is the other writer's. The tables of these classes become known, too, so that
    statements that bypass the version are found.
    """
    if all(event.contains(Mapper, name, one) for name, one in MAPPER_LISTENERS.items()):
        return
    for name, one in MAPPER_LISTENERS.items():
        event.listen(Mapper, name, one)
    for mapper in all_mappers():
        follow_tables(mapper, mapper.class_)
        if mapper.configured:
            follow_mapping(mapper, mapper.class_)
