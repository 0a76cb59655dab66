"""A roll-out in the words of a shell: for the command, and for advice that names it."""

from __future__ import annotations

import shlex

from optilock.tokens import Counter, RowVersion, Timestamp, Token, Unique
from optilock.tokens.guard_trigger import GuardTrigger

__all__ = ["TOKENS", "command"]

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
