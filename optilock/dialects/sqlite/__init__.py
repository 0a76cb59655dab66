"""SQLite: its answers, its statement for many rows, its triggers and its roll-out."""

from optilock.dialects.sqlite.database import SQLite as SQLite
