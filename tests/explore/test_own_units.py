"""optilock's own units in every order: what each pair leaves is that of a serial order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from checks.explore import own_units as own
from checks.explore.own_units import IGNORED, TABLES, Own
from optilock.testing import Exploration, count_statements, explore

ACCOUNTS = (own.Account,)


@dataclass(frozen=True)
class OwnPair:
    one: Own
    other: Own
    tables: tuple[Any, ...] = ACCOUNTS
    #: What a page of docs/ allows, and which page.
    anomaly: str | None = None
    line: str | None = None
    hot: bool = False
    #: The pair is in the default run.
    quick: bool = False
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        hot = " hot" if self.hot else ""
        return f"{self.one.__name__} | {self.other.__name__}{hot}"


def twice(unit: Own, **options: Any) -> OwnPair:
    return OwnPair(unit, unit, **options)


#: Not on the page of guarantees: this resolver gives up our edit
#: (docs/how-to/conflicts/resolvers.md).
STORE_WINS = "resolvers.md"
ORDERS = (own.Order, own.Line)
#: The two tables that a unit of a queue writes.
JOBS = (own.Account, own.MESSAGES.messages)
PAIRS = [
    twice(own.plain, quick=True),
    twice(own.retried, quick=True),
    OwnPair(own.retried, own.other_row),
    # Listeners to COMMIT are there, so it goes by itself, and the pipeline of BEGIN is over.
    OwnPair(own.pipelined, own.retried, without=("mysql", "mariadb", "sqlite")),
    twice(own.adaptive),
    twice(own.adaptive, hot=True),
    OwnPair(own.adaptive, own.retried, hot=True),
    twice(own.pessimistic),
    OwnPair(own.pessimistic, own.retried),
    twice(own.strict),
    twice(own.locked),
    OwnPair(own.locked, own.retried),
    twice(own.commuting, quick=True),
    OwnPair(own.commuting, own.retried),
    OwnPair(own.commuting, own.merging),
    OwnPair(own.nested, own.retried),
    twice(own.merging),
    OwnPair(own.merging, own.retried, quick=True),
    twice(own.client_winning),
    OwnPair(own.client_winning, own.retried),
    twice(own.store_winning),
    OwnPair(own.store_winning, own.retried, anomaly="lost update", line=STORE_WINS),
    OwnPair(own.store_winning, own.client_winning),
    OwnPair(own.by_statement, own.retried),
    OwnPair(own.first_verified, own.second_verified, quick=True),
    OwnPair(own.first_piece, own.second_piece, tables=ORDERS, quick=True),
    OwnPair(own.first_piece, own.touching, tables=ORDERS),
    twice(own.patching, quick=True),
    OwnPair(own.putting, own.patching),
    OwnPair(own.patching, own.deleting),
    OwnPair(own.patching, own.retried),
    twice(own.leasing),
    OwnPair(own.leasing, own.against_lease),
    twice(own.sending, tables=JOBS),
    twice(own.receiving, tables=JOBS),
    OwnPair(own.filling, own.shipping, tables=(own.Parcel,)),
    twice(own.filling, tables=(own.Parcel,)),
    twice(own.once, tables=(own.Account,)),
    twice(own.keyed, tables=(own.Account,)),
    OwnPair(own.keyed, own.retried),
]


def _marked() -> Iterator[Any]:
    for pair in PAIRS:
        marks = [] if pair.quick else [pytest.mark.full]
        yield pytest.param(pair, id=pair.name, marks=marks)


@pytest.fixture
def stage(engine: Engine) -> Iterator[Engine]:
    for metadata in {table.metadata for table in TABLES}:
        of_it = [table for table in TABLES if table.metadata is metadata]
        metadata.create_all(engine, tables=of_it)
    yield engine
    for metadata in {table.metadata for table in TABLES}:
        of_it = [table for table in TABLES if table.metadata is metadata]
        metadata.drop_all(engine, tables=of_it)


def explored(pair: OwnPair, engine: Engine) -> Exploration:
    sessions, reset = sessionmaker(engine), own.reset_of(engine)
    return explore(
        pair.one(sessions),
        pair.other(sessions),
        sessions=sessions,
        reset=own.heating(engine, reset) if pair.hot else reset,
        tables=pair.tables,
        ignoring=IGNORED,
    )


@pytest.mark.usually("sqlite-wal")
@pytest.mark.parametrize("pair", [*_marked()])
@pytest.mark.tenth
def test_two_units_leave_what_a_serial_order_leaves(pair: OwnPair, stage: Engine) -> None:
    if stage.dialect.name in pair.without:
        pytest.skip("this database has no such unit on this engine")
    found = explored(pair, stage)
    assert found.complete, found.summary
    assert {one.anomaly for one in found.failures} == {pair.anomaly} - {None}, str(found)


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize(
    "pair",
    [
        OwnPair(own.first_optimistic, own.second_optimistic),
        OwnPair(own.account_under_order, own.order_under_account),
    ],
    ids=lambda pair: pair.name,
)
def test_units_that_verify_what_the_other_one_writes_never_deadlock(
    pair: OwnPair, stage: Engine
) -> None:
    found = explored(pair, stage)
    assert found.complete, found.summary
    assert not found.failures, str(found)
    assert found.waits
    assert not found.deadlocks


@pytest.mark.engines("postgresql", "mariadb")
def test_a_row_is_hot_before_each_order(stage: Engine) -> None:
    reset = own.heating(stage, own.reset_of(stage))
    reset()
    with count_statements(stage) as sent:
        own.adaptive(sessionmaker(stage))()
    assert any("FOR " in one.text for one in sent.statements)
