"""Tables that stay from one test of a module to the next: their rows are deleted between the tests.

To drop and create tables takes PostgreSQL ten times as long as to delete a few rows. Only tables
that the fixture ``tables`` created stay. All tables are dropped before a test

* of another module, or without the fixture ``tables``;
* after a test that created, changed or dropped anything else: the catalogues show it;
* that maps a class to the name of a table of another definition (within :meth:`KeptTables.create`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import Connection, Engine, Table, inspect, text

__all__ = ["KeptTables"]


class KeptTables:
    """The tables that the database keeps for the tests of one module."""

    def __init__(self, drop: Callable[[Connection], None]) -> None:
        self._drop = drop
        self._module: Path | None = None
        self._known: dict[str, Table] = {}
        self._used: set[str] = set()
        self._state: str | None = None
        self._server: Engine | None = None

    def begin(self, server: Engine, module: Path | None) -> None:
        """Empty the database for a test of ``module``; without a module, drop everything."""
        self._server, self._used = server, set()
        with server.begin() as connection:
            if module is not None and module == self._module and self._is_as_left(connection):
                connection.execute(text(_DELETE))
            else:
                self._drop(connection)
                self._known, self._state = {}, None
        self._module = module

    def create(self, engine: Engine, wanted: Sequence[Table]) -> None:
        """Create those of the tables that are not there yet."""
        there = {*inspect(engine).get_table_names()}
        self._known = {name: table for name, table in self._known.items() if name in there}
        missing = [table for table in wanted if self._known.get(table.fullname) is not table]
        if any(table.fullname in self._known.keys() - self._used for table in missing):
            self._drop_all()
            there, missing = set(), [*wanted]
        if missing:
            self._create(engine, missing, bool(there))
        self._used |= {table.fullname for table in wanted}

    def _create(self, engine: Engine, missing: Sequence[Table], exist: bool) -> None:
        with engine.connect() as connection:
            as_left = not exist or self._is_as_left(connection)
        for metadata in {table.metadata for table in missing}:
            of_it = [table for table in missing if table.metadata is metadata]
            metadata.create_all(engine, tables=of_it, checkfirst=exist)
        self._known.update({table.fullname: table for table in missing})
        with engine.connect() as connection:
            self._state = connection.scalar(text(_STATE)) if as_left else None

    def _is_as_left(self, connection: Connection) -> bool:
        return self._state is not None and self._state == connection.scalar(text(_STATE))

    def _drop_all(self) -> None:
        assert self._server is not None
        with self._server.begin() as connection:
            self._drop(connection)
        self._known, self._state = {}, None


#: Rows of all tables, whatever refers to them, and the values of sequences. Like DROP TABLE, LOCK
#: waits for transactions that a test has left open.
_DELETE = """
DO $$
DECLARE name regclass; first bigint;
BEGIN
    PERFORM set_config('session_replication_role', 'replica', true);
    FOR name IN
        SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
    LOOP
        EXECUTE format('LOCK TABLE %s; DELETE FROM %s', name, name);
    END LOOP;
    FOR name, first IN
        SELECT seqrelid, seqstart FROM pg_sequence WHERE seqrelid >= 16384
    LOOP
        PERFORM setval(name, first, false);
    END LOOP;
END $$
"""

#: Every catalogue that a statement of a test may change: how many rows, and the newest change.
_OF_TABLES = ("pg_attribute", "attrelid"), ("pg_index", "indrelid"), ("pg_attrdef", "adrelid")
_CATALOGUES = (
    *_OF_TABLES,
    ("pg_sequence", "seqrelid"),
    *(
        (f"pg_{name}", "oid")
        for name in (
            "class",
            "trigger",
            "constraint",
            "proc",
            "type",
            "namespace",
            "policy",
            "rewrite",
            "default_acl",
            "event_trigger",
            "extension",
            "publication",
            "statistic_ext",
        )
    ),
)
_STATE = "SELECT concat_ws(' ', {})".format(
    ", ".join(
        f"(SELECT concat(count(*), '/', max(xmin::text::bigint)) FROM {name} WHERE {key} >= 16384)"
        for name, key in _CATALOGUES
    )
)
