"""One queue of one tenant, as all that is done with it finds it: its statements and its limits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection

from optilock.dialects.queue_sql import Messages
from optilock.queue.limits import Limits

__all__ = ["DEDUP", "GROUP", "KEEP", "Stored"]


class _Keep:
    """Stands for what is not given, where ``None`` means something."""

    def __repr__(self) -> str:
        return "<as it is>"


KEEP: Any = _Keep()
#: Headers of a dead letter: what made it one of many.
GROUP, DEDUP = "optilock-group", "optilock-dedup"


class Stored:
    def __init__(self, store: Messages, limits: Limits) -> None:
        self.store = store
        self.limits = limits
        self.name = store.place.queue

    def _atomic(self, connection: Connection, inside: bool) -> AbstractContextManager[None]:
        return nullcontext() if inside else self.store.atomic(connection)
