"""Isolation levels: asked for, checked to be in force, and put back afterwards.

::

    from optilock import Isolation, UnitOfWork, repeatable_read, serializable

    with serializable(SessionLocal) as session:                 # no anomaly at all
        ...
    with repeatable_read(SessionLocal, read_only=True) as session:   # one picture of the data
        ...
    with UnitOfWork(SessionLocal, isolation=Isolation.READ_COMMITTED) as session:
        ...

A unit without ``isolation=`` runs at the engine's own level. With it:

* the level is set before the transaction begins, on every connection the session takes, also when
  it is bound to several engines;
* the server is asked whether it is in force, which costs a round trip;
* what was set on a connection is undone before the connection goes back to its pool.

``REPEATABLE_READ`` means the same everywhere: *no lost update and a stable snapshot*, whether the
rows have versions or not. MariaDB needs ``innodb_snapshot_isolation`` for that, which is turned on
for the unit, or the unit is refused on servers that do not have it. On SQLite a real BEGIN is
sent and the snapshot is taken with a read; ``SERIALIZABLE`` sends BEGIN IMMEDIATE.

At these two levels a conflict ends the transaction, so it cannot be resolved inside it: use
:func:`optilock.unit_of_work`, which runs the whole unit again. ``docs/isolation.md`` says per
database what each level still allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.unit.parts import Part


class Isolation(Enum):
    """A level of isolation, by its name in the SQL standard (ISO/IEC 9075-2, 4.41.4)."""

    READ_COMMITTED = "READ COMMITTED"
    REPEATABLE_READ = "REPEATABLE READ"
    SERIALIZABLE = "SERIALIZABLE"


class AtLevel(Part, option="isolation"):
    """The part that brings a unit to an isolation level."""

    def __init__(self, level: Isolation, *, read_only: bool) -> None:
        self.level = level.value
        self.read_only = read_only

    def engine_options(self, engine: Engine) -> Mapping[str, Any]:
        return database_of(engine.dialect).level_options(self.level)

    def begin(self, session: Session) -> None:
        _refuse_connections(session, "its isolation level cannot be set", "isolation=")

    def connected(self, session: Session, connection: Connection) -> None:
        database = database_of(connection.dialect)
        database.begin_at(connection, self.level, read_only=self.read_only)


class FirstRead(Part):
    """The part that takes the snapshot, once the parts before it have done what must be in it.

    A lease waits for a renewal that is under way, whose COMMIT would come after the snapshot.
    """

    def __init__(self, level: AtLevel) -> None:
        self.level = level

    def connected(self, session: Session, connection: Connection) -> None:
        level = self.level
        database_of(connection.dialect).take_snapshot(
            connection, level.level, read_only=level.read_only
        )


class ReadOnly(Part, option="read_only"):
    """The part of units that only read: the database refuses their writes."""

    def begin(self, session: Session) -> None:
        _refuse_connections(session, "it cannot be made read-only", "read_only=True")

    def connected(self, session: Session, connection: Connection) -> None:
        database_of(connection.dialect).begin_read_only(connection)

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
