"""The place in a body that the probe changes, and the values that it puts there.

All values have one length: a server whose ETag is the size and the second of a change shows the
same ETag for two of them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from optilock.errors import ConfigurationError

#: Words in the names of members that servers set or check themselves.
_OF_SERVERS = re.compile(
    "created|date|email|etag|href|id|key|kind|links|modified|rev|revision|schema|self|slug|status"
    "|tag|time|timestamp|type|updated|url|uri|uuid|version"
)


class Place(Protocol):
    """Reads and writes the value."""

    @property
    def name(self) -> str:
        """The name that is shown."""

    def read(self, text: str) -> Any:
        """Return the value in a body; ``None`` if it is not there."""

    def changed(self, text: str, value: Any) -> str:
        """Return the body with another value, and everything else as it was."""

    def alone(self, value: Any) -> str:
        """Return the body of a PATCH."""

    def new(self) -> Any:
        """Return a value that no client has sent yet."""

    def without(self, refused: str) -> bool:
        """Leave out the members that a 422 names; whether there is one more of them."""


def place_in(text: str, kind: str, field: str | None) -> Place:
    """Return the place that ``field`` names, or else one that looks free.

    Raises:
        ConfigurationError: there is none.
    """
    if "json" not in kind and not text.lstrip().startswith("{"):
        return _Line(text, field)
    try:
        return _Member(json.loads(text), field)
    except ValueError:
        raise ConfigurationError("The body of the GET is no JSON that can be read.") from None


def _token(size: int) -> str:
    return secrets.token_hex(8)[: min(max(6, size), 16)]


class _Line:
    """The value after ``NAME:``, or the whole text."""

    def __init__(self, text: str, field: str | None) -> None:
        named = rf"(?m)^{re.escape(field)}[:=] *([^\r\n]+)" if field else r"(?s)^(.+)$"
        self._pattern = re.compile(named)
        self.name = field or "the whole text"
        first = self.read(text)
        if first is None:
            raise ConfigurationError(
                f"The body has no line that begins with {field}:." if field else "It has no body."
            )
        self._first: str = first

    def read(self, text: str) -> Any:
        found = self._pattern.search(text)
        return found and found[1]

    def changed(self, text: str, value: Any) -> str:
        found = self._pattern.search(text)
        return f"{text[: found.start(1)]}{value}{text[found.end(1) :]}" if found else str(value)

    def alone(self, value: Any) -> str:
        return str(value)

    def new(self) -> str:
        token = _token(len(self._first))
        return token + self._first[len(token) :]

    def without(self, refused: str) -> bool:
        return False


class _Member:
    """A member of a JSON object, also of one inside it: ``a.b``."""

    def __init__(self, body: Any, field: str | None) -> None:
        self._first, self._left_out = body, set[str]()
        self._paths = [field.split(".")] if field else [*_free(body, str), *_free(body, int)]
        if not self._paths or self._at(body) is None:
            raise ConfigurationError(
                "No text or number of the body looks free to change: name a member, --field a.b."
            )

    @property
    def name(self) -> str:
        return ".".join(self._paths[0])

    def _at(self, node: Any) -> Any:
        for name in self._paths[0]:
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def read(self, text: str) -> Any:
        try:
            return self._at(json.loads(text))
        except ValueError:
            return None

    def changed(self, text: str, value: Any) -> str:
        body = {name: one for name, one in json.loads(text).items() if name not in self._left_out}
        node = body
        *outer, last = self._paths[0]
        for name in outer:
            node = node[name]
        node[last] = value
        return json.dumps(body)

    def alone(self, value: Any) -> str:
        for name in reversed(self._paths[0]):
            value = {name: value}
        return json.dumps(value)

    def new(self) -> Any:
        first = self._at(self._first)
        if isinstance(first, str):
            token = _token(len(first))
            return token + first[len(token) :]
        digits = max(4, len(str(first)))
        return 10 ** (digits - 1) + secrets.randbelow(9 * 10 ** (digits - 1))

    def without(self, refused: str) -> bool:
        said = re.sub(r'"body", ?|\bbody\.', "", refused)  # FastAPI: the place, not a member
        named = {name for name in self._first if re.search(rf"\b{re.escape(name)}\b", said)}
        free = [path for path in self._paths if path[0] not in named] or self._paths
        more = named - self._left_out - {free[0][0]}
        self._paths = free if more else self._paths
        self._left_out |= more
        return bool(more)


def _free(body: Any, kind: type, outer: Sequence[str] = ()) -> Iterator[list[str]]:
    """Yield the members of a kind that no server is likely to set."""
    for name, value in body.items() if isinstance(body, dict) else ():
        words = re.findall(r"[A-Za-z][a-z]*", name)
        if isinstance(value, dict):
            yield from _free(value, kind, (*outer, name))
        elif type(value) is kind and "://" not in str(value):
            if any(_OF_SERVERS.fullmatch(word.lower()) for word in words):
                continue
            yield [*outer, name]
