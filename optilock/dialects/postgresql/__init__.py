"""PostgreSQL: its answers, its statement for many rows, its triggers and its roll-out."""

from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
