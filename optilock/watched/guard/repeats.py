"""A later attempt wants a value again: would it write over a change that its author has not seen?

Attempt 1 has read O, wants X, and fails. Attempt 2 reads D, which somebody else has written
meanwhile, and wants X again. Then X was hardly made from what was read: a person has typed it, and
has seen O. So the rule is that a value which is wanted again is judged *as if attempt 1 still held
it*: an :class:`~optilock.errors.Entry` of O, X and D goes to the row's own resolver. What it
refuses, or would store otherwise, is :class:`~optilock.errors.WouldOverwrite`, which no retry runs
again. That one rule knows of ignored columns, of columns that belong together, of policies for a
field, of ``overwrite()`` and of policies for deletes.

A row without a resolver, or with ``reject``, has nobody to ask: it is written, and listeners hear
of it (:class:`optilock.events.Repeated`). ``repeat_values="refuse"`` refuses there as well, and
``"overwrite"`` looks at nothing.

*Remembered* is what an attempt wanted, where something fails: by a flush whose rows miss
(:func:`remember_missed`; if it refuses them, all of its rows, for those that did not miss may be
changed before the next attempt), and by a rollback (:func:`remember_wanted`), which knows the rows
of a flush that the database has ended, and objects that are still dirty. What was assigned counts,
also where it was stored already: a form sends back every field. Of a row that an earlier flush has
written, what it was before is not known any more; then it counts as changed by the others if its
version has moved. An attempt in which nothing fails remembers nothing.

*Looked at* is each flush of a later attempt, when SQLAlchemy has handed over its rows: foreign keys
are set by then, and nothing is committed, also where COMMIT goes with the last writes.

A row is known by its dialect beside its key: engines with options (``isolation=``), and an engine
that was disposed of, have the same one, and two databases have not. A thread or a task that an
attempt starts is a part of it if it has a copy of its context.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from sqlalchemy.orm import RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock.errors import Computed, ConcurrencyError, Entry, WouldOverwrite
from optilock.mapped import Place, State, facts, place_of
from optilock.resolvers.resolution import Resolution, settled_by_policy
from optilock.resolvers.rules import client_wins, reject
from optilock.serialize import alone
from optilock.watched.guard.decide import ask, resolver_for, rule_of
from optilock.watched.guard.ended import attempt_of_write, attempts_in, remember
from optilock.watched.guard.records import Flush
from optilock.watched.rows.entries import Attempt, detached, entry_of, has_moved
from optilock.watched.rows.stored import Values
from optilock.watched.session.connections import engine_to_write
from optilock.watched.session.watched import Watched, known_of

__all__ = [
    "RepeatValues",
    "Repeats",
    "Rows",
    "RunningAttempt",
    "add_wanted",
    "attempt_here",
    "forget_stored",
    "judge",
    "remember_missed",
    "remember_wanted",
    "repeats_of",
]

_log = logging.getLogger("optilock")

#: What ``repeat_values=`` takes; None: the row's resolver decides.
RepeatValues = Literal["refuse", "overwrite"]
#: A row of a database.
Key = tuple[Any, Place]


class Wanted(NamedTuple):
    """What an attempt wanted of a row, and the row that it has met instead."""

    side: Attempt
    stored: Values | None = None


Rows = dict[Key, Wanted]


class Judged(NamedTuple):
    """A row that a flush of a later attempt has looked at."""

    #: What its transaction has read first.
    read: Values
    #: What was wanted again.
    again: set[str]


@dataclass(frozen=True, eq=False)
class Repeats:
    """What the attempts before this one wanted."""

    mode: RepeatValues | None
    rows: Rows


def repeats_of(wanted: Rows, mode: RepeatValues | None, around: RunningAttempt | None) -> Repeats:
    """For an attempt: what its run wanted before, and the run around it."""
    outer = Repeats(None, {}) if around is None or around.repeats is None else around.repeats
    rows = dict(outer.rows)
    add_wanted(rows, wanted)
    return Repeats(mode or outer.mode, rows)


def add_wanted(known: Rows, more: Rows) -> None:
    """Of each row what was wanted last, against what was read when that was wanted first.

    An attempt that fails has not shown to anybody what it has read.
    """
    for key, wanted in more.items():
        known[key] = _newest(known[key], wanted) if key in known else wanted


def _newest(before: Wanted, now: Wanted) -> Wanted:
    first, last, known = before.side, now.side, facts(now.side.mapper)
    if first.action != last.action:
        return now
    if last.action == "delete":
        return before
    wanted = {**first.changes, **last.changes}
    older = {name for name in first.changes if known.same(name, first.changes[name], wanted[name])}
    if not older:
        return now
    original = {name: value for name, value in last.original.items() if name not in older}
    of_first = {*older, known.token} & first.original.keys()
    original.update((name, first.original[name]) for name in of_first)
    return Wanted(replace(last, original=original, changes=wanted), now.stored)


@dataclass(eq=False)
class RunningAttempt:
    """One attempt of a retry: its number, from 1, and when the first began."""

    number: int
    #: ``time.monotonic()``, in seconds.
    started: float
    owner: object
    #: A unit in it was stored, and failed afterwards: another attempt would store it twice.
    stored: bool = False
    #: What was wanted before; None in a first attempt.
    repeats: Repeats | None = None
    #: Is the next attempt to know what this one wanted?
    remembers: bool = True
    #: What this one wanted of the rows of a flush, or a transaction, that has failed.
    wanted: Rows = field(default_factory=dict)

    def over(self) -> None:
        """Whoever has a copy of its context is outside of it from now on."""
        self.repeats, self.remembers = None, False


attempt_here: ContextVar[RunningAttempt | None] = ContextVar("optilock_attempt", default=None)


# -- remembering ----------------------------------------------------------------------------------


def remember_missed(flush: Flush, *, refused: bool) -> None:
    """Rows of a flush have missed. If it refuses them, remember all that it was to write.

    What is settled may not be written at all, where both wanted the same.
    """
    attempt = attempt_here.get()
    if attempt is not None and attempt.remembers:
        stored = {missed.attempt.place: missed.stored for missed in flush.misses}
        settled = (_assigned(missed.state, missed.attempt) for missed in flush.misses)
        _note(attempt, flush.session, _sides_of(flush.session) if refused else settled, stored)


def remember_wanted(session: Session, *, savepoint: bool) -> None:
    """A transaction is rolled back, or a savepoint; the objects still hold what they held."""
    attempt, handled = attempt_here.get(), sys.exception()
    if attempt is None or not attempt.remembers or known_of(session).decided:
        return
    try:
        _note(attempt, session, _unwritten(session) if savepoint else _sides_of(session), {})
    except Exception as error:  # of a type of the application's: the rollback has to go on
        what = "what a transaction wanted to write is not known to the next attempt"
        _log.warning(what, exc_info=alone(error, handled))


def _sides_of(session: Session) -> Iterable[Attempt]:
    """Our side of every row that the transaction has tried to write, or was to write."""
    known = known_of(session)
    flush: Flush | None = known.flush
    sides: dict[Place, Attempt] = {}
    # Of a row that was written before, nobody knows any more what it was: only its version.
    for write in (*known.sent[: None if flush is None else flush.began], *known.undone):
        if facts(write.shape.mapper).token:
            earlier = attempt_of_write(write)
            before = sides.setdefault(earlier.place, earlier)
            sides[earlier.place] = replace(before, changes={**before.changes, **earlier.changes})
    for side in _unwritten(session):
        sides[side.place] = _written_before(sides.get(side.place), side)
    kept = known.sides or {}
    return (_joined(kept[at], side) if at in kept else side for at, side in sides.items())


def _unwritten(session: Session) -> Iterable[Attempt]:
    """Our side of the rows of the running flush; without one, of those that no flush has met."""
    known = known_of(session)
    flush: Flush | None = known.flush
    if flush is not None:
        remember(flush)
        by_row, sides = flush.states(), flush.wanted
    else:
        states = dict.fromkeys((instance_state(obj) for obj in session.dirty), False)
        states |= dict.fromkeys((instance_state(obj) for obj in session.deleted), True)
        by_row = {place_of(state): state for state in states if state.key is not None}
        sides = attempts_in(states, known.sent)
    return [_assigned(by_row[side.place], side) for side in sides]


def _assigned(state: State, side: Attempt) -> Attempt:
    """The same, with whatever else was assigned.

    A form sends back every field. A value that is as it was read is no change, but the next attempt
    assigns it again, and others may have changed it. Foreign keys are set by the flush only.
    """
    if side.action == "delete":
        return side
    known = facts(state.mapper)
    names: dict[Any, str] = {column: name for name, column in known.columns.items()}
    more = {
        name: detached(state.dict[name], name)
        for name in state.committed_state
        if name in known.columns and name in state.dict and name != known.token
    }
    keys = _keys_of_relationships(state, names)
    return replace(side, changes={**more, **side.changes, **keys})


def _keys_of_relationships(state: State, names: Mapping[Any, str]) -> Values:
    """The foreign keys, for relationships that were set."""
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
    """The side of a row that an earlier flush has written: it read then what that had written."""
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
                attempt.wanted[key] = Wanted(_joined(before.side, side), found or before.stored)
            else:
                add_wanted(attempt.wanted, {key: Wanted(side, found)})


def _read_the_same(first: Attempt, then: Attempt) -> bool:
    token = facts(then.mapper).token
    return not token or facts(then.mapper).same(token, first.original[token], then.original[token])


def _joined(first: Attempt, then: Attempt) -> Attempt:
    original = {**then.original, **first.original}
    return replace(then, original=original, changes={**first.changes, **then.changes})


def _key(session: Session, side: Attempt) -> Key:
    return engine_to_write(session, side.mapper).dialect, side.place


# -- judging --------------------------------------------------------------------------------------


def judge(flush: Flush, repeats: Repeats) -> None:
    """Look at what a flush of a later attempt is to write, or has written, of known rows.

    Raises:
        WouldOverwrite: a value is wanted again, over a change that its author has not seen.
    """
    remember(flush)
    known, told, refused = flush.known, [], []
    for found in flush.wanted:
        key = _key(flush.session, found)
        then = repeats.rows.get(key)
        if then is None or then.side.action != found.action:
            continue
        if known.promises and known.promises.demand(found.place):
            continue  # whoever names the version has seen it
        ours, again = _read_first(known, key, then, found)
        entry = _entry(then, ours, again)
        if entry is None or settled_by_policy(entry, known.on_delete) is not None:
            continue
        resolver = resolver_for(rule_of(ours.place, known), entry.model)
        if repeats.mode is None and (resolver is None or resolver is reject):
            told.append(entry)
        elif (reason := _why_not(entry, ours, resolver)) is not None:
            refused.append((entry, reason))
    if refused:
        conflict = tuple(entry for entry, _ in refused)
        events.emit(lambda: events.Conflict(conflict))
        raise _would_overwrite(refused)
    if told:
        events.emit(lambda: events.Repeated(tuple(told)))


def _read_first(known: Watched, key: Key, then: Wanted, ours: Attempt) -> tuple[Attempt, Values]:
    """Our side against what the transaction has read first, and what of it is wanted again.

    An earlier flush of the transaction may have written the row.
    """
    if known.judged is None:
        known.judged = {}
    judged = known.judged.setdefault(key, Judged(ours.original, set()))
    ours = replace(ours, original={**ours.original, **judged.read})
    again = _again(then.side, ours)
    judged.again.update(again)
    return ours, again


def forget_stored(known: Watched) -> None:
    """COMMIT: values that were wanted again are stored, and what follows is this attempt's own."""
    attempt, judged, known.judged = attempt_here.get(), known.judged or {}, None
    if attempt is None or attempt.repeats is None:
        return
    rows = attempt.repeats.rows
    for key, row in judged.items():
        then = rows.pop(key, None)
        if then is not None:
            left = {n: value for n, value in then.side.changes.items() if n not in row.again}
            rows[key] = Wanted(replace(then.side, changes=left), then.stored)


