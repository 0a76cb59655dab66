"""The resource as it is read and written: what was seen, what was sent, what shows afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optilock.probe.clients import Client, Clients
from optilock.probe.places import Place, place_in
from optilock.probe.rules import Stopped

#: Seconds after which a read is tried again that does not show a write which was accepted.
_LATE = (0.2, 0.4, 0.8, 1.6)
#: Apache's ETag is weak in the first second after a change, and strong from then on.
_WEAK_SECOND = 1.3


@dataclass(frozen=True)
class Seen:
    """An answer to GET."""

    status: int
    tag: str | None
    kind: str
    text: str
    coding: str = ""

    @property
    def weak(self) -> bool:
        return (self.tag or "").startswith("W/")


@dataclass(frozen=True)
class Written:
    """A value that a client sent, and the answer."""

    value: Any
    status: int
    text: str
    tag: str | None

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300


class Resource:
    """One address. ``first`` is the answer that the probe has seen first."""

    def __init__(self, url: str, clients: Clients) -> None:
        self.url, self.clients = url, clients
        self.method = "PUT"
        #: Whether the server accepts the ETag of its own GET.
        self.usable = True
        self._late = 0.0
        self.first = self.look()
        if self.first.status != 200:
            raise Stopped(f"GET was answered {self.first.status}{_advice(self.first.status)}.")
        if self.first.weak:
            time.sleep(_WEAK_SECOND)
            self.first = self.look()
        self.place: Place

    def choose(self, field: str | None) -> None:
        """Choose the place to change."""
        self.place = place_in(self.first.text, self.first.kind, field)

    def look(self, client: Client | None = None, **fields: str) -> Seen:
        """Return what a client sees now. Underscores stand for the hyphens of a field's name."""
        time.sleep(self._late)
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        answer = (client or self.clients.two).send("GET", self.url, named)
        head = answer.headers
        coding, kind = head.get("Content-Encoding", ""), head.get("Content-Type", "text/plain")
        return Seen(answer.status_code, head.get("ETag"), kind, answer.text, coding)

    def current(self) -> Seen:
        """Return what shows now, with a strong ETag if the server will have one in a second.

        Raises:
            Stopped: the resource does not show.
        """
        seen = self.look()
        if seen.status != 200:
            raise Stopped(f"GET was answered {seen.status}.")
        if seen.weak and not self.first.weak:
            time.sleep(_WEAK_SECOND)
            seen = self.look()
        return seen

    def value(self, seen: Seen) -> Any:
        return self.place.read(seen.text)

    def write(
        self,
        client: Client,
        seen: Seen,
        fields: Mapping[str, str],
        value: Any = None,
    ) -> Written:
        """Send the body that a client has seen, with one place changed."""
        value = self.place.new() if value is None else value
        whole = self.method != "PATCH"
        text = self.place.changed(seen.text, value) if whole else self.place.alone(value)
        sent = {"Content-Type": self.first.kind, **fields}
        answer = client.send(self.method, self.url, sent, text.encode())
        tag = answer.headers.get("ETag")
        return Written(value, answer.status_code, answer.text, tag)

    def add(self, members: Mapping[str, Any], seen: Seen) -> None:
        """Send what shows now with these members, so that edits of others stay."""
        fields = {"If-Match": seen.tag} if seen.tag is not None and self.usable else {}
        sent = {"Content-Type": self.first.kind, **fields}
        text = json.dumps({**json.loads(seen.text), **members})
        self.clients.one.send("PUT", self.url, sent, text.encode())

    def change(self, seen: Seen, value: Any = None) -> tuple[Written, Seen]:
        """Write as the client that has seen the current version; what shows afterwards."""
        fields = {"If-Match": seen.tag} if seen.tag is not None and self.usable else {}
        written = self.write(self.clients.one, seen, fields, value)
        after = self.current()
        for pause in _LATE if written.accepted else ():
            if self.value(after) == written.value:
                break
            time.sleep(pause)
            after = self.current()
            if self.value(after) == written.value:  # from now on reads wait as long
                self._late = sum(_LATE[: _LATE.index(pause) + 1])
        return written, after


def _advice(status: int) -> str:
    return ': give the credentials with -H "Authorization: …"' if status in (401, 403) else ""
