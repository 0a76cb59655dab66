"""Rows that must be judged before anything is written on their account.

SQLAlchemy writes a deleted row's dependents (joined tables, cascaded children, link rows) before
the row's own version is checked, and where the version is not in the base table, the base table
too. Such rows are locked and looked at before the flush begins. Here raising is free: nothing was
sent, the transaction is alive, every edit is where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts import Attempt, Values, attempt_of, entry_of, read_stored
from optilock.dialects import database_of
from optilock.errors import ConcurrencyError
from optilock.guard.decide import decide, impossible
from optilock.guard.dependents import has_dependents
from optilock.guard.refresh import equal_to_stored, stale_relationships
from optilock.resolvers import Resolution
from optilock.versioned import token_attribute

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["check_before"]


class _Stale:
    """A row that is known to have moved before the flush begins."""

    def __init__(self, state: InstanceState[Any], attempt: Attempt, stored: Values | None) -> None:
        self.state, self.attempt, self.stored = state, attempt, stored
        self.obj = state.obj()

    @property
    def entry(self) -> Any:
        return entry_of(self.attempt, self.stored)


def check_before(flush: Flush, objects: Any) -> None:
    """Judge deletes with dependents, and rows whose version is not in their base table."""
    session = flush.session
    deleted = [o._sa_instance_state for o in session.deleted if _asked(o, objects)]
    early = [state for state in deleted if _versioned(state) and has_dependents(state.mapper)]
    if _any_apart(session):
        dirty = [o._sa_instance_state for o in session.dirty if _asked(o, objects)]
        early += [state for state in dirty if _versioned(state) and _version_apart(state.mapper)]
    if not early:
        return
    stale = _look(flush, early)
    if stale:
        _settle(flush, stale, objects)


def _asked(obj: Any, objects: Any) -> bool:
    return not objects or any(obj is one for one in objects)


def _versioned(state: InstanceState[Any]) -> bool:
    return state.mapper.version_id_col is not None and state.key is not None


def _version_apart(mapper: Mapper[Any]) -> bool:
    column = mapper.version_id_col
    return column is not None and column.table is not mapper.base_mapper.local_table


def _any_apart(session: Any) -> bool:
    return any(_version_apart(obj._sa_instance_state.mapper) for obj in session.dirty)


def _look(flush: Flush, states: list[InstanceState[Any]]) -> list[_Stale]:
    """Lock the rows, and return those whose version is another one."""
    session = flush.session
    by_mapper: dict[Mapper[Any], list[InstanceState[Any]]] = {}
    for state in states:
        by_mapper.setdefault(state.mapper, []).append(state)
    stale: list[_Stale] = []
    for mapper, some in by_mapper.items():
        connection = session.connection(bind_arguments={"mapper": mapper})
        versions = _lock(connection, mapper, some, only_token=True)
        token = token_attribute(mapper)
        assert token is not None
        moved = [
            state
            for state in some
            if versions.get(tuple(state.key[1]), {}).get(token) != _expected(state, token)  # type: ignore[index]
        ]
        if moved:
            stored = _lock(connection, mapper, moved, only_token=False)
            for state in moved:
                action = "delete" if state.obj() in session.deleted else "update"
                attempt = attempt_of(state, action, _expected(state, token))  # type: ignore[arg-type]
                stale.append(_Stale(state, attempt, stored.get(attempt.identity)))
    return stale


def _expected(state: InstanceState[Any], token: str) -> Any:
    if token not in state.dict:
        return state.attrs[token].load_history().unchanged[0]
    return state.committed_state.get(token, state.dict[token])


def _lock(
    connection: Connection,
    mapper: Mapper[Any],
    states: list[InstanceState[Any]],
    *,
    only_token: bool,
) -> dict[Any, Values]:
    assert mapper.version_id_col is not None
    token = token_attribute(mapper)
    database_of(connection.dialect).begin_writing(connection, mapper.version_id_col.table)
    return read_stored(
        connection,
        mapper,
        [tuple(state.key[1]) for state in states if state.key],
        only=(token,) if only_token and token else (),
        deleting=True,
    )


def _settle(flush: Flush, stale: list[_Stale], objects: Any) -> None:
    answer = decide([row.entry for row in stale], flush.on_conflict)
    if not isinstance(answer, Exception):
        reasons = [
            reason
            for row, resolution in zip(stale, answer, strict=True)
            if (reason := _cannot(row, resolution))
        ]
        if not reasons:
            for row, resolution in zip(stale, answer, strict=True):
                _apply(flush, row, resolution)
            return
        answer = ConcurrencyError(row.entry for row in stale)
        for reason in reasons:
            answer.add_note(f"optilock: {reason}")
    if type(answer) is ConcurrencyError:
        answer = _with_all(flush, answer, stale, objects)
    raise answer


def _cannot(row: _Stale, resolution: Resolution) -> str | None:
    if row.stored is None and row.attempt.action == "update":
        if resolution.decision != "keep_database":
            return "a row whose version is not in its base table cannot be inserted again"
        return None
    return impossible(row.attempt, row.stored, resolution) if resolution.values else None


def _with_all(
    flush: Flush, error: ConcurrencyError, stale: list[_Stale], objects: Any
) -> ConcurrencyError:
    """One error for the whole flush: the updates that were to follow are looked at as well."""
    seen = {id(row.state) for row in stale}
    others = [
        obj._sa_instance_state
        for obj in (*flush.session.dirty, *flush.session.deleted)
        if _asked(obj, objects) and id(obj._sa_instance_state) not in seen
    ]
    more = _look(flush, [s for s in others if _versioned(s) and s.modified or s.obj() in flush.session.deleted and _versioned(s)])
    if not more:
        return error
    complete = ConcurrencyError([*error.entries, *(row.entry for row in more)])
    complete.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        complete.add_note(note)
    return complete


def _apply(flush: Flush, row: _Stale, resolution: Resolution) -> None:
    """Carry out a decision on the objects, so that the flush that follows does the rest."""
    choose: dict[tuple[str, bool], Callable[..., None]] = {
        ("delete", False): _apply_to_delete,
        ("delete", True): _apply_to_gone_delete,
        ("update", False): _apply_to_update,
        ("update", True): _apply_to_gone_update,
    }
    choose[row.attempt.action, row.stored is None](flush, row, resolution)


def _apply_to_delete(flush: Flush, row: _Stale, resolution: Resolution) -> None:
    assert row.stored is not None
    token = token_attribute(row.state.mapper)
    if resolution.decision == "overwrite":
        assert token is not None
        equal_to_stored(row.state, {token: row.stored[token]})
        return
    _undelete(flush, row)
    _take_stored(flush, row)
    for name, value in resolution.values.items():
        setattr(row.obj, name, value)


def _apply_to_gone_delete(flush: Flush, row: _Stale, resolution: Resolution) -> None:
    flush.gone_already.add(row.state)


def _apply_to_update(flush: Flush, row: _Stale, resolution: Resolution) -> None:
    assert row.stored is not None
    ours = {name: row.state.dict[name] for name in row.attempt.changes if name in row.state.dict}
    _take_stored(flush, row)
    if resolution.decision != "keep_database":
        for name, value in {**ours, **resolution.values}.items():
            setattr(row.obj, name, value)


def _apply_to_gone_update(flush: Flush, row: _Stale, resolution: Resolution) -> None:
    flush.session.expunge(row.obj)


def _take_stored(flush: Flush, row: _Stale) -> None:
    assert row.stored is not None
    relationships = stale_relationships(row.state, row.stored)
    equal_to_stored(row.state, row.stored)
    if relationships:
        flush.session.expire(row.obj, relationships)


def _undelete(flush: Flush, row: _Stale) -> None:
    """Take back ``session.delete()``, together with what it cascaded to."""
    session = flush.session
    doomed = [row.obj]
    doomed += [obj for obj, *_ in row.state.mapper.cascade_iterator("delete", row.state)]
    for obj in doomed:
        if obj in session.deleted:
            session.add(obj)
