"""``update()`` and ``delete()`` statements under what the session demands of all its rows.

The demands join the WHERE of the statement. That alone would silently leave out a row of which they
are not true: so every row that matches is locked first and looked at, with the database's verdict.
Looking for rows that fail would not do, because one could be taken while the statement waits.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete
from sqlalchemy.orm import Mapper

from optilock.conditions.condition import explained, failed
from optilock.conditions.demands import Demands
from optilock.errors import Action, ConcurrencyError, Entry
from optilock.mapped.facts import facts
from optilock.rows.sides import Attempt, entry_of, read_stored
from optilock.statements.call import Call
from optilock.statements.matching import rows_found

__all__ = ["under_demands"]


def under_demands(call: Call, mapper: Mapper[Any], demands: Demands) -> Call:
    """The same call under the demands of its session.

    Raises:
        Exception: what a condition explains, for a row that matches and of which it is not true;
            a ``ConcurrencyError`` where it explains nothing.
    """
    conditions = demands.on(mapper)
    if not conditions:
        return call
    call.flush_before()
    by_key = isinstance(call.params, list)
    connection, known = call.connection(mapper), facts(mapper)
    keys = [getattr(mapper.class_, name) for name in known.keys]
    clauses = [one.clause(demands.bound) for one in demands.on(mapper, mapper.local_table)]
    looks = [look for one in conditions for look in one.looks]
    wanted = None
    if by_key:  # SQLAlchemy takes no WHERE beside the keys: the rows are locked now
        wanted = [tuple(row[name] for name in known.keys) for row in call.params]
    found = rows_found(
        connection, call.statement, call.params, known.table, keys, looks, wanted, demands.params
    )
    for identity, seen in found.items():
        wrong = failed(conditions, demands.params, seen)
        if wrong:
            stored = read_stored(connection, mapper, [identity])
            action: Action = "delete" if isinstance(call.statement, Delete) else "update"
            attempt = Attempt(mapper, identity, action, {}, {}, {})
            entry: Entry[Any] = entry_of(attempt, stored.get(identity))
            raise explained(wrong, entry) or ConcurrencyError([entry])
    return call if by_key else call.with_statement(call.statement.where(*clauses))
