"""The rows that pages of this process have open, and what makes it ask for their versions."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Mapper, Session, sessionmaker

from optilock._columns.identities import identity_given
from optilock._mapped import Identity, facts
from optilock.dialects.change_notices import CHANNEL
from optilock.errors import ConfigurationError, OptilockError
from optilock.live.rows import Authorize, RowState, is_notified, read, read_allowed
from optilock.live.streams import EventStream, Follower
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.unit.sessions import is_async

R = TypeVar("R")
Fields = frozenset[str] | None

_log = logging.getLogger("optilock")
#: Seconds before the next try after an error: the first, and the longest.
_FIRST, _LONGEST = 0.1, 30.0
#: Seconds between two questions for all rows, whether they are notified or not.
_SELDOM = 60.0


class Changes:
    """The open rows of a process, and their streams; ``async with changes:`` runs it.

    Args:
        sessions: an ``Engine``, an ``AsyncEngine``, or a factory of sessions, sync or async.
        dsn: of PostgreSQL itself and not of a pooler, as libpq or SQLAlchemy writes it. Without it
            nothing listens, and the rows are asked for.
        poll: seconds between two questions for the rows of classes that are not notified.
        heartbeat: seconds after which a silent stream sends a comment.
        lifetime: seconds after which a stream ends, and the browser opens it again.
        etags: how tags are made, the same as for the pages.
    """

    def __init__(
        self,
        sessions: Any,
        *,
        dsn: str | sa.URL | None = None,
        poll: float = 5.0,
        heartbeat: float = 15.0,
        lifetime: float = 3_600.0,
        etags: ETags = PLAIN,
    ) -> None:
        if not all(seconds > 0 for seconds in (poll, heartbeat, lifetime)):
            raise ConfigurationError("Changes(poll=, heartbeat=, lifetime=) are seconds above 0.")
        self._run = _runner(sessions)
        self._dsn, self._poll, self._etags = dsn, poll, etags
        self._heartbeat, self._lifetime = heartbeat, lifetime
        self._open: dict[Mapper[Any], dict[Identity, set[Follower]]] = {}
        self._asked: dict[Mapper[Any], dict[Identity, Fields]] = {}
        self._wake = asyncio.Event()
        #: Classes whose changes are notified, and others of which the log has a warning.
        self._notified: set[Mapper[Any]] = set()
        self._warned: set[Mapper[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Begin to listen, and to ask.

        Raises:
            ConfigurationError: the listener gets no notices, for example behind a pooler.
            psycopg.Error: the server does not answer.
        """
        self._wake, self._asked = asyncio.Event(), {}  # it may be another loop than before
        self._open, self._notified = {}, set()
        works: list[Coroutine[Any, Any, None]] = []
        if self._dsn is not None:
            from optilock.live.listener import listen

            works.append(self._listen(await listen(self._dsn, notify=self._notify)))
        works += [self._answer(), self._ask_regularly()]
        self._tasks = [asyncio.create_task(work) for work in works]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        await asyncio.sleep(0)  # each has begun, and so closes its connection when it ends
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End all streams with a task: a page without events would seem to be up to date."""
        if not task.cancelled():
            _log.error("Changes has ended", exc_info=task.exception())
        for rows in self._open.values():
            for followers in rows.values():
                for follower in followers:
                    follower.end()

    async def stream(
        self,
        model: type[Any],
        key: Any,
        *,
        authorize: Authorize,
        seen: str | None = None,
        etags: ETags | None = None,
    ) -> EventStream:
        """Return the events of a row.

        Args:
            model: the mapped class.
            key: the primary key, as ``session.get()`` takes it.
            authorize: gets the loaded row, inside its session, and returns whether this client may
                read it. ``None``: each client of this route may.
            seen: the tag that the page shows, or its ``Last-Event-ID``. If the row has another one,
                the first event comes at once. ``None``: it begins with the stored version.
            etags: for this page, in place of those of ``Changes``.

        Raises:
            NotFound: there is no such row, or ``authorize`` has refused it (404).
            ConfigurationError: the class has no version, or nothing runs ``async with changes``.
        """
        if not self._tasks or any(task.done() for task in self._tasks):
            raise ConfigurationError(
                "Changes.stream() needs a running Changes: write `async with changes:` in the"
                " lifespan of the application."
            )

        def look(session: Session) -> tuple[RowState, bool]:
            row = read_allowed(session, model, key, authorize)
            return row, self._dsn is not None and is_notified(session, sa.inspect(model))

        row, notified = await self._run(look)
        mapper: Mapper[Any] = sa.inspect(model)
        self._note_notified(mapper, notified)
        tags = (etags or self._etags).of_row(mapper, row.identity)
        follow = partial(self._following, mapper, row.identity)
        pace = {"heartbeat": self._heartbeat, "lifetime": self._lifetime}
        return EventStream(follow, row, seen, tags, **pace)

    def _note_notified(self, mapper: Mapper[Any], notified: bool) -> None:
        if notified:
            self._notified.add(mapper)
            return
        self._notified.discard(mapper)
        if self._dsn is not None and mapper not in self._warned:
            self._warned.add(mapper)
            table = facts(mapper).table.name
            _log.warning(
                "Changes of %s are not notified, so its open rows are asked for every %s seconds:"
                " the table lacks the triggers of op.add_change_notice(%r).",
                *(mapper.class_.__name__, self._poll, table),
            )

    @contextmanager
    def _following(
        self, mapper: Mapper[Any], identity: Identity, follower: Follower
    ) -> Iterator[None]:
        """Tell ``follower`` of changes of the row, also of one since it was read."""
        followers = self._open.setdefault(mapper, {}).setdefault(identity, set())
        followers.add(follower)
        self._ask(mapper, identity, frozenset())
        try:
            yield
        finally:
            followers.discard(follower)
            rows = self._open.get(mapper, {})
            if not followers and rows.get(identity) is followers:
                del rows[identity]

    # -- what makes it ask -----------------------------------------------------------------------

    async def _listen(self, connection: Any) -> None:
        """Ask for the rows that notices name; after a lost connection for all."""
        from optilock.live.listener import listen

        while True:
            try:
                async with connection:
                    async for notice in connection.notifies():
                        self._note(notice.payload)
            except Exception as error:
                _log.warning("the listener of Changes is cut off: %s", type(error).__name__)
            connection = await _repeated(lambda: listen(self._dsn or ""))
            self._ask_all(self._open)

    async def _notify(self, payload: str) -> bool:
        """Send a notice as the sessions do; return whether they can: not without one database."""

        def send(session: Session) -> None:
            session.execute(sa.select(sa.func.pg_notify(CHANNEL, payload)))
            session.commit()

        try:
            await self._run(send)
        except (DBAPIError, UnboundExecutionError):
            return False
        return True

    def _note(self, payload: str) -> None:
        """Ask for the rows that a notice names."""
        try:
            notice = json.loads(payload)
            table, rows = notice.get("table"), notice.get("rows")
            mappers = [one for one in self._open if facts(one).table.name == table]
            for mapper in mappers:
                self._ask_named(mapper, rows)
        except Exception as error:  # whoever may connect may send one
            _log.warning("Changes cannot read a notice: %s", type(error).__name__)
            self._ask_all(self._open)

    def _ask_named(self, mapper: Mapper[Any], rows: list[Any] | None) -> None:
        if rows is None or not _has_plain_key(mapper):
            return self._ask_all([mapper])
        known = facts(mapper)
        names = {column.name: name for name, column in known.columns.items()}
        shown = known.covered - known.of_each_write
        for key, changed in rows:
            given = tuple(key[column.name] for column in mapper.primary_key)
            fields = shown.intersection(names.get(one, "") for one in changed or ())
            try:
                identity = identity_given("Changes", mapper, given)
            except OptilockError:  # the database writes the key otherwise than Python
                return self._ask_all([mapper])
            if identity in self._open[mapper]:
                self._ask(mapper, identity, fields)
        return None

    async def _ask_regularly(self) -> None:
        """Ask for rows that are not notified; seldom for all, as triggers may have gone."""
        left = _SELDOM
        while True:
            await asyncio.sleep(self._poll)
            left -= self._poll
            known = self._notified if left > 0 else set[Mapper[Any]]()
            left = left if left > 0 else _SELDOM
            self._ask_all(mapper for mapper in self._open if mapper not in known)

    def _ask_all(self, mappers: Iterable[Mapper[Any]]) -> None:
        for mapper in mappers:
            for identity in self._open[mapper]:
                self._ask(mapper, identity, None)

    def _ask(self, mapper: Mapper[Any], identity: Identity, fields: Fields) -> None:
        asked = self._asked.setdefault(mapper, {})
        if identity in asked:
            before = asked[identity]
            fields = None if before is None or fields is None else before | fields
        asked[identity] = fields
        self._wake.set()

    def _ask_again(self, mapper: Mapper[Any], rows: dict[Identity, Fields]) -> None:
        for identity, fields in rows.items():
            self._ask(mapper, identity, fields)

    # -- the one question ------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Read the rows that are asked for, one question after the other, and tell their pages.

        A class that cannot be read is asked for again after a pause, and holds up no other one.
        """
        pauses: dict[Mapper[Any], float] = {}
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, {}
            for mapper, rows in asked.items():
                followed = self._open.get(mapper, {})
                identities = [identity for identity in rows if identity in followed]
                question = partial(read, mapper=mapper, identities=identities)
                try:
                    stored = await self._run(question) if identities else {}
                except Exception as error:
                    pause = pauses[mapper] = min(2 * pauses.get(mapper, _FIRST / 2), _LONGEST)
                    _warn_of_retry(pause, error)
                    again = partial(self._ask_again, mapper, rows)
                    asyncio.get_running_loop().call_later(pause, again)
                    continue
                pauses.pop(mapper, None)
                for identity in identities:
                    row = stored.get(identity, RowState(identity, deleted=True))
                    for follower in followed.get(identity, ()):
                        follower.tell(replace(row, fields=rows[identity]))


