"""Comments, literals and quoted names in SQL text, as each database reads them.

::

    read(sql, POSTGRESQL).text        # without comments and literals; names in quotes are marked

A database may read text in two ways, by its settings (``NO_BACKSLASH_ESCAPES``,
``standard_conforming_strings``). Then it has two :class:`Quoting`, and a search looks at both. What
begins and does not end stays text: a search finds too much then, not too little.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BEGIN, _END = "\ue000", "\ue001"
#: A name in quotes, in :attr:`PlainText.text`.
MARK = rf"{_BEGIN}\d+{_END}"
_STRING = r"'(?:[^']|'')*'"
_ESCAPED = r"'(?:[^'\\]|''|\\.)*'"
#: Without these, every database reads a text in the same way.
_SPECIAL = re.compile(r"['\"`\[$#]|--|/\*")


@dataclass(frozen=True)
class Quoting:
    """How one database reads SQL text."""

    #: Characters that begin a name in quotes.
    names: str = '"'
    #: A backslash in a literal takes the next character in.
    backslash: bool = False
    #: ``"…"`` is a literal.
    double_is_string: bool = False
    #: A literal may be the name of a table (SQLite).
    string_is_name: bool = False
    #: ``E'…'`` and ``$tag$…$tag$``, and comments inside comments.
    of_postgresql: bool = False
    #: ``#`` and ``-- `` begin comments, and ``/*! … */`` is executed.
    of_mariadb: bool = False

    @functools.cached_property
    def tokens(self) -> re.Pattern[str]:
        """All that is no plain text. The group is its kind."""
        string = _ESCAPED if self.backslash else _STRING
        strings, names, spaces = [string], [], [r"--[^\n]*"]
        if self.of_postgresql:
            strings += [
                rf"(?<!\w)[eE]{_ESCAPED}",
                r"(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$",
            ]
        if self.of_mariadb:
            spaces = [r"--(?=\s|\Z)[^\n]*", r"#[^\n]*", r"/\*M?!\d*", r"\*/"]
        if self.double_is_string:
            strings.append(string.replace("'", '"'))
        if '"' in self.names:
            names.append(r'"(?:[^"]|"")*"')
        if "`" in self.names:
            names.append(r"`(?:[^`]|``)*`")
        if "[" in self.names:
            names.append(r"\[[^\]]*\]")
        groups = {"space": spaces, "comment": [r"/\*"], "string": strings, "name": names}
        return re.compile(
            "|".join(f"(?P<{kind}>{'|'.join(some)})" for kind, some in groups.items() if some),
            re.DOTALL,
        )


@dataclass(frozen=True)
class PlainText:
    """A text without comments and literals."""

    text: str
    #: The names in quotes, in the order of their marks.
    names: tuple[str, ...] = ()
    #: Those of them that are literals as well.
    strings: frozenset[int] = frozenset()

    def name(self, found: str) -> str:
        """Return a name that was found in the text, without quotes, in lower case."""
        if found.startswith(_BEGIN):
            return self.names[int(found.strip(_BEGIN + _END))].lower()
        return found.lower()

    def names_in(self, part: str) -> Iterator[str]:
        """Yield the names in quotes that a part of the text has, without the literals."""
        for found in re.findall(MARK, part):
            if int(found.strip(_BEGIN + _END)) not in self.strings:
                yield self.name(found)


SQLITE = Quoting(names='"`[', string_is_name=True)
POSTGRESQL = Quoting(of_postgresql=True)
MARIADB = Quoting(names="`", backslash=True, double_is_string=True, of_mariadb=True)
MARIADB_ANSI = Quoting(names='`"', backslash=True, of_mariadb=True)

#: With ``standard_conforming_strings`` on, and off.
ALL_OF_POSTGRESQL = (POSTGRESQL, Quoting(backslash=True, of_postgresql=True))
#: Without, and with ``NO_BACKSLASH_ESCAPES`` in ``sql_mode``.
ALL_OF_MARIADB = (MARIADB, Quoting(names="`", double_is_string=True, of_mariadb=True))
#: The same with ``ANSI_QUOTES``.
ALL_OF_MARIADB_ANSI = (MARIADB_ANSI, Quoting(names='`"', of_mariadb=True))
#: Where ``"…"`` is a name.
STANDARD = (SQLITE, *ALL_OF_POSTGRESQL)
EVERY = (*STANDARD, *ALL_OF_MARIADB, *ALL_OF_MARIADB_ANSI)


def read_each(sql: str, quotings: tuple[Quoting, ...]) -> list[PlainText]:
    """Return the text as each of the databases reads it, without repetitions."""
    if _SPECIAL.search(sql) is None:
        return [PlainText(sql)]
    return list(dict.fromkeys(read(sql, one) for one in quotings))


def read(sql: str, quoting: Quoting) -> PlainText:
    """Return the text as one database reads it."""
    sql = sql.replace(_BEGIN, " ").replace(_END, " ")
    parts: list[str] = []
    names: list[str] = []
    strings: set[int] = set()
    at = 0
    while (found := quoting.tokens.search(sql, at)) is not None:
        parts.append(sql[at : found.start()])
        at = found.end()
        if found["comment"]:
            at = _end_of_comment(sql, at, nested=quoting.of_postgresql)
        if found["name"] or (found["string"] and quoting.string_is_name):
            if not found["name"]:
                strings.add(len(names))
            parts.append(f" {_BEGIN}{len(names)}{_END} ")
            names.append(_unquoted(found[0]))
        else:
            parts.append(" ")
    parts.append(sql[at:])
    return PlainText("".join(parts), tuple(names), frozenset(strings))


def _unquoted(quoted: str) -> str:
    inner, quote = quoted[1:-1], quoted[-1]
    return inner if quote == "]" else inner.replace(quote * 2, quote)


def _end_of_comment(sql: str, at: int, *, nested: bool) -> int:
    """Return where the comment ends that begins before ``at``; there, if it has no end."""
    depth, here = 1, at
    for found in re.finditer(r"/\*|\*/", sql[at:]):
        if found[0] == "*/":
            depth -= 1
        elif nested:
            depth += 1
        if depth == 0:
            here = at + found.end()
            break
    return here
