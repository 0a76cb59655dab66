"""What a roll-out reports while it runs and when it is over, and the command that does the same."""

from __future__ import annotations

import os
import pkgutil
import shlex
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from optilock.errors import ConfigurationError
from optilock.tokens import Counter, Token
from optilock.tokens.base import kinds
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


def token_kinds() -> dict[str, type[Token]]:
    """The kinds that ``--token`` has a name for."""
    named = ((vars(kind).get("option"), kind) for kind in kinds())  # not inherited
    return {option: kind for option, kind in named if option is not None}


def kind_named(name: str) -> type[Token]:
    """What ``--token`` means: a name, or ``module:Kind`` of a kind that a program has.

    Raises:
        ConfigurationError: there is no such kind, or it makes no version for old rows.
    """
    known = token_kinds()
    if name in known:
        return known[name]
    found: Any = None
    if ":" in name:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            found = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"--token {name} cannot be imported: {error}.") from None
    if not (isinstance(found, type) and issubclass(found, Token)):
        raise ConfigurationError(
            f"--token {name} is no kind of token: write {', '.join(known)}, or module:Kind of one"
            " of your own."
        )
    if found().first() is None:
        raise ConfigurationError(
            f"{found.__name__} has no first(), so nobody knows the version of rows that never had"
            " one: write a migration of your own."
        )
    return found


def _option_of(token: Token) -> str | None:
    """What ``--token`` would be for an equal token; ``None``: there is no such word."""
    kind, (given, named) = type(token), token.arguments()
    if token.first() is None or given or named.keys() - {"name", "column"}:
        return None
    return vars(kind).get("option") or f"{kind.__module__}:{kind.__qualname__}"


def command(
    table: str, schema: str | None, token: Token, guard: GuardTrigger | None = None
) -> str | None:
    """The call of ``optilock migrate`` that makes this; None of a token that has to be migrated."""
    kind = _option_of(token)
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
