"""The calls of both shells: what was given is checked, and becomes work for a connection.

``work(connection, inside)`` is run by :class:`~optilock.queue.Queue` on a connection of its own, or
on that of the caller's session; by ``AsyncQueue`` in the same way, awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from optilock.dialects import Cause, database_of
from optilock.dialects.queue_sql import Place
from optilock.dialects.queue_sql.parts import was_undone
from optilock.dialects.transient import answer_unknown, cause_of
from optilock.errors import (
    CommitOutcomeUnknown,
    ConfigurationError,
    WouldOverwrite,
    described,
)
from optilock.queue.errors import QueueNotFound
from optilock.queue.limits import WEEK, Duration, Limits, count, milliseconds, ttl, word
from optilock.queue.messages import Draft, Message, Received, Sent, receipt_of
from optilock.queue.operations import KEEP, Operations
from optilock.tables.queue import LONGEST, NAME, message_tables

__all__ = ["Calls", "Work"]

R = TypeVar("R")
Work = Callable[[Connection, bool], R]

#: Conflicts of the queue's own statements, after which they are run again.
_AGAIN = frozenset({Cause.CONFLICT, Cause.DEADLOCK})
ATTEMPTS = 5


class Repeatable(Generic[R]):
    """Work that finds out whether it was done before."""

    def __init__(self, work: Work[R]) -> None:
        self._work = work

    def __call__(self, connection: Connection, inside: bool) -> R:
        return self._work(connection, inside)


def _once_only(unknown: str, work: Work[R]) -> Work[R]:
    """The same work; an answer that is lost is told, because a second run would do it twice."""

    def run(connection: Connection, inside: bool) -> R:
        try:
            return work(connection, inside)
        except DBAPIError as error:
            if inside or not _is_unanswered(error):
                raise
            raise CommitOutcomeUnknown(unknown) from error

    return run


def _is_unanswered(error: DBAPIError) -> bool:
    """May a statement that commits itself be stored all the same?"""
    return not was_undone(error) and answer_unknown(error)


_SENDING = (
    "the connection was lost while messages were sent to the queue {name!r}, which commits by"
    " itself, so they are either sent or not, and nobody can tell from here. Send each with a"
    " dedup= of its own, and it can be sent again; or send in a transaction (session=)."
)
_ENDING = (
    "the connection was lost while messages of the queue {name!r} were deleted, changed or handed"
    " back, which commits by itself, so that is either done or not, and nobody can tell from here."
    " A message that is not done comes again when it is visible; call again, and what is done is"
    " told as MessageNotFound or ReceiptExpired."
)


class Calls:
    """The settings of a queue, and its calls as work."""

    def __init__(
        self,
        engine: Any,
        name: str,
        *,
        tenant: str = "",
        visibility: Duration = 30,
        ttl: Duration | None = WEEK,
        max_receives: int | None = 5,
        dead_letters: str | None = None,
        dedup_window: Duration = 300,
        max_bytes: int = 1_048_576,
        table: str = NAME,
        schema: str | None = None,
        listen: bool = True,
        clock: ColumnElement[Any] | None = None,
    ) -> None:
        """``clock`` is SQL of the time, in UTC, in place of the database's own: for tests."""
        sync = getattr(engine, "sync_engine", engine)
        if not isinstance(sync, Engine):
            raise ConfigurationError(
                f"A queue takes an Engine or an AsyncEngine, not {described(engine)}."
            )
        self.engine = engine
        self.name = word("name", name)
        self.tenant = word("tenant", tenant, empty=True)
        self.tables = message_tables(table=word("table", table), schema=schema)
        self._listen = listen
        limits = Limits(
            visibility=milliseconds("visibility", visibility, least=0.001),
            ttl=_ttl(ttl),
            max_receives=None if max_receives is None else count("max_receives", max_receives),
            dead_letters=_dead_letters(self.name, dead_letters),
            dedup_window=milliseconds("dedup_window", dedup_window),
            max_bytes=count("max_bytes", max_bytes, most=1 << 30),
        )
        place = Place(self.tables, self.tenant, self.name, clock)
        self._operations = Operations(database_of(sync.dialect).messages(place), limits)
        buried = replace(limits, max_receives=None)
        there = Place(self.tables, self.tenant, limits.dead_letters, clock)
        self._dead = Operations(database_of(sync.dialect).messages(there), buried)
        # Of other pools a connection may be somebody else's at the same time, or the only one.
        self._keeps = isinstance(sync.pool, QueuePool) and sync.pool.size() != 1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def visibility(self) -> float:
        """Seconds for which a message that is received is hidden."""
        return self._operations.limits.visibility / 1000

    def _options_of_dead(self) -> dict[str, Any]:
        messages = self.tables.messages
        return {
            "tenant": self.tenant,
            "max_receives": None,
            "visibility": self.visibility,
            "table": messages.name,
            "schema": messages.schema,
            "listen": self._listen,
            "clock": self._operations.store.place.clock,
        }

    # -- work ------------------------------------------------------------------------------------

    def _sending(self, drafts: Iterable[Any]) -> Work[list[Sent]]:
        made = [one if isinstance(one, Draft) else Draft(one) for one in drafts]
        ready = [self._operations.ready(draft) for draft in made]
        if not ready:
            return lambda connection, inside: []

        def work(connection: Connection, inside: bool) -> list[Sent]:
            return self._operations.send(connection, ready, inside)

        if all(one.dedup is not None for one in ready):
            return Repeatable(work)
        return _once_only(_SENDING.format(name=self.name), work)

    def _receiving(
        self, n: int, visibility: Duration | None, done: Iterable[Message]
    ) -> Work[Received]:
        count("n", n)
        length = self._length(visibility, least=0.001)
        ended = list(done)
        operations = self._operations
        return lambda connection, inside: operations.receive(connection, n, length, ended)

    def _length(self, visibility: Duration | None, *, least: float) -> int:
        if visibility is None:
            return self._operations.limits.visibility
        return milliseconds("visibility", visibility, least=least)

    def _deleting(self, messages: tuple[Message | Sent, ...], *, archive: bool) -> Work[None]:
        operations = self._operations
        for message in messages:
            _require_receipt(message)
        if not messages:
            return lambda connection, inside: None
        end = operations.archive if archive else operations.delete
        return self._ending(lambda connection, inside: end(connection, messages, inside))

    def _ending(self, work: Work[R]) -> Work[R]:
        return _once_only(_ENDING.format(name=self.name), work)

    def _updating(self, message: Any, visibility: Any, body: Any) -> Work[Any]:
        _require_receipt(message)
        length = milliseconds("visibility", visibility)
        operations = self._operations

        def work(connection: Connection, inside: bool) -> Any:
            token = operations.update(connection, message, length, body, inside)
            changed = {} if body is KEEP or isinstance(message, Sent) else {"body": body}
            return replace(message, receipt=receipt_of(message.id, token), **changed)

        return self._ending(work)

    def _failing(self, message: Any, error: object, delay: Duration) -> Work[bool]:
        _require_receipt(message)
        text, length = error_text(error), milliseconds("delay", delay)
        operations, final = self._operations, isinstance(error, WouldOverwrite)
        return self._ending(
            lambda connection, inside: operations.fail(
                connection, message, text, length, inside, final=final
            )
        )

    def _beating(self, messages: Iterable[Any], visibility: Duration | None) -> Work[set[int]]:
        length = self._length(visibility, least=0.001)
        operations, held = self._operations, list(messages)
        for message in held:
            _require_receipt(message)
        return lambda connection, inside: operations.beat(connection, held, length)

    def _giving_back(self, messages: Iterable[Any]) -> Work[None]:
        operations, held = self._operations, list(messages)
        for message in held:
            _require_receipt(message)
        return lambda connection, inside: operations.give_back(connection, held)

    # -- errors ----------------------------------------------------------------------------------

    def _again(self, error: DBAPIError, work: Work[Any]) -> bool:
        """Would the same work, which is undone or finds itself done, have a chance?"""
        if isinstance(work, Repeatable) and _is_unanswered(error):
            return True
        return not error.connection_invalidated and cause_of(error) in _AGAIN

    def _require_tables(self, connection: Connection, error: DBAPIError) -> None:
        """Is that why the statement failed?"""
        if error.connection_invalidated or cause_of(error) is not Cause.OTHER:
            return
        messages = self.tables.messages
        try:
            there = inspect(connection).has_table(messages.name, schema=messages.schema)
        except DBAPIError:  # the first error is the news
            return
        if not there:
            raise QueueNotFound(messages.fullname) from None


def error_text(error: object) -> str:
    """What is stored of an error: its class and its message."""
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    if not isinstance(error, str):
        raise ConfigurationError("error takes an exception or a text.")
    return error.encode("utf-8", "replace").decode()[:2_000].replace("\0", "")


def _require_receipt(message: object) -> None:
    if not isinstance(message, (Message, Sent)):
        raise ConfigurationError(
            f"This takes messages as they were received or sent, not {described(message)}."
        )
    if message.receipt is None:
        raise ConfigurationError(
            f"The message {message.id} has no receipt: it was only looked at, or it is a duplicate."
            " Receive it first."
        )


def _dead_letters(name: str, given: str | None) -> str:
    """The name of the queue for messages that were received too often."""
    if given:
        return word("dead_letters", given)
    dead = f"{name}.dead"
    if len(dead) > LONGEST:
        raise ConfigurationError(
            f"The name of the queue has {len(name)} characters, and that of its dead letters would"
            f" be longer than {LONGEST}: take a shorter one, or name that queue yourself,"
            " dead_letters=."
        )
    return dead


_ttl = ttl
