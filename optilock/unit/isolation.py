"""Isolation levels: set, checked to be in force, and reset afterwards; also units that only read.

::

    from optilock import Isolation, UnitOfWork, repeatable_read, serializable

    with serializable(SessionLocal) as session:                 # no anomaly at all
        ...
    with repeatable_read(SessionLocal, read_only=True) as session:   # one picture of the data
        ...
    with UnitOfWork(SessionLocal, isolation=Isolation.READ_COMMITTED) as session:
        ...

A unit without ``isolation=`` runs at the engine's own level. With it:

* the level is set before the transaction begins, on every connection that the session takes, also
  when it is bound to several engines;
* a query checks that it is in force, which costs a round trip;
* the settings of a connection are reset before it goes back to its pool.

``REPEATABLE_READ`` means the same everywhere: *no lost update and a stable snapshot*, whether the
rows have versions or not. MariaDB needs ``innodb_snapshot_isolation`` for that, which is turned on
for the unit. Servers without it are refused. On SQLite a real BEGIN is sent and the snapshot is
taken with a read; ``SERIALIZABLE`` sends BEGIN IMMEDIATE.

At these two levels a conflict ends the transaction, so it cannot be resolved inside it. Use
:func:`optilock.unit_of_work`, which runs the whole unit again.
``docs/explanation/isolation.md`` lists the anomalies of each level per database.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import facts, identity_of, place_of
from optilock._watched.guard.promises import promises_of
from optilock._watched.rows.unknown_versions import unseen_row_error
from optilock._watched.session.order import listen_in
from optilock._watched.session.values import Promise
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.unit.parts import Part


class Isolation(Enum):
    """A level of isolation, by its name in the SQL standard (ISO/IEC 9075-2, 4.41.4)."""

    READ_COMMITTED = "READ COMMITTED"
    REPEATABLE_READ = "REPEATABLE READ"
    SERIALIZABLE = "SERIALIZABLE"


def level_of(given: object) -> Isolation | None:
    """Return the level that ``isolation=`` names: ``Isolation.SERIALIZABLE``, or its text.

    Raises:
        ConfigurationError: it is no level.
    """
    if given is None or isinstance(given, Isolation):
        return given
    name = " ".join(given.replace("_", " ").upper().split()) if isinstance(given, str) else given
    for level in Isolation:
        if level.value == name:
            return level
    raise ConfigurationError(
        f"isolation={given!r} is no level: write"
        f" {' or '.join(f'Isolation.{level.name}' for level in Isolation)}, or its text, such as"
        ' "SERIALIZABLE".'
    )


class LevelPart(Part, option="isolation"):
    """The part that sets the isolation level of a unit."""

    def __init__(self, level: Isolation | None, *, read_only: bool) -> None:
        assert level is not None
        self.level = level.value
        self.read_only = read_only

    def engine_options(self, engine: Engine) -> Mapping[str, Any]:
        return database_of(engine.dialect).isolation.level_options(self.level)

    def begin(self, session: Session) -> None:
        _refuse_connections(session, "its isolation level cannot be set", "isolation=")

    def connected(self, session: Session, connection: Connection) -> None:
        database = database_of(connection.dialect)
        database.isolation.begin_at(connection, self.level, read_only=self.read_only)


class FirstReadPart(Part):
    """The part that takes the snapshot, after the parts that do work which the snapshot must show.

    A lease, for example, waits for a running renewal, whose COMMIT would come after the snapshot.
    """

    def __init__(self, level: LevelPart) -> None:
        self.level = level

    def connected(self, session: Session, connection: Connection) -> None:
        level = self.level
        database_of(connection.dialect).isolation.take_snapshot(
            connection, level.level, read_only=level.read_only
        )


class ReadOnlyPart(Part, option="read_only"):
    """The part of read-only units: the database refuses their writes."""

    def begin(self, session: Session) -> None:
        _refuse_connections(session, "it cannot be made read-only", "read_only=True")

    def connected(self, session: Session, connection: Connection) -> None:
        database_of(connection.dialect).isolation.begin_read_only(connection)

    def before_flush(self, session: Session) -> None:
        changed = [*session.new, *session.deleted]
        changed += [obj for obj in session.dirty if session.is_modified(obj)]
        if changed:
            names = ", ".join(sorted({type(obj).__name__ for obj in changed}))
            raise ConfigurationError(
                f"this unit of work is read_only=True, but objects were changed in it ({names}):"
                " change them in a unit that may write, or expunge them first."
            )


def _refuse_connections(session: Session, why: str, option: str) -> None:
    if isinstance(session.bind, Connection):
        raise ConfigurationError(
            "this session is bound to a Connection, whose transaction may have begun, so"
            f" {why}: bind the sessionmaker to an Engine, or leave {option} out."
        )


class VerifyReadsPart(Part, option="verify_reads"):
    """The part that verifies every versioned row that the unit's session loads."""

    def begin(self, session: Session) -> None:
        listen_in(session, loaded_as_persistent=_loaded)


def _loaded(session: Session, obj: Any) -> None:
    """Note the version, not the object: the session drops objects without a reference."""
    state = instance_state(obj)
    mapper = state.mapper
    token = facts(mapper).token
    if token and token in state.dict:
        place = place_of(state)
        promised = Promise(mapper, place[1], state.dict[token], demanded=False)
        promises_of(session).add(place, promised)
    elif token:  # the rows of a text have no version
        raise unseen_row_error(mapper, identity_of(state), "be verified")
    elif not token and facts(mapper).compares:
        raise ConfigurationError(
            f"verify_reads cannot verify rows of {mapper.class_.__name__}: the class compares"
            " values (CompareValues) and has no version. Give it a version as well, read it in a"
            " unit without verify_reads, or run the unit with optilock.serializable()."
        )
