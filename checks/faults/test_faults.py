"""A few trials on each engine; ``python -m checks.faults`` runs as many as you like."""

from __future__ import annotations

from functools import cache

import pytest
from sqlalchemy import create_engine

from checks.faults.drivers import KINDS
from checks.faults.trials import calls_of, chosen, run
from checks.faults.works import WORKS, World

#: The engine under test -> drivers whose calls fail.
DRIVERS = {"sqlite-wal": ["sqlite", "aiosqlite"], "postgresql": ["psycopg", "psycopg-async"]}
#: A roll-out has hundreds of calls, each of which takes a while.
QUICK = [
    ["merge", "savepoint", "send", "migration"],
    ["unit", "batch", "entity-alone", "lease"],
]


@pytest.mark.engines("sqlite-wal", "postgresql")
@pytest.mark.parametrize("part", range(2))
def test_nothing_is_half_written_or_stored_twice_whichever_call_fails(database, part, tries):
    """G1 to G6: and what is raised is the first error."""
    engines = DRIVERS[database.name]
    direct = create_engine(database.url)
    World(None, direct).prepare()
    direct.dispose()
    calls = cache(lambda engine, name: calls_of(engine, name, database.url))
    names = list(WORKS) if tries(0, 1, 1) else QUICK[part]
    trials = chosen(
        engines,
        names,
        sorted({kind for kind, _ in KINDS}),
        tries(8, 60, 200),
        part,
        calls,
    )
    assert trials
    assert [found for trial in trials if (found := run(trial, database.url))] == []
