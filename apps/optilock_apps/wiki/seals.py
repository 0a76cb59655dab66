"""The text that somebody edits, sealed together with its tag.

A form carries both, and both come back. The tag is checked by the UPDATE; but of the text nobody
would know whether the page ever said that, and a merge with an invented text could drop the work of
others unseen. So only a text whose seal holds is merged with.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import inspect

from optilock.preconditions.entity_tags import ETags
from optilock_apps.wiki.pages import Page

__all__ = ["Seals"]


@dataclass(frozen=True)
class Seals:
    """Seals by the keys of these tags, the same in all processes of a wiki."""

    etags: ETags

    def of(self, name: str, tag: str, base: str) -> str:
        """The seal of a text that a page had in the version of this tag."""
        signed = self.etags.sign(inspect(Page), (name,), _both(tag, base))
        return signed.partition(".")[0]

    def hold(self, name: str, tag: str, base: str, seal: str) -> bool:
        """Did the page have this text in that version?"""
        sent = f"{seal}.{_both(tag, base)}"
        return self.etags.signed(inspect(Page), (name,), sent) is not None


def _both(tag: str, base: str) -> str:
    return f"{tag}\n{base}"  # no tag has a newline
