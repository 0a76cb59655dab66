"""How finely a database keeps a time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import types

__all__ = ["microseconds"]


def microseconds(stored: types.TypeEngine[Any]) -> bool:
    """Does a stored type keep microseconds? True of what is no time at all."""
    if isinstance(stored, types.DateTime):
        return _digits(stored) >= 6
    return not isinstance(stored, types.Date)


def _digits(stored: Any) -> int:
    """Digits of a second's fraction; MariaDB keeps none unless it is told to, others six."""
    if hasattr(stored, "fsp"):
        return stored.fsp or 0
    precision: int | None = getattr(stored, "precision", None)
    return 6 if precision is None else precision
