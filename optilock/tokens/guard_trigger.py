"""The trigger that moves the version when another program writes a row, as a value.

No session that has read a row notices an UPDATE that leaves its version as it was. The guard
trigger of a table moves the version then (``"bump"``), or refuses the UPDATE (``"reject"``). A
class asks for one::

    class Page(Versioned, Base):
        __version_guard__ = "bump"

It ignores writes that move the version, as every write of optilock does, UPDATEs of ignored
columns only, and writes under ``no_bump``. A row without a version (NULL, before a
roll-out has come to it) has none that could be moved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from optilock.errors import ConfigurationError
from optilock.tokens.base import Token, kinds

Policy = Literal["bump", "reject"]
_POLICIES = ("bump", "reject")
_PREFIX = "optilock_guard_"
_MARK = "/* optilock guard "
#: The shortest limit of the three engines (PostgreSQL: 63 bytes).
_LONGEST = 63


def check_guard(policy: object, token: object, where: str) -> None:
    """Refuse an unknown policy, and tokens that a trigger cannot move.

    Raises:
        ConfigurationError: with what to write instead.
    """
    if policy not in _POLICIES:
        raise ConfigurationError(
            f"{where} is {policy!r}: write 'bump' (move the version that a foreign UPDATE left"
            " alone) or 'reject' (refuse that UPDATE)."
        )
    if not isinstance(token, Token) or not token.can_be_guarded:
        raise ConfigurationError(
            f"{where} = {policy!r} beside {token!r}: there is nothing that a guard trigger could"
            " move or demand. It works with Counter(), Unique(), Timestamp(); RowVersion() has a"
            " trigger of its own, and Manual() may stay as it is."
        )


@dataclass(frozen=True)
class GuardTrigger:
    """The task of one table's guard trigger.

    ``ignore`` and ``columns`` are columns: those whose change does not count, and, where there are
    such, those whose change does.
    """

    table: str
    token: Token
    policy: Policy
    ignore: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    schema: str | None = None
    #: Columns that find a row, where SQLite has no ``rowid`` for it.
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_guard(self.policy, self.token, f"The guard trigger of {self.table}")
        for what in ("ignore", "columns"):
            names = getattr(self, what)
            if isinstance(names, str):
                raise ConfigurationError(
                    f"The guard trigger of {self.table}: {what}={names!r} is a text, not a"
                    f" collection of names: write {what}=[{names!r}]."
                )
            object.__setattr__(self, what, tuple(sorted(set(names))))

    def ignoring(self, generated: Iterable[str], known: Iterable[str]) -> GuardTrigger:
        """The same on a table where some of the ``known`` columns are generated.

        They follow from others, so they count as little as ignored ones, and PostgreSQL shows none
        to a trigger that fires before the UPDATE.
        """
        ignore = {*self.ignore, *generated}
        if ignore == {*self.ignore}:
            return self
        columns = (name for name in self.columns or known if name not in ignore)
        return replace(self, ignore=tuple(ignore), columns=tuple(columns))

    def fitting(
        self, mapped: Iterable[str], there: Iterable[str], generated: Iterable[str]
    ) -> tuple[GuardTrigger, GuardTrigger]:
        """As it is made for the ``mapped`` columns, and as it may be made as well.

        The second one counts all columns that are ``there``, in the table: a roll-out, which knows
        the table alone, makes it so.
        """
        made = self.ignoring(generated, (name for name in mapped if name != self.column))
        if not made.columns:
            return made, made
        more = {*there} - {*made.ignore, made.column}
        return made, replace(made, columns=(*made.columns, *more))

    @property
    def column(self) -> str:
        """The version's column."""
        return self.token.column_name

    @property
    def name(self) -> str:
        """The trigger's name, and that of its function."""
        return short_name(_PREFIX + self.table)

    @property
    def mark(self) -> str:
        """A comment that describes the trigger in the database, for reading it back."""
        # Not the attribute's name: a roll-out knows of the column only, and makes the same trigger.
        token = {"kind": type(self.token).__name__, "column": self.column}
        said = {"token": token, "policy": self.policy, "ignore": self.ignore}
        if self.columns:
            said["columns"] = self.columns
        return f"{_MARK}{json_in_comment(said)} */"


def json_in_comment(said: Any) -> str:
    """Return JSON that neither ends a comment nor begins another one in it."""
    return json.dumps(said, sort_keys=True).replace("/", "\\/").replace("*", "\\u002a")


def read_mark(source: str, table: str, schema: str | None) -> GuardTrigger | None:
    """Return the guard trigger with this source; ``None`` for any other trigger."""
    start = source.find(_MARK)
    if start < 0:
        return None
    text = source[start + len(_MARK) :].partition(" */")[0]
    try:
        said: dict[str, Any] = json.loads(text)
        given = said["token"]
        kind = next(one for one in kinds() if one.__name__ == given["kind"])
        token = kind.in_column(given["column"])
        columns = tuple(said.get("columns", ()))
        return GuardTrigger(table, token, said["policy"], tuple(said["ignore"]), columns, schema)
    except (ValueError, KeyError, TypeError, StopIteration, ConfigurationError):
        return None


def is_guard_source(source: str) -> bool:
    """Return whether this is the text of a guard trigger, on any table."""
    return _MARK in source


def is_guard(name: str) -> bool:
    """Return whether this is the name of a guard trigger."""
    return name.startswith(_PREFIX)


def short_name(name: str) -> str:
    """The name within every database's limit, still different for every table."""
    encoded = name.encode()
    if len(encoded) <= _LONGEST:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    return f"{encoded[: _LONGEST - 9].decode(errors='ignore')}_{digest}"
