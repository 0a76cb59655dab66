"""The edited text of a page, sealed together with its tag.

A form carries both, and both come back. The UPDATE checks the tag. Without a seal an invented text
could pass for that of the page, and a merge with it could drop the work of others unseen. So only a
text with a valid seal is the base of a merge.
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
        """Return the seal of a text that a page had in the version of this tag."""
        signed = self.etags.of_row(inspect(Page), (name,)).sign(_both(tag, base))
        return signed.partition(".")[0]

    def hold(self, name: str, tag: str, base: str, seal: str) -> bool:
        """Return whether the page had this text in that version."""
        sent = f"{seal}.{_both(tag, base)}"
        return self.etags.of_row(inspect(Page), (name,)).signed(sent) is not None


def _both(tag: str, base: str) -> str:
    return f"{tag}\n{base}"  # no tag has a newline
