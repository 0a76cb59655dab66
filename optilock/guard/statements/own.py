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

from optilock.conditions.keys import root_of
from optilock.errors import ConfigurationError
from optilock.guard.statements.unseen import Unseen
from optilock.mapping.facts import facts
from optilock.rows.seen import version_seen
from optilock.session.connections import bind_to_write, own_connection
from optilock.session.promises import Promise
from optilock.session.records import Stated
from optilock.session.watched import watched
from optilock.undocumented import is_flushing

__all__ = [
    "binds_of",
    "flush_before",
    "keep_promises",
    "note",
    "note_added",
    "note_on",
    "note_unseen_on",
    "promised_rows",
    "refuse_elsewhere",
]


def note(session: Session, mapper: Mapper[Any], options: Mapping[str, Any]) -> None:
    """If the statement is rolled back, what was read after it has to be read again."""
    own_connection(session, binds_of(mapper, options))  # begins the transaction
    note_on(session, mapper)


def note_on(session: Session, mapper: Mapper[Any], *, adds: bool = False) -> None:
    """The same, where the transaction has begun; ``adds``: it changes no row that was stored."""
    known, base = watched(session), facts(mapper).root
    held = {
        state: version_seen(state, key) if (key := facts(state.mapper).token) else None
        for state in session.identity_map.all_states()
        if facts(state.mapper).root is base
    }
    known.stated.append(Stated(base, held, len(known.sent), adds))


def note_added(session: Session, mapper: Mapper[Any], options: Mapping[str, Any]) -> None:
    """If the statement is rolled back, objects of the rows that it inserts must be read again."""
    own_connection(session, binds_of(mapper, options))  # begins the transaction
    note_unseen_on(session, Unseen(added=[mapper]))


def note_unseen_on(session: Session, unseen: Unseen) -> None:
    """The statement is about to be sent, in the transaction that has begun."""
    known = watched(session)
    for mapper in unseen.changed:
        note_on(session, mapper)
    for mapper in unseen.added:
        if root_of(mapper) not in known.added_to:  # whoever was read since is in doubt already
            known.added_to.add(root_of(mapper))
            note_on(session, mapper, adds=True)


def refuse_elsewhere(
    session: Session, mapper: Mapper[Any], chosen: Mapping[str, Any], options: Any
) -> None:
    """Refuse a statement for another schema than that of the session's objects.

    Its rows are not theirs, though they have the same keys: objects would take over values and
    versions of rows that they do not stand for.

    Raises:
        ConfigurationError: ``schema_translate_map`` is an option of the statement alone.
    """
    if "schema_translate_map" not in chosen or not facts(mapper).guarded:
        return
    connection = own_connection(session, binds_of(mapper, options))
    if _schemas(connection.get_execution_options()) != _schemas(chosen):
        raise ConfigurationError(
            f"The statement of {mapper.class_.__name__} has a schema_translate_map of its own, and"
            " the session reads and writes its objects in another schema: rows of one would be"
            " taken for rows of the other. Give the map to the engine, engine.execution_options("
            "schema_translate_map=...), or to the connection, session.connection("
            "execution_options=...). Nothing was sent."
        )


def _schemas(options: Mapping[str, Any]) -> dict[Any, Any]:
    """The map, without what SQLAlchemy's compiler adds to it (``_none``)."""
    given = options.get("schema_translate_map") or {}
    return {schema: there for schema, there in given.items() if schema != "_none"}


def flush_before(session: Session, options: Mapping[str, Any]) -> None:
    """Write what is pending, unless ``options`` say otherwise, or a listener of a flush asks."""
    if options.get("autoflush", True) and not is_flushing(session):
        session.flush()


def binds_of(mapper: Mapper[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {**bind_to_write(mapper), **(options.get("bind_arguments") or {})}


def promised_rows(session: Session, mapper: Mapper[Any]) -> dict[Any, Promise]:
    """Key -> what the transaction has promised about rows of the class."""
    promises = watched(session).promises
    if not promises:
        return {}
    promises.in_transaction(session.get_transaction())
    base = facts(mapper).root
    return {identity: promise for (of, identity), promise in promises.items() if of is base}


def keep_promises(
    session: Session, promised: Mapping[Any, Promise], found: Mapping[Any, Any]
) -> None:
    """Rows that the statement moves in the version that was promised are ours from here on."""
    rows = watched(session).stated[-1].rows
    for identity, promise in promised.items():
        if identity in found and found[identity] == promise.version:
            rows.add((facts(promise.mapper).root, identity))