def _has_plain_key(mapper: Mapper[Any]) -> bool:
    """Return whether JSON has the key's values as Python reads them."""
    plain = (sa.Integer, sa.String, sa.Uuid)
    kinds = (column.type for column in mapper.primary_key)
    return all(isinstance(kind, plain) and not isinstance(kind, sa.Enum) for kind in kinds)


def _warn_of_retry(pause: float, error: Exception) -> None:
    _log.warning("Changes tries again in %s seconds: %s", pause, type(error).__name__)


async def _repeated(work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Return the result of ``work``, which is repeated until it has one."""
    pause = _FIRST
    while True:
        try:
            return await work()
        except Exception as error:
            _warn_of_retry(pause, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def _runner(sessions: Any) -> Callable[[Callable[[Session], R]], Coroutine[Any, Any, R]]:
    """Return a function that runs work in a session of its own, in a thread if that blocks."""
    made: Any = getattr(sessions, "session_factory", sessions)
    if is_async(sessions):
        from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

        many = async_sessionmaker(made) if isinstance(made, AsyncEngine) else made

        async def run(work: Callable[[Session], R]) -> R:
            async with many() as session:
                result: R = await session.run_sync(work)
                return result

        return run
    factory = sessionmaker(made) if isinstance(made, sa.Engine) else made

    def in_thread(work: Callable[[Session], R]) -> R:
        with factory() as session:
            return work(session)

    async def run_in_thread(work: Callable[[Session], R]) -> R:
        return await asyncio.to_thread(in_thread, work)

    return run_in_thread
