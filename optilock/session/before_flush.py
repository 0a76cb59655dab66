"""What happens before a flush begins, in one order, whoever was imported or watched first.

1. *touches*: rows that :func:`~optilock.touch` was told of are touched again where a reading has
   dropped it (:mod:`optilock.rows.touch`);
2. *roots*: the versions of aggregates' roots move for their children (:mod:`optilock.aggregates`);
3. *guard*: a watched session looks at all that the flush will write, what the first two steps have
   changed included: promises, rows that nobody has read, deletes (:mod:`optilock.guard`).

A step is there once somebody has needed it, and its place does not depend on when that was. It is
called for every session, and does nothing where it has nothing to do.

Listeners of the application take their place by when they are registered, as everywhere in
SQLAlchemy. What a listener changes that was registered before the first step is seen by all steps.
What a later one changes is written in its version as anything else, and promises are looked at
before COMMIT once more; but no root moves for it, and its deletes are judged one by one, when they
are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

__all__ = ["STEPS", "at_step"]

Step = Callable[[Session, Any, Any], None]

STEPS = ("touches", "roots", "guard")
_known: dict[str, Step] = {}
_in_order: tuple[Step, ...] = ()


def at_step(name: str, step: Step) -> None:
    """From here on, call ``step(session, unit of work, objects)`` at its place in each flush."""
    global _in_order
    _known[name] = step
    _in_order = tuple(_known[one] for one in STEPS if one in _known)
    if not event.contains(Session, "before_flush", _before_flush):
        event.listen(Session, "before_flush", _before_flush)


def _before_flush(session: Session | None = None, uow: Any = None, objects: Any = None) -> None:
    """Only a flush that has something to do comes this far; without a session it is no flush."""
    if session is not None:
        for step in _in_order:
            step(session, uow, objects)
