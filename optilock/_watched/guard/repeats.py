"""Values that a later attempt of a retry wants again, over a change that their author has not seen.

Attempt 1 has read O, wants X, and fails. Attempt 2 reads D, which another transaction has written
in the meantime, and wants X again. Then X was hardly made from the value read: a user has typed it,
and has seen O. So a value that is wanted again is judged *as if attempt 1 still held it*: an
:class:`~optilock.errors.Entry` of O, X and D goes to the row's own resolver. If the resolver
refuses it, or would store another value, or if there is none, then
:class:`~optilock.errors.WouldOverwrite` is raised, which no retry runs again. This one rule covers
ignored columns, columns that belong together, policies for a field, ``overwrite()`` and policies
for deletes.

Some columns are written again: those of ``__version_author__``, ``__version_time__`` and an
``onupdate``; those that listeners of the flush (``before_flush``, ``before_update``) have set; and
those of ``__version_repeats__``, which listeners get as :class:`optilock.events.Repeated`.
``repeat_values="overwrite"`` checks nothing.

*Remembered* are the wanted values of an attempt in which something fails. A flush whose rows miss
remembers these (:func:`remember_missed`); if it refuses them, it remembers all of its rows, because
the others may be changed before the next attempt. A rollback (:func:`remember_wanted`) remembers
the rows of a flush that the database has ended, and objects that are still dirty. Assigned values
count even if they were stored already: a form sends back every field. The values before an earlier
flush of the row are not known any more; the row then counts as changed by others if its version has
moved. An attempt in which nothing fails remembers nothing.

*Checked* is each flush of a later attempt, when SQLAlchemy has handed over its rows: foreign keys
are set by then, and nothing is committed, even where COMMIT goes with the last writes.

A row is identified by its dialect and its key: engines with options (``isolation=``), and an engine
that was disposed of, have the same dialect, and two databases have not. A thread or a task that an
attempt starts is a part of it if it has a copy of its context.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy.orm import NO_VALUE, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock._mapped import Place, State, facts, place_of
from optilock._watched.guard.decisions import ask_resolver, resolver_for, rule_of
from optilock._watched.guard.ended_transactions import attempt_of_write, attempts_in, remember
from optilock._watched.guard.records import Flush
from optilock._watched.guard.running_attempts import (
    Key,
    Rows,
    RunningAttempt,
    WantedRow,
    add_wanted,
    attempt_here,
)
from optilock._watched.rows.entries import Attempt, detached_copy, entry_of, has_moved
from optilock._watched.rows.stored import Values
from optilock._watched.session.connections import engine_to_write
from optilock._watched.session.record import SessionRecord, record_of
from optilock.errors import Computed, ConcurrencyError, Entry, WouldOverwrite
from optilock.resolvers.resolution import Resolution, decide_by_policy
from optilock.resolvers.rules import client_wins, reject
from optilock.serialize import without_handled

_log = logging.getLogger("optilock")


class FirstRead(NamedTuple):
    """A row that a flush of a later attempt has looked at."""

    #: What its transaction has read first.
    read: Values
    #: What was wanted again.
    again: set[str]


# -- remembering -----------------------------------------------------------------------------------


def remember_missed(flush: Flush, *, refused: bool) -> None:
    """Remember the rows of a flush that missed, and all of its rows if it refuses them.

    A settled row may not be written at all, where both sides wanted the same.
    """
    attempt = attempt_here.get()
    if attempt is not None and attempt.remembers:
        stored = {missed.attempt.place: missed.stored for missed in flush.misses}
        settled = (_assigned(missed.state, missed.attempt) for missed in flush.misses)
        _note(attempt, flush.session, _sides_of(flush.session) if refused else settled, stored)


def remember_wanted(session: Session, *, savepoint: bool) -> None:
    """Remember the rows of a transaction, or a savepoint, that is rolled back."""
    attempt, handled = attempt_here.get(), sys.exception()
    if attempt is None or not attempt.remembers or record_of(session).decided:
        return
    try:
        _note(attempt, session, _unwritten(session) if savepoint else _sides_of(session), {})
    except Exception as error:  # of a type of the application's: the rollback has to go on
        what = "what a transaction wanted to write is not known to the next attempt"
        _log.warning(what, exc_info=without_handled(error, handled))


def _sides_of(session: Session) -> Iterable[Attempt]:
    """Return our side of every row that the transaction has tried to write, or was to write."""
    record = record_of(session)
    flush: Flush | None = record.flush
    sides: dict[Place, Attempt] = {}
    # The values before an earlier flush of the row are not known any more, only its version.
    for write in (*record.sent[: None if flush is None else flush.began], *record.undone):
        if facts(write.shape.mapper).token:
            earlier = attempt_of_write(write)
            before = sides.setdefault(earlier.place, earlier)
            sides[earlier.place] = replace(before, changes={**before.changes, **earlier.changes})
    for side in _unwritten(session):
        sides[side.place] = _written_before(sides.get(side.place), side)
    kept = record.sides or {}
    return (_joined(kept[at], side) if at in kept else side for at, side in sides.items())


def _unwritten(session: Session) -> Iterable[Attempt]:
    """Return our side of the rows of the running flush, or else of those without a flush."""
    record = record_of(session)
    flush: Flush | None = record.flush
    if flush is not None:
        remember(flush)
        return [_assigned(flush.states_of(one.place[0])[one.identity], one) for one in flush.wanted]
    states = dict.fromkeys((instance_state(obj) for obj in session.dirty), False)
    states |= dict.fromkeys((instance_state(obj) for obj in session.deleted), True)
    by_row = {place_of(state): state for state in states if state.key is not None}
    return [_assigned(by_row[side.place], side) for side in attempts_in(states, record.sent)]


def _assigned(state: State, side: Attempt) -> Attempt:
    """Return our side with all that was assigned, changed or not.

    A form sends back every field. A value that is as it was read is no change, but the next attempt
    assigns it again, and others may have changed it. Foreign keys are set by the flush only.
    """
    if side.action == "delete":
        return side
    known = facts(state.mapper)
    names: dict[Any, str] = {column: name for name, column in known.columns.items()}
    more = {
        name: detached_copy(state.dict[name], name)
        for name in state.committed_state
        if name in known.columns and name in state.dict and name != known.token
    }
    keys = _keys_of_relationships(state, names)
    return replace(side, changes={**more, **side.changes, **keys})


def _keys_of_relationships(state: State, names: Mapping[Any, str]) -> Values:
    """Return the foreign keys of relationships that were set."""
    keys: Values = {}
    for one in state.mapper.relationships:
        if one.direction is not RelationshipDirection.MANYTOONE or one.key not in state.dict:
            continue
        if one.key in state.committed_state:
            for local, remote in one.local_remote_pairs or ():
                if local in names:
                    keys[names[local]] = _value_of(state.dict[one.key], remote)
    return keys


def _value_of(obj: Any, column: Any) -> Any:
    if obj is None:
        return None
    state = instance_state(obj)
    return state.dict.get(facts(state.mapper).names[column])


def _written_before(earlier: Attempt | None, side: Attempt) -> Attempt:
    """Return the side of a row that an earlier flush has written, with the values of that flush."""
    if earlier is None:
        return side
    read = {name: v for name, v in side.original.items() if name not in earlier.changes}
    return replace(side, original=read, changes={**earlier.changes, **side.changes})


def _note(
    attempt: RunningAttempt,
    session: Session,
    sides: Iterable[Attempt],
    stored: Mapping[Place, Values | None],
) -> None:
    for side in sides:
        if side.action != "verify":
            key, found = _key(session, side), stored.get(side.place)
            before = attempt.wanted.get(key)
            if before is not None and _read_the_same(before.side, side):
                attempt.wanted[key] = WantedRow(_joined(before.side, side), found or before.stored)
            else:
                add_wanted(attempt.wanted, {key: WantedRow(side, found)})


def _read_the_same(first: Attempt, then: Attempt) -> bool:
    token = facts(then.mapper).token
    return not token or facts(then.mapper).same(token, first.original[token], then.original[token])


def _joined(first: Attempt, then: Attempt) -> Attempt:
    original = {**then.original, **first.original}
    return replace(then, original=original, changes={**first.changes, **then.changes})


def _key(session: Session, side: Attempt) -> Key:
    return engine_to_write(session, side.mapper).dialect, side.place


#: Instead of a value: what a foreign key gets is set by the flush itself, and not by a listener.
_BY_FLUSH = object()


def note_assigned(session: Session) -> None:
    """Note the values with which a flush of a later attempt begins, before its listeners."""
    record_of(session).assigned = {
        state: dict(state.dict) for state in map(instance_state, session.dirty)
    }


def note_listeners(session: Session) -> None:
    """Note that the listeners before the flush have run: from here on it sets foreign keys."""
    assigned = record_of(session).assigned
    for state in map(instance_state, session.dirty):
        before = assigned.setdefault(state, {})
        for name, column in facts(state.mapper).columns.items():
            if column.foreign_keys and _is_as_before(before, state, name):
                before[name] = _BY_FLUSH


def _is_as_before(before: Mapping[str, Any], state: State, name: str) -> bool:
    return before.get(name, NO_VALUE) is state.dict.get(name, NO_VALUE)


# -- judging ---------------------------------------------------------------------------------------


def judge(flush: Flush, repeats: Rows) -> None:
    """Judge the rows of a later attempt's flush that an attempt before it wanted to write.

    Raises:
        WouldOverwrite: a value is wanted again, over a change that its author has not seen.
    """
    remember(flush)
    record = flush.record
    reported: list[Entry[Any]] = []
    refused: list[tuple[Entry[Any], str]] = []
    for found in flush.wanted:
        repeated = _repeated(flush, repeats, found)
        if repeated is None:
            continue
        entry, ours = repeated
        resolver = resolver_for(rule_of(ours, record), entry.model)
        if not (open_names := entry.conflicting - facts(ours.mapper).repeats) and entry.conflicting:
            reported.append(entry)
            continue
        entry = replace(entry, conflicting=open_names)
        if (reason := _why_not(entry, ours, resolver)) is not None:
            refused.append((entry, reason))
    if refused:
        raise events.report(_would_overwrite(refused))
    if reported:
        events.emit(lambda: events.Repeated(tuple(reported)))


def _repeated(flush: Flush, repeats: Rows, found: Attempt) -> tuple[Entry[Any], Attempt] | None:
    """Return the entry of a row that is wanted again over a change of others, and our side."""
    record, key = flush.record, _key(flush.session, found)
    then = repeats.get(key)
    if then is None or then.side.action != found.action:
        return None
    if record.promises and record.promises.demand(found.place):
        return None  # a client that names the version has seen it
    ours, again = _read_first(record, key, then, found)
    entry = _entry(then, ours, _without_set_by_flush(flush, found, again))
    if entry is None or decide_by_policy(entry, record.on_delete) is not None:
        return None
    return entry, ours


def _read_first(
    record: SessionRecord, key: Key, then: WantedRow, ours: Attempt
) -> tuple[Attempt, Values]:
    """Return our side against the values read first, and the values that are wanted again.

    An earlier flush of the transaction may have written the row.
    """
    judged = record.read_first().setdefault(key, FirstRead(ours.original, set()))
    ours = replace(ours, original={**ours.original, **judged.read})
    again = _again(then.side, ours)
    judged.again.update(again)
    return ours, again


def _without_set_by_flush(flush: Flush, found: Attempt, again: Values) -> Values:
    """Return the values without those that a listener of the flush has set."""
    state = flush.states_of(found.place[0]).get(found.identity)
    if state is None:
        return again
    before, columns = flush.record.assigned.get(state), facts(state.mapper).columns
    if before is None:
        return {name: value for name, value in again.items() if columns[name].foreign_keys}
    return {
        name: value
        for name, value in again.items()
        if before.get(name) is _BY_FLUSH or _is_as_before(before, state, name)
    }


def forget_stored(record: SessionRecord) -> None:
    """COMMIT: values that were wanted again are stored, and what follows is this attempt's own."""
    attempt, judged = attempt_here.get(), record.read_first()
    record.forget_read_first()
    if attempt is None or attempt.repeats is None:
        return
    rows = attempt.repeats
    for key, row in judged.items():
        then = rows.pop(key, None)
        if then is not None:
            left = {n: value for n, value in then.side.changes.items() if n not in row.again}
            rows[key] = WantedRow(replace(then.side, changes=left), then.stored)