def _again(side: Attempt, ours: Attempt) -> Values:
    """The values that are wanted again."""
    known = facts(ours.mapper)
    return {
        name: value
        for name, value in ours.changes.items()
        if name in side.changes
        and not isinstance(value, Computed)
        and known.columns[name] not in known.commuting
        and known.same(name, value, side.changes[name])
    }


def _entry(then: Wanted, ours: Attempt, again: Values) -> Entry[Any] | None:
    """The conflict there would be if the attempt before still held what it wanted; or none."""
    side, stored = then.side, {**(then.stored or {}), **ours.original}
    moved = _has_moved(side, stored)
    if ours.action == "delete":
        return entry_of(side, stored) if moved else None
    # Of what is not known any more, only a version that has moved says that others have changed it.
    again = {name: value for name, value in again.items() if moved or name in side.original}
    side = replace(side, changes=again, current={**side.original, **again})
    entry = entry_of(side, stored)
    # Set without having been read, then and now: nobody can say that the others left it alone.
    unread = again.keys() - stored.keys() if moved else frozenset()
    conflicting = entry.conflicting.union(unread)
    return replace(entry, conflicting=conflicting) if again and conflicting else None


def _has_moved(side: Attempt, stored: Values) -> bool:
    return has_moved(replace(side, original=_both(side.original, stored)), stored)


def _both(original: Values, stored: Values) -> Values:
    return {name: value for name, value in original.items() if name in stored}


def _why_not(entry: Entry[Any], ours: Attempt, resolver: Callable[..., Any] | None) -> str | None:
    """Why the row is not to be written, as a note; ``None``: its resolver wants what is written."""
    if resolver is client_wins:
        return None
    if resolver is None or entry.conflicting - (entry.database or {}).keys():
        return ""
    answer = ask(entry, resolver, [entry])
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
    """Would the resolver store what the flush does?"""
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
