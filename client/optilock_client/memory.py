"""The representations that a client has read last."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from httpx2 import URL, Response

__all__ = ["Memory", "Representation", "strong_tag"]

#: RFC 9110, 8.8.3: the characters of an entity tag, of those in ASCII.
_STRONG = re.compile(r'"[!#-~]*"')


def strong_tag(answer: Response) -> str | None:
    """Return its ETag, if ``If-Match`` can demand it: a weak one never matches (13.1.1)."""
    tag: str = answer.headers.get("ETag", "")
    return tag if _STRONG.fullmatch(tag) else None


@dataclass(frozen=True)
class Representation:
    """A resource in one version. After a write its content is not known."""

    tag: str | None
    content: bytes | None

    @property
    def value(self) -> Any:
        """The value of its JSON, a new one each time."""
        return json.loads(self.content or b"")


class Memory:
    """The last representation of each URL, for at most so many URLs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: OrderedDict[str, Representation] = OrderedDict()

    def get(self, url: URL) -> Representation:
        """Return what is remembered; a representation of nothing if that is nothing."""
        return self._last.get(str(url)) or Representation(None, None)

    def put(self, url: URL, representation: Representation) -> None:
        """Remember it, if it has a tag."""
        self.forget(url)
        if representation.tag:
            self._last[str(url)] = representation
            if len(self._last) > self._most:
                self._last.popitem(last=False)

    def forget(self, url: URL) -> None:
        """Remember nothing of it."""
        self._last.pop(str(url), None)
