"""A few trials on each engine; ``python -m tests.faults`` runs as many as you like."""

from __future__ import annotations

from functools import cache

import pytest
from sqlalchemy import create_engine

from tests.faults.drivers import KINDS
from tests.faults.trials import calls_of, chosen, run
from tests.faults.works import WORKS, World

#: The engine under test -> drivers whose calls fail.
DRIVERS = {"sqlite-wal": ["sqlite", "aiosqlite"], "postgresql": ["psycopg", "psycopg-async"]}
#: A roll-out has hundreds of calls, each of which takes a while.
QUICK = [
    ["merge", "savepoint", "send", "migration"],
    ["unit", "batch", "entity-alone", "lease"],
]

#: Findings that nobody has mended yet. Each is a fault, of the library or of the judge: whoever
#: mends one takes its line away.
OPEN = {
    "sqlite batch: call 18 lost before",
    "sqlite entity-alone: call 7 lost after",
    "sqlite migration: call 68 interrupt after",
    "sqlite roll-out: call 172 timeout before",
    "psycopg-async pipelined: call 17 lost after",
}


@pytest.mark.engines("sqlite-wal", "postgresql")
@pytest.mark.parametrize("part", range(2))
def test_nothing_is_half_written_or_stored_twice_whichever_call_fails(database, part, pytestconfig):
    """G1 to G6: and what is raised is the first error."""
    engines = DRIVERS[database.name]
    direct = create_engine(database.url)
    World(None, direct).prepare()
    direct.dispose()
    calls = cache(lambda engine, name: calls_of(engine, name, database.url))
    names = list(WORKS) if pytestconfig.option.full else QUICK[part]
    trials = chosen(
        engines,
        names,
        sorted({kind for kind, _ in KINDS}),
        200 if pytestconfig.option.full else 8,
        part,
        calls,
    )
    assert trials
    trials = [trial for trial in trials if str(trial) not in OPEN]
    assert [found for trial in trials if (found := run(trial, database.url))] == []
