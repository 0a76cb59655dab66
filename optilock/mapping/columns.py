"""The columns behind an object's attributes; asked of :mod:`~optilock.mapping.facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, FromClause, Table
from sqlalchemy.orm import Mapper

from optilock.mapping.facts import GIVE_ONE, facts, same

__all__ = [
    "GIVE_ONE",
    "columns_of",
    "ignored_columns",
    "maps_a_select",
    "rows_of",
    "same",
    "table_of_version",
    "token_attribute",
]


def columns_of(mapper: Mapper[Any]) -> Mapping[str, Column[Any]]:
    return facts(mapper).columns


def maps_a_select(mapper: Mapper[Any]) -> bool:
    return facts(mapper).maps_a_select


def table_of_version(mapper: Mapper[Any]) -> Table:
    return facts(mapper).table


def rows_of(mapper: Mapper[Any]) -> tuple[list[Any], FromClause]:
    return facts(mapper).rows


def token_attribute(mapper: Mapper[Any]) -> str | None:
    return facts(mapper).token or None


def ignored_columns(mapper: Mapper[Any]) -> frozenset[Column[Any]]:
    return facts(mapper).ignored
