"""SQLite."""

from __future__ import annotations

from optilock.dialects.base import Database


class SQLite(Database):
    names = ("sqlite",)
