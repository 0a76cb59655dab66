"""Every watched session of the process refuses rows without a version, for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from optilock._watched.guard import installation
from optilock._watched.session.record import STRICT_KEY

__all__ = ["strict_sessions"]


@contextmanager
def strict_sessions() -> Iterator[None]:
    """Make watched sessions strict, those that were watched before and those that will be.

    Units of work on sessions that are not watched are strict, too. At the end of the block the
    former are as they were; the latter stay strict.
    """
    known = {cls: vars(cls)[STRICT_KEY] for cls in _classes(Session) if STRICT_KEY in vars(cls)}
    changed = {cls: strict for cls, strict in known.items() if not strict}
    before = installation.strict_by_default
    installation.strict_by_default = True
    for cls in changed:
        setattr(cls, STRICT_KEY, True)
    try:
        yield
    finally:
        installation.strict_by_default = before
        for cls, strict in changed.items():
            setattr(cls, STRICT_KEY, strict)


def _classes(cls: type[Session]) -> Iterator[type[Session]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _classes(below)
