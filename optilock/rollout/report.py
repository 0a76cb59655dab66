"""Reports of a roll-out, during it and at its end, and the command for the same roll-out."""

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
    """The outcome of a roll-out."""

    #: Names of the steps that were needed, in order; empty if the table was ready already.
    steps: tuple[str, ...] = ()
    #: Rows that got a version.
    filled: int = 0
    batches: int = 0
    #: How often a lock was not available and the step was tried again.
    waits: int = 0
    seconds: float = 0.0


class Progress(Protocol):
    """An observer of a roll-out."""

    def step(self, name: str, total: int | None = None) -> None:
        """Begin a step; the database's estimate is that ``total`` rows have to be filled."""

    def filled(self, rows: int) -> None:
        """Count ``rows`` more with a version."""

    def waiting(self, why: str) -> None:
        """Note that a lock was not available and the step is tried again."""


class Silent:
    """A progress that shows nothing."""

    def step(self, name: str, total: int | None = None) -> None: ...
    def filled(self, rows: int) -> None: ...
    def waiting(self, why: str) -> None: ...


def token_kinds() -> dict[str, type[Token]]:
    """Return the kinds with a name for ``--token``."""
    named = ((vars(kind).get("option"), kind) for kind in kinds())  # not inherited
    return {option: kind for option, kind in named if option is not None}


def kind_of_option(name: str) -> type[Token]:
    """Return the kind of ``--token``: a name, or ``module:Kind`` of an application's own kind.

    Raises:
        ConfigurationError: there is no such kind, or it makes no version for old rows.
    """
    named = token_kinds()
    if name in named:
        return named[name]
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
            f"--token {name} is no kind of token: write {', '.join(named)}, or module:Kind of one"
            " of your own."
        )
    if found().first() is None:
        raise ConfigurationError(
            f"{found.__name__} has no first(), so the version of rows that never had one is"
            " unknown: write a migration of your own."
        )
    return found


def _option_of(token: Token) -> str | None:
    """Return the ``--token`` option for an equal token, if there is one."""
    kind, (given, named) = type(token), token.arguments()
    if token.first() is None or given or named.keys() - {"name", "column"}:
        return None
    return vars(kind).get("option") or f"{kind.__module__}:{kind.__qualname__}"


def command(
    table: str, schema: str | None, token: Token, guard: GuardTrigger | None = None
) -> str | None:
    """Return the ``optilock migrate`` command for this version; None if the token has none."""
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
