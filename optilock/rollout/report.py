"""What a roll-out reports while it runs and when it is over, and the command that does the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Protocol

from optilock.tokens import Counter, RowVersion, Timestamp, Token, Unique
from optilock.tokens.guard_trigger import GuardTrigger


@dataclass(frozen=True)
class Report:
    """What was done."""

    #: Names of the steps that were needed, in order; empty when the table was ready already.
    steps: tuple[str, ...] = ()
    #: Rows that were given a version.
    filled: int = 0
    batches: int = 0
    #: How often a lock was not to be had, and the step was tried again.
    waits: int = 0
    seconds: float = 0.0


class Progress(Protocol):
    """Somebody who watches."""

    def step(self, name: str, total: int | None = None) -> None:
        """A step begins; ``total`` rows are to be filled, as far as the database can tell."""

    def filled(self, rows: int) -> None:
        """So many rows more have a version."""

    def waiting(self, why: str) -> None:
        """A lock was not to be had; it is tried again."""


class Silent:
    """Nobody watches."""

    def step(self, name: str, total: int | None = None) -> None: ...
    def filled(self, rows: int) -> None: ...
    def waiting(self, why: str) -> None: ...


#: What ``--token`` calls them.
TOKENS: dict[str, type[Token]] = {
    "counter": Counter,
    "unique": Unique,
    "timestamp": Timestamp,
    "row-version": RowVersion,
}


def command(
    table: str, schema: str | None, token: Token, guard: GuardTrigger | None = None
) -> str | None:
    """The call of ``optilock migrate`` that makes this; None of a token that has to be migrated."""
    kind = next((name for name, known in TOKENS.items() if type(token) is known), None)
    if kind is None:
        return None
    words = [table, "--url", "…"]
    words += ["--schema", schema] if schema else []
    words += ["--token", kind] if kind != "counter" else []
    column = token.column_name
    words += ["--column", column] if column != Counter().name else []
    if guard is not None:
        words += ["--guard", guard.policy]
        words += [word for name in guard.ignore for word in ("--ignore", name)]
    quoted = (word if word == "…" else shlex.quote(word) for word in words)
    return " ".join(("optilock migrate", *quoted))
