"""What databases keep of a float."""

from __future__ import annotations

import re
import struct
from typing import Any

from sqlalchemy import types
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

__all__ = ["decimals", "is_float", "is_single", "single_precision"]

_BITS = re.compile(r"FLOAT\((\d+)\)")
_SCALE = re.compile(r"\(\d+, ?(\d+)\)")


def is_float(kind: TypeEngine[Any], dialect: Dialect) -> bool:
    """Is a column of that type a binary number in this database, whatever the type is called?"""
    if not isinstance(kind, (types.Numeric, types.Float)):  # since 2.1 a Float is no Numeric
        return False
    return kind.compile(dialect=dialect).upper().startswith(("FLOAT", "DOUBLE", "REAL"))


def is_single(declared: str, *, bare: str) -> bool:
    """Is the column of single precision? ``bare`` is the name that says so without a number."""
    bits = _BITS.fullmatch(declared)
    return declared == bare or (bits is not None and int(bits[1]) <= 24)


def decimals(declared: str) -> int | None:
    """The places after the point to which the column rounds, if it does."""
    scale = _SCALE.search(declared)
    return int(scale[1]) if scale else None


def single_precision(value: float) -> float:
    """The nearest number of IEEE 754 binary32; what is beyond its range stays as it is."""
    try:
        found: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return value
    return found
