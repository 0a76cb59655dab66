"""What differs between databases, of what their columns can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.types import TypeEngine

__all__ = ["STRICTEST", "Limits"]


@dataclass(frozen=True)
class Limits:
    """What differs between databases and their drivers; unnamed, it is what all of them hold."""

    #: Bits of a small integer, an integer, and a big one.
    bits: tuple[int, int, int] = (16, 32, 64)
    #: Is the text of a number, or of a moment, taken for that, and a number for a text?
    converts: bool = False
    #: What is taken for a text, where something is.
    as_text: tuple[type, ...] = ()
    #: Columns of numbers that take True for 1.
    bools: tuple[type[TypeEngine[Any]], ...] = ()
    no_bools: tuple[type[TypeEngine[Any]], ...] = ()
    #: Is a Decimal taken for a whole number, and "7.0" as well?
    decimals: bool = False
    decimal_text: bool = False
    nan: bool = False
    infinity: bool = False
    #: Digits, and those of the fraction, of a Numeric that names none; is the number looked at?
    digits: tuple[int, int] | None = None
    counts_digits: bool = True
    most_digits: int = 65
    #: What a float of single precision is called; None: there is none.
    single: str | None = None
    #: Is the length of a text looked at?
    lengths: bool = True
    nul: bool = False
    #: Is a number of more than 64 bits taken for a text?
    long_numbers: bool = True
    #: How many bytes a column of this type holds.
    octets: Callable[[TypeEngine[Any], Dialect], int | None] | None = None
    #: Is the offset of a moment taken that is written as text?
    offsets: bool = False
    #: Has a moment to have a zone exactly where the column has one?
    zones: bool = False
    json_nan: bool = False
    json_surrogates: bool = False


STRICTEST = Limits()
