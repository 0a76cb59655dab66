"""The text that somebody edits, signed together with its tag.

A form carries both, and both come back. The tag is checked by the UPDATE; but of the text nobody
would know whether the page ever said that, and a merge with an invented text could drop the work of
others unseen. So only a text whose seal holds is merged with.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

__all__ = ["Seals"]

_LABEL = b"optilock.wiki.base"


@dataclass(frozen=True)
class Seals:
    """Seals by one secret, the same in all processes of a wiki."""

    secret: bytes = field(repr=False)

    def of(self, tag: str, base: str) -> str:
        """The seal of a text that had this tag when it was read."""
        parts = (_LABEL, tag.encode(), base.encode("utf-8", "surrogatepass"))
        counted = b"".join(b"%d:%b" % (len(part), part) for part in parts)
        return hmac.new(self.secret, counted, "sha256").hexdigest()

    def proven(self, tag: str, base: str, seal: str) -> str | None:
        """The text, if it is the one that was sealed with this tag."""
        holds = hmac.compare_digest(self.of(tag, base).encode(), seal.encode())
        return base if holds else None
