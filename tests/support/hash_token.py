"""A kind of token that the library does not have, made with what it promises and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import String
from sqlalchemy.types import TypeEngine

from optilock.tokens import Token

__all__ = ["Hash"]


@dataclass(frozen=True, init=False)
class Hash(Token):
    """The version is a hash of the named values: the same values are the same version."""

    made_by = "values"
    names: tuple[str, ...] = ()

    def __init__(self, *names: str, name: str = "version", column: str | None = None) -> None:
        for field, value in (("names", names), ("name", name), ("column", column)):
            object.__setattr__(self, field, value)
        self.__post_init__()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.names

    def type(self) -> TypeEngine[Any]:
        return String(64)

    def make(self, values: Mapping[str, Any]) -> str:
        text = json.dumps(values, default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        _, named = super().arguments()
        return self.names, {name: value for name, value in named.items() if name != "names"}
