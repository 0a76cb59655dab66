"""An answer of success to a conditional request is sent when its writes are stored.

A route that writes a versioned row for a request with a condition, and forgets ``commit()``, would
answer 200 for a change that its session's ``close()`` has undone. So such an answer waits for the
end of the open transaction, and is a 500 if that is no COMMIT. A dependency that commits after its
``yield`` has its conflict as an answer that way, too. Other answers are sent at once.

Sessions have to be closed inside of the middleware that calls this.
"""

from __future__ import annotations

import logging
from typing import Any

from optilock.conditions.request import Request, serving
from optilock.web.problems import MEDIA_TYPE, NOT_STORED, Problem

_log = logging.getLogger("optilock")


def not_stored(served: Request) -> Problem | None:
    """Return the answer to a request whose writes are not stored, and log it; or None."""
    tables = dict.fromkeys(served.unstored())
    if not tables:
        return None
    what = ", ".join(tables)
    _log.error(
        "The %s request carries %s, versioned rows were changed for it (%s), and the session was"
        " not committed: call session.commit(), or use `with sessions.begin() as session`, or a"
        " unit of work. The answer is 500, because nothing was stored.",
        served.method,
        " and ".join(served.sent),
        what,
    )
    return NOT_STORED.problem()


async def serve_and_answer(served: Request, app: Any, scope: Any, receive: Any, send: Any) -> None:
    """Serve a request of an ASGI application; ``app`` takes the other three arguments."""
    held: list[Any] = []

    async def send_when_stored(message: Any) -> None:
        begins = message["type"] == "http.response.start" and message["status"] < 400
        if held or (begins and served.unstored()):
            held.append(message)
        else:
            await send(message)

    with serving(served):
        await app(scope, receive, send_when_stored if served.sent else send)
    if not held:
        return
    problem = not_stored(served)
    if problem is None:
        for message in held:
            await send(message)
        return
    headers = [(b"content-type", MEDIA_TYPE.encode())]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": problem.content()})