def _again(side: Attempt, ours: Attempt) -> Values:
    """Return the values that are wanted again; what each write sets is each attempt's own."""
    known = facts(ours.mapper)
    return {
        name: value
        for name, value in ours.changes.items()
        if name in side.changes
        and name not in known.of_each_write
        and not isinstance(value, Computed)
        and known.columns[name] not in known.commuting
        and known.same(name, value, side.changes[name])
    }


def _entry(then: WantedRow, ours: Attempt, again: Values) -> Entry[Any] | None:
    """Return the conflict if the attempt before still held its values, or ``None``."""
    side, stored = then.side, {**(then.stored or {}), **ours.original}
    moved = _has_moved(side, stored)
    if ours.action == "delete":
        return entry_of(side, stored) if moved else None
    # Where the values are not known any more, a version that has moved is a change of others.
    again = {name: value for name, value in again.items() if moved or name in side.original}
    side = replace(side, changes=again, current={**side.original, **again})
    entry = entry_of(side, stored)
    # Set without having been read, then and now: others may have changed it.
    unread = again.keys() - stored.keys() if moved else frozenset()
    conflicting = entry.conflicting.union(unread)
    return replace(entry, conflicting=conflicting) if again and conflicting else None


def _has_moved(side: Attempt, stored: Values) -> bool:
    return has_moved(replace(side, original=_both(side.original, stored)), stored)


