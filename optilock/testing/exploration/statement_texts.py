"""A statement as a person reads it: one line with values, without the list of columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_SELECTED = re.compile(r"^\s*SELECT\s+(?!count\b|sum\b).*?\s+FROM\s", re.IGNORECASE | re.DOTALL)
_NAMED = re.compile(r"%\((\w+)\)s(::[\w ]+?(?=[\s,)]|$))?|(?<![\w:]):(\w+)|%s|\?|\$(\d+)(::\w+)?")
_TABLE = re.compile(r'"?(?:\w+"?\.)?"?(\w+)"?')
#: Characters of one value.
_LONGEST = 24


def readable_text(text: str, parameters: Any) -> str:
    """Return a statement on one line, with its values."""
    line = " ".join(text.split())
    line = re.sub(r"^(\s*SELECT)\s.*?\sFROM\s", r"\1 ... FROM ", line, count=1, flags=re.I)
    rows: Sequence[Any] = [parameters]
    more = ""
    if isinstance(parameters, list) and parameters and isinstance(parameters[0], (tuple, dict)):
        rows, more = parameters[:1], f" (and {len(parameters) - 1} more)" * (len(parameters) > 1)
    return _filled(line, rows[0]) + more


def _filled(line: str, values: Any) -> str:
    positional = iter(values if isinstance(values, (tuple, list)) else ())

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name is not None:
            known = isinstance(values, Mapping) and name in values
            return _short(values[name]) if known else found[0]
        if found[4] is not None and isinstance(values, (tuple, list)):
            return _short(values[int(found[4]) - 1])
        return _short(next(positional, found[0]))

    return _NAMED.sub(value, line)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
