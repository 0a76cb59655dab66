"""The end of ``update()`` and ``upsert()`` of advanced-alchemy, which tests do without.

Its repositories read the row, copy the payload to it, and then do this, in a module of that name.
"""

from __future__ import annotations

from typing import Any

_NAMES: dict[str, Any] = {"__name__": "advanced_alchemy.repository._sync"}
exec(
    """
def attach_to_session(session, row):
    return session.merge(row, load=True)


async def attach_to_async_session(session, row):
    return await session.merge(row, load=True)
""",
    _NAMES,
)
attach_to_session = _NAMES["attach_to_session"]
attach_to_async_session = _NAMES["attach_to_async_session"]
