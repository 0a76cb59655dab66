"""One unit of work for each request, as a generator that a framework runs as a dependency.

::

    depend = session_of_request(SessionLocal, {"on_conflict": merge_fields})
    # a generator function; with an async_sessionmaker an async one

The COMMIT comes after the ``yield``. A framework must run it before the answer is sent; otherwise a
conflict there would be a broken 200.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from optilock import unit_of_work
from optilock.errors import ConfigurationError
from optilock.unit.conditions import ConditionsPart
from optilock.unit.old_options import rename_options
from optilock.unit.sessions import is_async

#: An attribute of a dependency: its unit demands a condition for every row.
REQUIRES = "_optilock_requires_conditions"

#: A generator function that yields a session.
Depend = Callable[[], Iterator[Any] | AsyncIterator[Any]]


def sync_session(sessions: Any, options: Mapping[str, Any]) -> Depend:
    """Return a generator function that yields the session of a unit of work."""

    def session() -> Iterator[Any]:
        with unit_of_work(sessions, **options) as session:
            yield session

    return session


def session_of_request(
    sessions: Any,
    options: Mapping[str, Any],
    *,
    require_conditions: bool | None = None,
    sync: Callable[[Any, Mapping[str, Any]], Depend] = sync_session,
) -> Depend:
    """Return a generator function that yields the session of a unit, and then ends the unit.

    ``require_conditions``: True, each changed row needs a condition; False, not even that of the
    request is needed. ``sync`` makes it if ``sessions`` makes sync sessions.

    Raises:
        ConfigurationError: ``sessions`` is bound to a thread or a task, or makes no sessions; or an
            option cannot work.
    """
    if hasattr(sessions, "registry"):  # scoped_session, async_scoped_session
        raise ConfigurationError(
            f"unit() got {type(sessions).__name__}, and the parts of one request run in several"
            " threads and tasks: give it the sessionmaker."
        )
    if require_conditions not in (True, False, None):
        raise ConfigurationError(
            f"require_conditions={require_conditions!r}: write True, a condition for every row;"
            " False, none, not even that of the request; or None."
        )
    options = rename_options(options)
    if require_conditions is not None:
        options["parts"] = [*options.get("parts", ()), ConditionsPart(require_conditions)]
    unit_of_work(sessions, **options).require_block()  # what cannot work is refused at the start
    if not is_async(sessions):
        return _marked(sync(sessions, options), require_conditions)

    async def async_session() -> AsyncIterator[Any]:
        async with unit_of_work(sessions, **options) as session:
            yield session

    return _marked(async_session, require_conditions)


def _marked(depend: Depend, require_conditions: bool | None) -> Depend:
    if require_conditions:
        setattr(depend, REQUIRES, True)
    return depend


# -- frameworks that are not installed -------------------------------------------------------------
