"""What each call sends, waits for and decides, without IO.

A call is a generator of steps: a request to send, or the seconds to wait. It is sent the response
to each request, or the error in its place. ``Client`` and ``AsyncClient`` run the same steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from uuid import uuid4

from httpx2 import URL, AsyncClient, Client, Request, RequestError, Response

from optilock_client import errors
from optilock_client.memory import Memory, Representation, strong_tag
from optilock_client.merging import ABSENT, Conflict, Settle, is_same, merge, patch_of
from optilock_client.waits import backoff, retry_after

__all__ = ["Answer", "Calls", "Change", "Method", "Steps"]

T = TypeVar("T")
#: A response; or why there is none; or nothing, after a wait.
Answer = Response | RequestError | None
Steps = Generator[Request | float, Answer, T]
#: Returns the new value, or changes its argument and returns ``None``.
Change = Callable[[Any], Any]
Method = Literal["PUT", "PATCH"]

#: Not done yet (429, 503), or done or not (500, 502, 504).
_UNCLEAR = frozenset({429, 500, 502, 503, 504})
#: A compressed representation has another ETag, often one that no write can demand. And a cache
#: could answer with an older one.
_READ = {"Accept": "application/json", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}


@dataclass(frozen=True)
class Calls:
    """The steps of all calls."""

    http: Client | AsyncClient
    attempts: int
    longest_wait: float
    memory: Memory

    def get(self, url: str, call: str = "get") -> Steps[Representation]:
        """Read a resource; 304 means that it is as remembered."""
        request = self._request("GET", url, _READ)
        remembered = self.memory.get(request.url)
        if remembered.tag and remembered.content is not None:
            request.headers["If-None-Match"] = remembered.tag
        answer, _ = yield from self._ask(call, request)
        if answer.status_code == 304 and "If-None-Match" in request.headers:
            return remembered
        if answer.status_code != 200:
            raise _unexpected(call, request, answer)
        found = Representation(strong_tag(answer), answer.content)
        try:
            found.value  # noqa: B018
        except (ValueError, RecursionError):
            raise _unexpected(call, request, answer) from None
        self.memory.put(request.url, found)
        return found

    def edit(
        self,
        url: str,
        change: Change,
        seen: Any,
        settle: Settle | None,
        method: Method,
        unconditional: bool,
    ) -> Steps[Any]:
        """Read, change, write; while others are first or no answer is clear: read, merge, write.

        It ends when the merged value is stored, so also when an earlier request, whose answer was
        lost, has stored it.
        """
        found = yield from self.get(url, "edit")
        base = found.value if seen is ABSENT else seen
        mine = _changed(change, base)
        lost = False
        for attempt in range(self.attempts):
            theirs = found.value
            merged, conflicts = merge(base, mine, theirs, settle)
            if conflicts:
                raise _conflict(self._request("GET", url, {}).url, conflicts, mine, theirs, lost)
            if is_same(merged, theirs):
                return theirs
            request = self._write(method, url, theirs, merged)
            self._demand("edit", request, found.tag, unconditional)
            answer = yield request
            if isinstance(answer, Response) and _is_done(answer):
                self.memory.put(request.url, Representation(strong_tag(answer), None))
                return merged
            is_unclear = _is_unclear(answer)
            if not is_unclear and _status(answer) not in (409, 412):
                raise _failure("edit", request, answer)
            lost = lost or is_unclear
            if attempt + 1 < self.attempts:
                yield self._wait("edit", request, answer, attempt)
                before, found = found.tag, (yield from self.get(url, "edit"))
                if _status(answer) == 409 and not is_unclear and found.tag == before:
                    raise _failure("edit", request, answer)  # no other writer was first
        raise _failure("edit", request, answer)

    def once(self, url: str, value: Any, key: str | None) -> Steps[Response]:
        """POST with a key, which stays the same when the request is sent again."""
        key = key or str(uuid4())
        if not key.isascii() or not key.isprintable() or {*key} & {'"', "\\"}:
            raise ValueError("once(key=...) takes printable ASCII without quotes and backslashes.")
        # A string of structured fields (RFC 9651), as the draft of Idempotency-Key asks for.
        request = self._request("POST", url, {"Idempotency-Key": f'"{key}"'}, value)
        answer, _ = yield from self._ask("once", request)
        if not answer.is_success:
            raise _unexpected("once", request, answer)
        return answer

    def delete(self, url: str, unconditional: bool) -> Steps[None]:
        """DELETE the version that was read last."""
        request = self._request("DELETE", url, {})
        tag = self.memory.get(request.url).tag
        self._demand("delete", request, tag, unconditional)
        answer, attempt = yield from self._ask("delete", request)
        self.memory.forget(request.url)
        if _is_done(answer):
            return
        now = answer
        if attempt and answer.status_code == 412:  # also of what is gone: RFC 9110, 13.1.1
            now, _ = yield from self._ask("delete", self._request("GET", url, _READ))
        if not (attempt and now.status_code in (404, 410)):
            raise _unexpected("delete", request, answer)

    def check_conditions(self, url: str) -> Steps[None]:
        """PUT what is stored, with a condition that no version fulfils."""
        call = "check_conditions"
        found = yield from self.get(url, call)
        request = self._write("PUT", url, None, found.value)
        self._demand(call, request, found.tag, False)
        request.headers["If-Match"] = f'"{uuid4()}"'
        answer, _ = yield from self._ask(call, request)
        if answer.is_success:
            raise errors.ConditionIgnored(
                f"{_tried(call, request.url)}: it stored a PUT whose If-Match did not match. Edits"
                " of two clients at once can be lost there. Let the server compare If-Match.",
                url=errors.shown(request.url),
            )
        if answer.status_code != 412:
            raise _unexpected(call, request, answer)

    # -- requests ----------------------------------------------------------------------------------

    def _request(
        self, method: str, url: str, headers: dict[str, str], value: Any = ABSENT
    ) -> Request:
        body = {} if value is ABSENT else {"json": value}
        return self.http.build_request(method, url, headers=headers, **body)

    def _write(self, method: Method, url: str, stored: Any, wanted: Any) -> Request:
        if method == "PUT":
            return self._request("PUT", url, {}, wanted)
        patch = patch_of(stored, wanted)
        request = self._request("PATCH", url, {}, patch)
        if patch is None:
            raise errors.ClientError(
                f"{_tried('edit', request.url)}: a PATCH cannot hold this change, because servers"
                " that merge objects in objects would store another value than servers that do"
                " not. Send it with method='PUT'. Nothing was sent.",
                url=errors.shown(request.url),
            )
        return request

    def _demand(self, call: str, request: Request, tag: str | None, unconditional: bool) -> None:
        if tag is not None:
            request.headers["If-Match"] = tag
        elif not unconditional:
            raise errors.NoETag(
                f"{_tried(call, request.url)}: no strong ETag of it is known, so a write could"
                " overwrite an unseen change. Nothing was written. Call get() first. If its answer"
                " has no ETag or a weak one (W/, often of a proxy that compresses), only the server"
                " can cure that. unconditional=True writes all the same: the last write wins.",
                url=errors.shown(request.url),
            )

    def _ask(self, call: str, request: Request) -> Steps[tuple[Response, int]]:
        """Send the same request until the answer is clear; the answer, and how many were not."""
        for attempt in range(self.attempts):
            answer = yield request
            if isinstance(answer, Response) and not _is_unclear(answer):
                return answer, attempt
            if attempt + 1 < self.attempts:
                yield self._wait(call, request, answer, attempt)
        raise _failure(call, request, answer)

    def _wait(self, call: str, request: Request, answer: Answer, attempt: int) -> float:
        asked = retry_after(answer) if isinstance(answer, Response) else 0.0
        if asked > self.longest_wait:
            raise _failure(call, request, answer)
        return asked + backoff(attempt)


def _changed(change: Change, base: Any) -> Any:
    edited = copy.deepcopy(base)
    returned = change(edited)
    return edited if returned is None else returned


# -- answers ---------------------------------------------------------------------------------------


def _status(answer: Answer) -> int | None:
    return answer.status_code if isinstance(answer, Response) else None


def _is_unclear(answer: Answer) -> bool:
    """Return whether to send a request again. 409 with Retry-After: its key is in use."""
    if not isinstance(answer, Response):
        return True
    in_use = answer.status_code == 409 and "Retry-After" in answer.headers
    return in_use or answer.status_code in _UNCLEAR


def _is_done(answer: Response) -> bool:
    """Return whether a write is stored. 202 promises only to look at it (RFC 9110, 15.3.3)."""
    return answer.is_success and answer.status_code != 202


_WHY = {
    202: "The server may store it later, or refuse it. Read what is stored before you go on.",
    401: "The server does not know who you are. Pass auth= or headers= to the httpx2 client.",
    403: "You may not do this.",
    404: "There is nothing there, or nothing any more.",
    409: "It contradicts what is stored.",
    410: "There is nothing there any more.",
    412: "It was changed after it was read. Read it again, and decide again.",
    422: "The server does not take these values, or the Idempotency-Key is of another request.",
    428: "The server stores no write without If-Match, and has sent no strong ETag that this call"
    " could demand. Let it send an ETag with each GET.",
    429: "There were too many requests. Call again later.",
}


def _tried(call: str, url: URL) -> str:
    return f"{call}({errors.shown(url)})"


def _unexpected(call: str, request: Request, answer: Response) -> errors.UnexpectedAnswer:
    status = answer.status_code
    if status in _WHY:
        why = _WHY[status]
    elif answer.is_success:
        why = "It is no JSON, but perhaps a page for people, such as a login."
    elif answer.is_redirect:
        why = "It is a redirect, perhaps to a login. Call the address where the resource is."
    elif status >= 500:
        why = "The server failed. Read what is stored before you send a change again."
    else:
        why = "Read the answer in .body."
    return errors.UnexpectedAnswer(
        f"{_tried(call, request.url)}: {request.method} was answered {status}. {why}",
        url=errors.shown(request.url),
        status=status,
        body=answer.content,
        retry_after=retry_after(answer),
        key=_key(request),
    )


def _failure(call: str, request: Request, answer: Answer) -> errors.ClientError:
    """Return the error after the last attempt."""
    if isinstance(answer, Response):
        return _unexpected(call, request, answer)
    again = "Send it again with key=error.key: a server that knows such keys does it once."
    if request.method != "POST":
        again = "Read it before you send a change again." if call != "get" else "Call it later."
    error = errors.NoAnswer(
        f"{_tried(call, request.url)}: no answer came to {request.method}"
        f" ({type(answer).__name__}). A write that was sent may be stored or not. {again}",
        url=errors.shown(request.url),
        key=_key(request),
    )
    error.__cause__ = answer
    return error


def _key(request: Request) -> str | None:
    sent: str = request.headers.get("Idempotency-Key", "")
    return sent.strip('"') or None


def _conflict(
    url: URL, conflicts: tuple[Conflict, ...], mine: Any, theirs: Any, lost: bool
) -> errors.MergeConflict:
    places = ", ".join(".".join(one.path) or "the whole value" for one in conflicts)
    own = (
        " An earlier request of this call, whose answer was lost, may be that change."
        if lost
        else ""
    )
    return errors.MergeConflict(
        f"{_tried('edit', url)}: another change of {places} was first, to another value.{own}"
        " Show both values (error.conflicts), and edit again with seen=error.theirs; or pass"
        " settle=, which chooses one.",
        url=errors.shown(url),
        conflicts=conflicts,
        mine=mine,
        theirs=theirs,
    )
