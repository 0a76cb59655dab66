"""PostgreSQL."""

from __future__ import annotations

from optilock.dialects.base import Database


class PostgreSQL(Database):
    names = ("postgresql",)
