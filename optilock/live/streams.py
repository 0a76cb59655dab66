"""One open page: the events of its row, as bytes of a stream of server-sent events.

``id`` is the row's tag, so ``Last-Event-ID`` makes a reconnect exact. A slow client gets the newest
state alone, with the names of all fields that were changed since. A stream ends after a time, and
the browser comes back: its rights are then checked again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from random import randrange
from types import MappingProxyType

from optilock.live.rows import RowState
from optilock.preconditions.entity_tags import RowTags

MEDIA_TYPE = "text/event-stream"
#: No cache keeps a stream, and no proxy collects its events.
HEADERS: Mapping[str, str] = MappingProxyType(
    {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
)


class Follower:
    """One open page, and the state of its row that it knows: version, and whether it is deleted."""

    def __init__(self, known: object) -> None:
        self._known = known
        self._pending: RowState | None = None
        self.arrived = asyncio.Event()
        self.ended = False

    def tell(self, row: RowState) -> None:
        """Tell the page of the row, unless it knows this state."""
        state = (row.version, row.deleted)
        if state == self._known:
            return
        before, self._known = self._pending, state
        if before is not None:
            fields = None
            if before.fields is not None and row.fields is not None:
                fields = before.fields | row.fields
            row = replace(row, fields=fields)
        self._pending = row
        self.arrived.set()

    def end(self) -> None:
        self.ended = True
        self.arrived.set()

    async def next(self, seconds: float) -> RowState | None:
        """Return the next change; ``None`` after so many seconds, or if the stream ends."""
        try:
            async with asyncio.timeout(seconds):
                await self.arrived.wait()
        except TimeoutError:
            return None
        self.arrived.clear()
        row, self._pending = self._pending, None
        return row


class EventStream:
    """The events of one row: an asynchronous iterable of bytes, for an answer with ``headers``."""

    media_type = MEDIA_TYPE
    headers = HEADERS

    def __init__(
        self,
        follow: Callable[[Follower], AbstractContextManager[None]],
        row: RowState,
        seen: str | None,
        tags: RowTags,
        *,
        heartbeat: float,
        lifetime: float,
    ) -> None:
        self._follow, self._row, self._seen, self._tags = follow, row, seen, tags
        self._heartbeat, self._lifetime = heartbeat, lifetime

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield an event for each change, and comments in between."""
        row, clock = self._row, asyncio.get_running_loop().time
        up_to_date = self._seen is None or row.version in self._tags.named([self._seen])
        follower = Follower((row.version, False) if up_to_date else None)
        follower.tell(row)
        end = clock() + self._lifetime
        with self._follow(follower):
            # Not all at the same moment, after the server was away.
            yield b"retry: %d\n\n" % randrange(2_000, 6_000)
            while not follower.ended and (left := end - clock()) > 0:
                change = await follower.next(min(self._heartbeat, left))
                yield b": still here\n\n" if change is None else self._event(change)

    def _event(self, row: RowState) -> bytes:
        tag = row.tag(self._tags)
        id_ = "" if tag is None else f"id: {tag}\n"
        return f"{id_}data: {json.dumps(row.as_dict(self._tags))}\n\n".encode()
