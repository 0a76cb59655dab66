"""The request that is served here, and whether anybody has compared its condition.

A client that sends ``If-Match`` says: only if nobody has written since. A server that ignores that
writes over what the client has not seen, and answers 200. So the condition of a request and the
writes of its units meet at COMMIT: where nothing has compared it, COMMIT of a versioned row is
:class:`~optilock.errors.ConditionNotCompared`.

The web layers do this by themselves (:mod:`optilock.web`). For another framework::

    with serving("PUT", request.headers.items()):       # around all that the request does
        ...

``expect``, ``apply``, the entity operations and leases compare with the tags of the request, and so
do ``Precondition.judge`` and ``evaluate``. Only a comparison that holds counts, so an error that is
caught lets nothing through. Where you compare in another way, say so (:func:`compared`). A write's
``If-Match``, ``If-None-Match`` and ``If-Unmodified-Since`` are conditions; what a read is asked for
decides about its answer, and not about rows.

A request is known where it is served, in its tasks, and in threads that are given its context
(``asyncio.to_thread``, the thread pools of the frameworks). A ``threading.Thread``, an executor, or
another process knows of none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from optilock.conditions.fields import MATCH, NONE_MATCH, UNMODIFIED, Fields, date, sent_fields
from optilock.errors import BadPrecondition

__all__ = [
    "Request",
    "before_first",
    "compared",
    "current",
    "found_by",
    "not_met",
    "serving",
    "there_are",
]

_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT")
_OF_WRITES = (MATCH, NONE_MATCH, UNMODIFIED)


class Request:
    """One request; the same object in all of its threads and tasks."""

    __slots__ = ("compared", "method", "sent")

    #: The conditions of a write, by the names of their fields.
    sent: dict[str, str]

    def __init__(self, method: str, fields: Fields) -> None:
        self.method = method.upper()
        self.sent = {}
        if self.method not in _SAFE:
            try:
                sent = sent_fields(fields, False)
            except BadPrecondition:  # whoever compares it says what is wrong with it
                self.sent = {"a condition that cannot be read": ""}
            else:
                self.sent = {name: sent[name] for name in _OF_WRITES if name in sent}
                if MATCH in sent or date(sent.get(UNMODIFIED, "")) is None:
                    self.sent.pop(UNMODIFIED, None)  # to be ignored (section 13.1.4)
        #: Has anybody compared its condition?
        self.compared = False
        if self.sent and not there_are:
            _there_may_be()

    @property
    def is_ignored(self) -> bool:
        """Is there a condition that nobody has compared so far?"""
        return bool(self.sent) and not self.compared

    @property
    def forbids_change(self) -> bool:
        """Is all that it demands that there is nothing yet, as an INSERT does by itself?"""
        return list(self.sent) == [NONE_MATCH]


_here: ContextVar[Request | None] = ContextVar("optilock_request", default=None)
#: Others who know of a request: frameworks with a context of their own.
_finders: list[Callable[[], Request | None]] = []


#: May a request with a condition be served? A look that is no call of Python.
there_are: list[bool] = []
#: Called before the first request with a condition may be served.
_first: list[Callable[[], None]] = []


def before_first(call: Callable[[], None]) -> None:
    """Call this, once, before the first request with a condition may be served."""
    _first.append(call)


def _there_may_be() -> None:
    """Requests with a condition: from here on they are looked for."""
    if not there_are:
        for call in _first:
            call()
        there_are.append(True)


def current() -> Request | None:
    """The request that is served here."""
    found = _here.get()
    if found is None:
        for find in _finders:
            found = find()
            if found is not None:
                break
    return found


def found_by(find: Callable[[], Request | None]) -> None:
    """From here on, ask ``find`` for the request where :func:`serving` says nothing."""
    if find not in _finders:
        _finders.append(find)
        _there_may_be()


def compared(tags: Iterable[str] | None = None) -> None:
    """The condition of the request holds, or these ``tags`` do, if they are of its condition.

    Tags out of a body are no answer to another tag in ``If-Match``.
    """
    request = current()
    if request is not None and request.is_ignored:
        match = request.sent.get(MATCH)
        known = tags if match is not None and match.strip() != "*" else None
        named = [tag.strip('"') for tag in known or ()]
        request.compared = not named or any(name in (match or "") for name in named)


def not_met() -> None:
    """The condition of the request is not true, so that nothing is to be written for it."""
    request = current()
    if request is not None:
        request.compared = False


@contextmanager
def serving(request: str | Request, fields: Fields = ()) -> Iterator[Request]:
    """Serve a request, by its method and its raw field lines, until the block is left."""
    served = Request(request, fields) if isinstance(request, str) else request
    token = _here.set(served)
    try:
        yield served
    finally:
        _here.reset(token)