def _both(original: Values, stored: Values) -> Values:
    return {name: value for name, value in original.items() if name in stored}


def _why_not(entry: Entry[Any], ours: Attempt, resolver: Callable[..., Any] | None) -> str | None:
    """Return a note of the reason against the write; ``None``: the resolver wants the same."""
    if resolver is client_wins:
        return None
    if resolver in (None, reject) or entry.conflicting - (entry.database or {}).keys():
        return ""
    answer = ask_resolver(entry, resolver, [entry])
    if isinstance(answer, ConcurrencyError):
        return " ".join(getattr(answer, "__notes__", ()))
    if isinstance(answer, Exception):
        raise answer
    if _stores_the_same(answer, entry, ours):
        return None
    return (
        f"optilock: {entry.row}: its resolver would store another value than the one wanted again"
    )


def _stores_the_same(answer: Resolution, entry: Entry[Any], ours: Attempt) -> bool:
    """Return whether the resolver would store the same values as the flush."""
    if answer.decision != "write" or entry.action == "delete":
        return answer.decision == "overwrite"
    same = facts(ours.mapper).same
    kept = {**(entry.database or {}), **ours.current}
    return all(same(name, answer.values[name], kept[name]) for name in entry.conflicting)


def _would_overwrite(refused: list[tuple[Entry[Any], str]]) -> WouldOverwrite:
    error = WouldOverwrite(entry for entry, _ in refused)
    for _, reason in refused:
        if reason:
            error.add_note(reason)
    return error
