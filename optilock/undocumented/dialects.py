"""Dialects and types: how they write SQL, and what the application has given them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Dialect
from sqlalchemy.types import TypeEngine


def double_percents(dialect: Dialect) -> bool:
    """Does the compiler write ``%`` twice, for a driver that would take it for a parameter?"""
    return dialect.identifier_preparer._double_percents


def default_in_ddl(column: Column[Any], dialect: Dialect) -> str:
    """The SQL of a column's ``server_default``, as CREATE TABLE has it."""
    compiler = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type]
    found = compiler.get_column_default_string(column)
    assert found is not None  # of columns that have one
    return found.replace("%%", "%") if double_percents(dialect) else found


def reads_json_itself(dialect: Dialect) -> bool:
    """Has the application its own reader of JSON (``create_engine(json_deserializer=...)``)?"""
    return getattr(dialect, "_json_deserializer", None) is not None


def json_writer(dialect: Dialect | None) -> Callable[[Any], Any]:
    """What makes the text of a JSON value: ``create_engine(json_serializer=...)``, or Python's."""
    return getattr(dialect, "_json_serializer", None) or json.dumps


def level_on_connect(dialect: Dialect) -> str | None:
    """The ``isolation_level`` that ``create_engine`` was given."""
    level: str | None = dialect._on_connect_isolation_level
    return level


def skips_rollback(dialect: Dialect) -> bool:
    """``create_engine(skip_autocommit_rollback=True)``, which SQLAlchemy has since 2.0.43."""
    return bool(getattr(dialect, "skip_autocommit_rollback", False))


def has_bind_expression(kind: TypeEngine[Any]) -> bool:
    """Does the type put SQL of its own around a parameter?"""
    return bool(kind._has_bind_expression)


def type_on(kind: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    """The type that stands for it on this database."""
    found: TypeEngine[Any] = kind._variant_mapping.get(dialect.name, kind)
    return found


def variants_of(kind: TypeEngine[Any]) -> list[TypeEngine[Any]]:
    """The types that stand for it on some databases (``with_variant()``)."""
    return list(kind._variant_mapping.values())
