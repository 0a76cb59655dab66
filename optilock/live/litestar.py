"""The answer with a row's events, for Litestar.

::

    @get("/pages/{key:int}/changes")
    async def follow(key: int, request: Request[Any, Any, Any]) -> Stream:
        return await stream_changes(request, changes, Page, key, authorize=None)
"""

from __future__ import annotations

from typing import Any

from optilock.errors.base import extra
from optilock.live.changes import Changes
from optilock.live.rows import Authorize
from optilock.preconditions.entity_tags import ETags

with extra("litestar"):
    from litestar import Request
    from litestar.response import Stream

__all__ = ["stream_changes"]


async def stream_changes(
    request: Request[Any, Any, Any],
    changes: Changes,
    model: type[Any],
    key: Any,
    *,
    authorize: Authorize,
    etags: ETags | None = None,
) -> Stream:
    """Return an answer with the row's events; its arguments are those of ``Changes.stream``.

    The tag that the page shows is the query's ``seen``, and after a reconnect ``Last-Event-ID``.

    Raises:
        NotFound: there is no such row, or ``authorize`` has refused it (404).
        ConfigurationError: the class has no version, or nothing runs ``async with changes``.
    """
    seen = request.headers.get("last-event-id") or request.query_params.get("seen")
    events = await changes.stream(model, key, authorize=authorize, seen=seen, etags=etags)
    return Stream(aiter(events), headers=dict(events.headers), media_type=events.media_type)
