"""What goes on beside a unit: the unit around it that it does not join, and the scope's session.

**Around.** Units join when they are opened on the same sessions. On another factory, or the engine
itself, the inner one is a transaction of its own, without anybody having said so: what it commits
stays when the outer one fails, and a row that both write is a lock for which the inner one waits
for ever, because the outer one waits for the inner one. No database sees that: one half of the
circle is in the program.

**In its place.** A web application has one session a request (``db.session``), and a unit on that
``scoped_session`` has another one. What is changed inside of the unit on an object of the first is
in the wrong session: the unit does not store it, and nobody else need do so::

    g.user = db.session.get(User, 1)
    with UnitOfWork(db.session):
        g.user.name = "Grace"        # refused when the unit is left

So the unit compares what was pending when it began with what is pending when it ends. A session
that was clean costs three questions; one whose changes were flushed meanwhile (autoflush, when a
relationship was read) has noted them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError, SeparateUnitWarning
from optilock.mapped import State
from optilock.unit import running
from optilock.watched.rows.entries import detached
from optilock.watched.session.connections import binds_of_sessions
from optilock.watched.session.order import at_step
from optilock.watched.session.watched import level_of_caller

#: An attribute of a session: its :class:`Beside`, while the unit runs.
_KEY = "_optilock_beside"

#: What an object is to become: whether it is new or deleted, and its changed attributes.
Pending = dict[State, tuple[object, ...]]


class Beside:
    """The pending changes of the scope's own session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before = _pending(session)
        #: Objects that were changed inside and flushed, and the transaction that has them.
        self._flushed: list[str] = []
        self._transaction: ref[Any] | None = None
        at_step("beside", _KEY, before_flush=_before_flush)
        session.__dict__[_KEY] = self

    def over(self) -> None:
        self._session.__dict__.pop(_KEY, None)

    def flushes(self) -> None:
        """The session writes its changes: those of before the unit and those made inside."""
        changed, transaction = self._changed(), self._session.get_transaction()
        if changed and transaction is not None:
            self._flushed += changed
            self._transaction = ref(transaction)
        self._before = _pending(self._session)

    def refuse_changes(self) -> None:
        """Refuse to leave the unit as if it had stored what was changed beside it.

        Raises:
            ConfigurationError: objects of the scope's session were changed inside.
        """
        changed, running = self._changed(), self._session.get_transaction()
        if running is not None and self._transaction is not None and self._transaction() is running:
            changed += self._flushed
        if changed:
            raise ConfigurationError(
                "inside this unit of work objects of another session were changed, the one that"
                f" the scoped session had before: {', '.join(sorted(set(changed)))}. The unit has a"
                " session of its own and would not store them, so it is rolled back as a whole."
                " Read these objects inside the unit, with its session, or change them outside of"
                " it and commit their own session."
            )

    def _changed(self) -> list[str]:
        """Names and keys of the objects that are to become something else than before."""
        return [
            _named(state)
            for state, wanted in _pending(self._session).items()
            if self._before.get(state) != wanted
            and (state in self._before or wanted[0] or self._session.is_modified(state.obj()))
        ]


def _pending(session: Session) -> Pending:
    found: Pending = {}
    for kind, objects in (("", session.dirty), ("new", session.new), ("gone", session.deleted)):
        for state in map(instance_state, objects):
            found[state] = (kind, *_changes(state))
    return found


def _changes(state: State) -> Iterable[tuple[str, object]]:
    """Each changed attribute with its new value; of relationships, which objects came and went."""
    columns = state.mapper.column_attrs
    for name in sorted(state.committed_state):
        if name in columns:
            yield name, detached(state.dict.get(name), name)
        else:
            history = state.attrs[name].history
            yield name, ([*map(id, history.added or ())], [*map(id, history.deleted or ())])


def _named(state: State) -> str:
    name = state.class_.__name__
    return f"a new {name}" if state.key is None else f"{name} {tuple(state.key[1])!r}"


def _before_flush(session: Session, *_: object) -> None:
    session.__dict__[_KEY].flushes()


# -- around --------------------------------------------------------------------------------------


def tell_of_units_around(sessions: Any) -> None:
    """Warn where a unit on other sessions of the same database runs here already."""
    around = [one for one in running.opened_with() if one is not sessions]
    if not around:
        return
    ours, theirs = binds_of_sessions(sessions), [b for s in around for b in binds_of_sessions(s)]
    if any(_same_database(one, other) for one in ours for other in theirs):
        warnings.warn(
            "this unit of work does not join the one that runs already, because it was opened on"
            " other sessions of the same database: it commits on its own, and where both write a"
            " row it waits for ever for the unit around it. Open both on one sessionmaker, or give"
            " the inner one independent=True if two transactions are meant.",
            SeparateUnitWarning,
            stacklevel=level_of_caller(),
        )


def _same_database(one: Engine | Connection, other: Engine | Connection) -> bool:
    """Is it one pool, or one address? Databases in the memory of the process have none.

    On one connection the two are no two transactions.
    """
    if one is other and isinstance(one, Connection):
        return False
    if one.engine.pool is other.engine.pool:
        return True
    a, b = one.engine.url, other.engine.url
    if not a.database or "memory" in a.database:
        return False
    return (a.get_backend_name(), a.host, a.port, a.database) == (
        b.get_backend_name(),
        b.host,
        b.port,
        b.database,
    )
