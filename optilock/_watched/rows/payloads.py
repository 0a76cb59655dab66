"""``session.merge(Page(**payload))``: values without the version of the row that they go over.

SQLAlchemy reads the stored row in the same call and writes the payload's values over it. The flush
compares the version that was read a moment ago, so it never conflicts, and a change that the author
of the payload has not seen is overwritten. So it is where a repository reads the row, copies the
payload's values to it, and calls ``merge`` for the object that its session holds already: the
``update`` and ``upsert`` of advanced-alchemy, which are known by the caller of ``merge``
(:data:`REPOSITORIES`). For an object that a program has read and edited itself the call does
nothing, and the flush compares its version.

A strict session refuses such a merge and takes it back; another session gives an
``UnversionedMergeWarning``, once for each class. These are no such merge: a row that is new, values
that the row has already, columns of ``__version_ignore__``, and a row for which this transaction
has called ``expect()``, ``verify()`` or ``overwrite()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy.orm import PassiveFlag, Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts, identity_of, place_of
from optilock._watched.rows.seen import version_seen
from optilock._watched.session.record import (
    frame_of_caller,
    is_strict,
    session_record,
    warn_caller,
)
from optilock._watched.session.values import RowsOfTransaction
from optilock.errors import ConfigurationError, UnversionedMergeWarning

#: Packages with a repository that copies payloads to rows which it reads, and merges these.
REPOSITORIES = frozenset({"advanced_alchemy"})
_WARNED = "_optilock_merge_warned"
_ADVICE = (
    "its values would be written over changes that their author may not have seen. Read the row,"
    " compare it with the version that the author has seen, expect(obj, ...), and then assign or"
    " merge the values; or use optilock.entities.merge() or replace() with if_match=. If the values"
    " are to win over others, call overwrite(obj) of optilock.preconditions before."
)


def check_payloads(session: Session, copies: Iterable[State]) -> None:
    """Refuse merged payloads without a version in a strict session; else warn of them.

    Raises:
        ConfigurationError: the session is strict; the merge has to be taken back.
    """
    for merged in rows_of_payloads(session, copies):
        cls, key = merged.class_.__name__, identity_of(merged)
        _check(session, merged, f"got a {cls} without a version, and {cls} {key!r} is stored")


def check_held(session: Session, state: State) -> None:
    """Check the merge, by a repository, of an edited object that the session holds.

    Raises:
        ConfigurationError: the session is strict, and the object is edited.
    """
    held = state.session is session and state.key is not None and facts(state.mapper).guarded
    if held and state.modified and _package_of_caller() in REPOSITORIES:
        what = f"{state.class_.__name__} {identity_of(state)!r}"
        _check(session, state, f"got the edited {what}, which the session itself has just read")


def _package_of_caller() -> str:
    """Return the package whose code has called ``merge``."""
    frame = frame_of_caller()
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0]


def _check(session: Session, merged: State, what: str) -> None:
    if not _is_changed(merged) or _is_decided(session, merged):
        return
    if is_strict(session):
        raise ConfigurationError(f"session.merge() {what}: {_ADVICE} Nothing was merged.")
    if _WARNED not in merged.mapper.__dict__:
        setattr(merged.mapper, _WARNED, True)
        warn_caller(
            f"session.merge() {what}: {_ADVICE} A strict session refuses it.",
            UnversionedMergeWarning,
        )


def rows_of_payloads(session: Session, copies: Iterable[State]) -> Iterator[State]:
    """Yield the objects of stored rows that a new object without a version was merged into."""
    for copy in copies:
        mapper, obj = copy.mapper, copy.obj()
        if copy.key is not None or copy.session is session or not facts(mapper).guarded:
            continue
        token = facts(mapper).token
        if token and version_seen(copy, token) is not None:
            continue
        merged = session.identity_map.get(mapper.identity_key_from_instance(obj))
        if merged is not None and merged is not obj:
            yield instance_state(merged)


def _is_changed(merged: State) -> bool:
    """Return whether a column that counts gets another value."""
    ignored, columns = facts(merged.mapper).ignored, facts(merged.mapper).columns
    return merged.modified and any(
        merged.get_history(name, PassiveFlag.PASSIVE_NO_INITIALIZE).has_changes()
        for name in merged.committed_state
        if name in columns and columns[name] not in ignored
    )


def _is_decided(session: Session, merged: State) -> bool:
    """Return whether the program has said in which version it writes the row, or in any."""
    record, running = session_record(session), session.get_transaction()
    notes: Iterable[RowsOfTransaction[Any] | None] = (record.promises, record.settled_by)
    return any(
        one is not None and running is not None and one.is_of(running) and one.has(place_of(merged))
        for one in notes
    )
