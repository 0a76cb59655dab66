"""Clients of the probe: each one announces its writes, and waits after a 429.

No message has a value of a header, a body, or the text of an error: they may contain credentials.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from types import TracebackType
from typing import Self

import httpx

from optilock.probe.addresses import shown_address
from optilock.probe.rules import Stopped

#: The members of the race.
SIX = 6
_READS = ("GET", "HEAD")
_CONDITIONS = ("If-Match", "If-None-Match", "If-Unmodified-Since", "Idempotency-Key")
#: After a 429: how often a request is sent again, and the longest wait in seconds.
_TRIES, _LONGEST = 5, 60.0


class Clients:
    """Two clients, and six for the race; ``tell`` receives a line before each write."""

    def __init__(self, headers: Mapping[str, str], tell: Callable[[str], None]) -> None:
        self.requests = self.writes = 0
        self._tell = tell
        self._lock = Lock()
        self._opened = ExitStack()
        # The system's certificates. Nothing else of the environment takes part: it could add
        # credentials (.netrc), or lead addresses of this machine through a proxy.
        context = ssl.create_default_context()
        fields = {"Accept-Encoding": "identity", **headers}
        made = [
            self._opened.enter_context(
                httpx.Client(headers=fields, timeout=30, trust_env=False, verify=context)
            )
            for _ in range(2 + SIX)
        ]
        self.one, self.two, *self.six = [Client(self, http) for http in made]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._opened.close()

    def note(self, method: str, url: str, fields: Mapping[str, str]) -> None:
        """Count a request, and announce a write."""
        with self._lock:
            self.requests += 1
            if method in _READS:
                return
            self.writes += 1
            named = ", ".join(name for name in _CONDITIONS if name in fields)
            self._tell(f"{self.writes:4} {method} {shown_address(url)} {named or 'no condition'}")


class Client:
    """One client, with its own connections."""

    def __init__(self, clients: Clients, http: httpx.Client) -> None:
        self._clients, self._http = clients, http

    def send(
        self,
        method: str,
        url: str,
        fields: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Send one request, and again if the server limits the rate.

        Raises:
            Stopped: there is no answer, or only 429.
        """
        fields = fields or {}
        for attempt in range(_TRIES):
            self._clients.note(method, url, fields)
            try:
                answer = self._http.request(method, url, headers=fields, content=content)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise Stopped(f"{method} had no answer ({type(error).__name__}).") from None
            if answer.status_code != 429:
                return answer
            time.sleep(_seconds(answer.headers.get("Retry-After", ""), 2**attempt))
        raise Stopped(f"The server limits the rate: {method} was answered 429 {_TRIES} times.")


def _seconds(retry_after: str, otherwise: float) -> float:
    """Return the wait that a server asks for, in seconds or as a date."""
    try:
        if retry_after.isdigit():
            otherwise = float(retry_after)
        elif retry_after:
            until = parsedate_to_datetime(retry_after)
            otherwise = (until - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        pass
    return min(max(otherwise, 0.0), _LONGEST)
