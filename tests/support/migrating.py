"""Migrations in tests: operations on an engine, as text, and autogenerate.

``migrate(engine, work)``   run ``work(op)`` in a transaction, as a migration does
``as_text(dialect, work)``  the SQL of ``work(op)``, as ``alembic upgrade --sql`` prints it
``revise(engine, metadata)``  what autogenerate writes: two texts, upgrade and downgrade
``run(engine, text)``       run such a text
``send(engine, *statements)``  in one transaction, and their results
``each_token``              the parameter ``token``: each kind of version
``once_free(call)``         what ``call`` returns when no other roll-out has the claim
``shape(engine, *tables)``  what reflection, and the catalogue of triggers, say of tables
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from alembic.autogenerate import produce_migrations
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import _render_python_into_templatevars
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime import plugins
from sqlalchemy import CursorResult, Engine, Inspector, MetaData, inspect, make_url, text

import optilock.alembic
from optilock.alembic import autogenerate, plugin
from optilock.errors import OptilockError
from optilock.tokens import Counter, RowVersion, Timestamp, Unique
from tests.support.waiting import until

_TOKENS = {
    "counter": Counter(),
    "unique": Unique(),
    "timestamp": Timestamp(),
    "row-version": RowVersion(),
}
each_token = pytest.mark.parametrize("token", _TOKENS.values(), ids=_TOKENS)

T = TypeVar("T")
Work = Callable[[Operations], Any]
LINE = {"autogenerate_plugins": ["alembic.autogenerate.*", "optilock"]}

# An installed optilock is found by its entry point; a checkout that is not installed is not.
if "optilock" not in plugins._all_plugins:
    plugins.Plugin.setup_plugin_from_module(plugin, "optilock")


@dataclass(frozen=True)
class Revision:
    """The body of a migration script."""

    upgrade: str
    downgrade: str
    imports: str

    @property
    def empty(self) -> bool:
        return not _lines(self.upgrade) and not _lines(self.downgrade)

    @property
    def lines(self) -> list[str]:
        return _lines(self.upgrade)


def _lines(text: str) -> list[str]:
    return [
        line.strip()
        for line in text.splitlines()
        if line.strip() not in ("", "pass") and not line.strip().startswith("#")
    ]


def once_free(call: Callable[[], T]) -> T:
    found: list[T] = []

    def is_free() -> bool:
        try:
            found.append(call())
        except OptilockError as error:
            if "Another roll-out" not in str(error):
                raise
        return bool(found)

    until(is_free)
    return found[0]


def migrate(engine: Engine, work: Work) -> None:
    with _operations(engine) as op:
        work(op)


@contextmanager
def _operations(engine: Engine) -> Iterator[Operations]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        # As env.py and the run of one script do, whether or not DDL is transactional.
        with (
            context.begin_transaction(),
            context.begin_transaction(_per_migration=True),
            Operations.context(context) as op,
        ):
            yield op


def as_text(dialect: str, work: Work) -> str:
    written = io.StringIO()
    context = MigrationContext.configure(
        # Its template for env.py names the style, or every % would be written twice.
        dialect=make_url(f"{dialect}://").get_dialect()(paramstyle="named"),
        opts={"as_sql": True, "output_buffer": written},
    )
    with Operations.context(context) as op:
        work(op)
    return written.getvalue().strip()


def revise(engine: Engine, metadata: MetaData, **options: Any) -> Revision:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={**LINE, "target_metadata": metadata, "compare_server_default": True, **options},
        )
        script = produce_migrations(context, metadata)
        written: dict[str, Any] = {}
        prefixes = {"sqlalchemy_module_prefix": "sa.", "alembic_module_prefix": "op."}
        styles = {"render_item": None, "render_as_batch": False, "user_module_prefix": None}
        styles |= prefixes | options
        autogen = AutogenContext(context, opts=styles, autogenerate=False)
        _render_python_into_templatevars(autogen, script, written)
    return Revision(written["upgrades"], written["downgrades"], written["imports"])


def run(engine: Engine, revision: Revision, body: str) -> None:
    """Run the text with the script's own imports and nothing else."""
    names: dict[str, Any] = {"sa": sa}
    exec(revision.imports, names)
    with _operations(engine) as op:
        exec(f"if True:\n    {body}", {**names, "op": op})


def send(engine: Engine, *statements: str) -> list[CursorResult[Any]]:
    with engine.begin() as connection:
        return [connection.execute(text(statement)) for statement in statements]


def shape(engine: Engine, *tables: str) -> dict[str, Any]:
    with engine.connect() as connection:
        seen = inspect(connection)
        found: dict[str, Any] = {name: _reflected(seen, name) for name in tables}
    found["triggers"] = triggers(engine)
    return found


def _reflected(seen: Inspector, name: str) -> dict[str, Any]:
    return {
        "columns": [
            (c["name"], str(c["type"]), c["nullable"], c["default"]) for c in seen.get_columns(name)
        ],
        "key": seen.get_pk_constraint(name),
        "unique": seen.get_unique_constraints(name),
        "checks": seen.get_check_constraints(name),
        "foreign": seen.get_foreign_keys(name),
        "indexes": [_index(one) for one in seen.get_indexes(name)],
    }


def _index(found: Any) -> dict[str, Any]:
    """SQLite's condition is an object that equals itself alone."""
    options = {name: str(value) for name, value in found.get("dialect_options", {}).items()}
    return {**found, "dialect_options": options}


_TRIGGERS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name",
    "postgresql": (
        "SELECT pg_get_triggerdef(t.oid), pg_get_functiondef(t.tgfoid) FROM pg_trigger t"
        " WHERE NOT tgisinternal ORDER BY 1"
    ),
    "mysql": (
        "SELECT trigger_name, action_timing, action_statement FROM information_schema.triggers"
        " WHERE trigger_schema = database() ORDER BY 1"
    ),
}


def triggers(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(_TRIGGERS[engine.dialect.name]))]


__all__ = [
    "Revision",
    "as_text",
    "autogenerate",
    "each_token",
    "migrate",
    "optilock",
    "plugins",
    "revise",
    "run",
    "send",
    "shape",
    "triggers",
]
