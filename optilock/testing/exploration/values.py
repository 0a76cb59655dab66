"""Values of units and of columns as texts that are equal where the values are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState

from optilock.errors import ConfigurationError

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")


def shown_value(value: Any, whose: str) -> str:
    """Return the text of a value.

    Raises:
        ConfigurationError: an object whose text is its address, or one of the ORM.
    """
    if isinstance(value, Mapping):
        pairs = ((shown_value(key, whose), shown_value(one, whose)) for key, one in value.items())
        return "{" + ", ".join(f"{key}: {one}" for key, one in sorted(pairs)) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(shown_value(one, whose) for one in value)) + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(shown_value(one, whose) for one in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, (memoryview, bytearray)):
        value = bytes(value)
    if isinstance(inspect(value, raiseerr=False), InstanceState):
        raise ConfigurationError(
            f"{whose} returned an object of the ORM ({type(value).__name__}), which differs from"
            " order to order. Return values: numbers, texts, lists, dicts."
        )
    text = repr(value)
    if _ADDRESS.search(text):
        raise ConfigurationError(
            f"{whose} returned an object of {type(value).__name__} without a repr() of its values."
            " Return values: numbers, texts, lists, dicts, dataclasses."
        )
    return text
