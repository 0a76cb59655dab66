"""Access and share modes: who may open a name beside whom. Values in, values out.

A handle says what its owner does (``access``) and what everybody else may do meanwhile (``share``),
each as some of three letters::

    "R"   read          "W"   write          "D"   delete

``open(name, "RW", share="R")`` reads and writes, and lets others read. Two handles fit if each does
only what the other shares; a handle without access (``""``: it looks at attributes only) fits
beside all. The same owner has no privilege over others, and the order does not matter. ([MS-FSA]
section 2.1.5.1.2.2, Algorithm to Check Sharing Access.)
"""

from __future__ import annotations

from typing import Final

from optilock.errors import ConfigurationError

__all__ = ["ALL", "DELETE", "NONE", "READ", "WRITE", "Mode", "fits", "letters", "mode"]

#: Some of the three, as bits: it is stored so.
Mode = int

NONE: Final = 0
READ: Final = 1
WRITE: Final = 2
DELETE: Final = 4
ALL: Final = READ | WRITE | DELETE

_BITS = {"R": READ, "W": WRITE, "D": DELETE}


def fits(access: Mode, share: Mode, other_access: Mode, other_share: Mode) -> bool:
    """May the two be open at the same time?"""
    if not access or not other_access:
        return True
    return not (access & ~other_share) and not (other_access & ~share)


def mode(given: object, what: str) -> Mode:
    """Read ``"RW"``; ``what`` is the argument's name.

    Raises:
        ConfigurationError: it is anything else than some of R, W and D, each once.
    """
    if isinstance(given, str) and len(set(given)) == len(given) and set(given) <= _BITS.keys():
        return sum(_BITS[letter] for letter in given)
    raise ConfigurationError(
        f"{what}={given!r} is no access or share mode: write some of the letters R (read), W"
        f" (write) and D (delete), {what}='RW', or '' for none of them. Nothing was sent."
    )


def letters(given: Mode) -> str:
    """The same as text."""
    return "".join(letter for letter, bit in _BITS.items() if given & bit)
