"""What a session has to know of its own UPDATE and DELETE statements.

Which rows a statement moved, nobody knows afterwards. If it is rolled back, an object that was read
after it may hold a version that never was, and a counter gives that number to somebody else's next
write. So what the session's objects held before is noted, and the others must be read again.

Rows that were promised (``expect``, ``verify``) and that the statement found in the promised
version are ours from then on, as rows that a flush has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Mapper, Session

from optilock.connections import bind_to_write, own_connection
from optilock.guard.promises import Promise
from optilock.guard.state import Stated, watched
from optilock.mapping.columns import token_attribute
from optilock.seen import version_seen

__all__ = ["binds_of", "keep_promises", "note", "note_on", "promised_rows"]


def note(session: Session, mapper: Mapper[Any], options: Mapping[str, Any]) -> None:
    """If the statement is rolled back, what was read after it has to be read again."""
    own_connection(session, binds_of(mapper, options))  # begins the transaction
    note_on(session, mapper)


def note_on(session: Session, mapper: Mapper[Any]) -> None:
    """The same, where the transaction has begun."""
    known, base = watched(session), mapper.base_mapper
    held = {
        state: version_seen(state, key) if (key := token_attribute(state.mapper)) else None
        for state in session.identity_map.all_states()
        if state.mapper.base_mapper is base
    }
    known.stated.append(Stated(base, held, len(known.sent)))


def binds_of(mapper: Mapper[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {**bind_to_write(mapper), **(options.get("bind_arguments") or {})}


def promised_rows(session: Session, mapper: Mapper[Any]) -> dict[Any, Promise]:
    """Key -> what the transaction has promised about rows of the class."""
    promises = watched(session).promises
    if not promises:
        return {}
    promises.in_transaction(session.get_transaction())
    base = mapper.base_mapper
    return {identity: promise for (of, identity), promise in promises.items() if of is base}


def keep_promises(
    session: Session, promised: Mapping[Any, Promise], found: Mapping[Any, Any]
) -> None:
    """Rows that the statement moves in the version that was promised are ours from here on."""
    rows = watched(session).stated[-1].rows
    for identity, promise in promised.items():
        if identity in found and found[identity] == promise.version:
            rows.add((promise.mapper.base_mapper, identity))
