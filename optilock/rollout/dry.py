"""The SQL that a roll-out would send (``optilock migrate --dry-run``).

::

    for line in dry_run(engine, "accounts", token=Counter(), guard="bump"):
        print(line)

Lines that begin with ``--`` name the step. The table is only read. On SQLite the column and the
triggers are made in a transaction that is rolled back, because the text of the new table comes from
the old one; other transactions cannot write during that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import Column, Connection, Engine, String, bindparam
from sqlalchemy.schema import CreateTable, DropTable

from optilock.dialects.migrations import Step, Target, Ways
from optilock.dialects.values import single_percents
from optilock.rollout.attempts import LOCK_TIMEOUT, PATIENCE, open_attempts
from optilock.rollout.claim import claim_of
from optilock.rollout.fill import Pace, pace_of
from optilock.rollout.target import guard_of, look_at_table, missing_triggers, require_column
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy


def dry_run(
    engine: Engine,
    table: str,
    *,
    token: Token | None = None,
    schema: str | None = None,
    batch: int | None = None,
    guard: Policy | None = None,
    ignore: Iterable[str] = (),
) -> list[str]:
    """Return the SQL that :func:`optilock.rollout.roll_out` would send, if any.

    Raises:
        ConfigurationError: as ``roll_out``.
    """
    token = Counter() if token is None else token
    require_column(token)
    guarding, pace = guard_of(table, token, schema, guard, ignore), pace_of(None, batch, 1)
    waits: Any = {"lock_timeout": LOCK_TIMEOUT, "patience": PATIENCE, "progress": None}
    with open_attempts(engine, table, call="dry_run", **waits) as attempts:
        connection, ways = attempts.connection, attempts.ways
        with connection.begin() as transaction:
            target = look_at_table(connection, ways, table, schema, token, guarding)
            dry = _Dry(connection, ways, pace)
            if ways.makes_tables_anew:
                ways.begin(connection, attempts.lock_timeout)
            shown = list(dry.steps(target, guarding))
            transaction.rollback()
    return shown


@dataclass
class _Dry:
    connection: Connection
    ways: Ways
    pace: Pace

    def steps(self, target: Target, guard: GuardTrigger | None) -> Iterator[str]:
        """Yield all missing steps, between making the claim and dropping it."""
        shown = list(self._missing(target, guard))
        if not shown:
            return
        dialect, table = self.connection.dialect, target.table
        row = claim_of(table.name, table.schema).row
        yield "-- note that this roll-out works"
        yield _text(dialect, CreateTable(row, if_not_exists=True))
        yield from shown
        yield "-- it is over"
        yield _text(dialect, DropTable(row, if_exists=True))

    def _missing(self, target: Target, guard: GuardTrigger | None) -> Iterator[str]:
        dialect = self.connection.dialect
        if target.column is None:
            adding = self.ways.add_column(target, dialect)
            yield from self._of("add the column", adding, really=True)
            target = self._with_column(target)
        elif target.version.nullable and not target.has_default:
            yield from self._of("set the default", self.ways.set_default(target, dialect))
        for trigger in missing_triggers(self.connection, target, guard):
            step = self.ways.create_trigger(*trigger.statements)
            yield from self._of(trigger.step, [step], really=True)
        if target.version.nullable:
            yield "-- fill, batch after batch, each in a transaction of its own"
            yield from self.ways.shown_fill(target, dialect, self.pace.first())
            yield from self._of("require it", self.ways.require(target, dialect))

    def _with_column(self, target: Target) -> Target:
        constant = self.ways.makes_tables_anew and self.ways.fills_as_it_adds(target.token)
        column: Column[Any] = Column(target.name, target.token.type(), nullable=not constant)
        target.table.append_column(column)
        return replace(target, column=column, has_default=True)

    def _of(self, name: str, steps: Sequence[Step], *, really: bool = False) -> Iterator[str]:
        """Yield the SQL of steps; ``really``: execute it on SQLite, where later steps need it."""
        noted = _Noted(self.connection, really=really and self.ways.makes_tables_anew)
        for step in steps:
            step(noted)
        if noted.sent:
            yield f"-- {name}"
            yield from noted.sent


@dataclass
class _Noted:
    """Stands in for a connection: executes reads, and notes statements that change something."""

    connection: Connection
    really: bool
    sent: list[str] = field(default_factory=list)

    @property
    def dialect(self) -> Any:
        return self.connection.dialect

    def exec_driver_sql(self, sql: str) -> Any:
        if _reads(sql):
            return self.connection.exec_driver_sql(sql)
        self.sent.append(single_percents(self.dialect, sql))
        return self.connection.exec_driver_sql(sql) if self.really else None

    def execute(self, statement: Any, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
        values = [
            bindparam(name, value, String() if isinstance(value, str) else None)
            for name, value in given.items()
        ]
        sql = _text(self.dialect, statement.bindparams(*values) if values else statement)
        if _reads(sql):
            return self.connection.execute(statement, given)
        self.sent.append(sql)
        return self.connection.execute(statement, given) if self.really else None

    def scalar(self, statement: Any, given: Any = None) -> Any:
        return self.connection.scalar(statement, given)


def _reads(sql: str) -> bool:
    return sql.startswith("SELECT") or (sql.startswith("PRAGMA") and "=" not in sql)


def _text(dialect: Any, statement: Any) -> str:
    written = {"literal_binds": True} if hasattr(statement, "bindparams") else {}
    made = single_percents(dialect, str(statement.compile(dialect=dialect, compile_kwargs=written)))
    return " ".join(made.split()) if isinstance(statement, CreateTable) else made
