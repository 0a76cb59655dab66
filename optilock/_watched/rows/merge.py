"""``session.merge()`` of a watched session: all of it, or none.

A copy that carries a version was read in that version. If its row is in another version, or gone,
the merge is a conflict: it would overwrite the other change, or insert the deleted row again. A
copy without a version does not show which row was read, and is merged over the newest row, as
SQLAlchemy does (:mod:`optilock._watched.rows.payloads`: a new object over a stored row). A copy
that a commit has expired carries the version that was seen last.

Where values are compared (``CompareValues``), all compared values that were read must still be
stored: a merge writes all values of the copy, changed or not.

SQLAlchemy merges a graph object by object. When it finds a stale copy, it has merged others
already, and new ones wait to be inserted. A conflict takes all of that back, and has an entry for
every stale copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from sqlalchemy import Column, inspect
from sqlalchemy.orm import NO_VALUE, ColumnProperty, InstanceState, Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import StaleDataError

from optilock._mapped import State, facts
from optilock._mapping.original_values import (
    any_compared,
    compared_names,
    value_as_read,
    values_are_unknown,
)
from optilock._undocumented.mappers import extend_attribute, state_str
from optilock._watched.rows.entries import (
    attempt_of,
    entry_of,
    moved_entry,
    side_as_read,
    stored_of,
)
from optilock._watched.rows.members import members_of, refuse_unseen
from optilock._watched.rows.payloads import check_held, check_payloads, rows_of_payloads
from optilock._watched.rows.rolled_back import follow_copy
from optilock._watched.rows.seen import (
    Memory,
    forget_version,
    is_never_read,
    memories,
    restore_memory,
    version_seen,
)
from optilock._watched.rows.unknown_versions import (
    VERSION_BEFORE,
    hold_version,
    may_be_undone,
    unseen_row_error,
)
from optilock.errors import ConcurrencyError, ConfigurationError, Entry
from optilock.events import report

_ADVICE = (
    " Nothing was merged. Read the row again and apply the edits to it, or show both versions to"
    " their authors."
)
#: SQLAlchemy's own advice would overwrite a change that the author of the copy has not seen.
_SQLALCHEMYS_ADVICE = " Leave the version attribute unset when merging"


def reword(message: str) -> str:
    """Return SQLAlchemy's message about a stale copy, with advice that loses no change."""
    said, its_advice, _ = message.partition(_SQLALCHEMYS_ADVICE)
    return said + _ADVICE if its_advice else message


def is_stale(source: State, merged: State) -> bool:
    """Return whether the copy has another version, or values, than the object it goes into."""
    if source is merged:
        return False
    if is_undone(source):
        return True
    token = facts(source.mapper).token
    if has_other_values(source, merged):
        return True
    if not token or facts(merged.mapper).token != token:
        return False
    seen, held = version_seen(source, token), version_seen(merged, token)
    if seen is None or held is None:
        return False
    return not facts(merged.mapper).same(token, seen, held)


def is_undone(source: State) -> bool:
    """Return whether the copy holds values that may never have been stored."""
    if may_be_undone(source):
        return True
    token = facts(source.mapper).token
    if not token or not is_never_read(source) or source.dict.get(token) is not None:
        return False
    class_facts = facts(source.mapper)
    return any(name in source.dict for name in class_facts.columns if name not in class_facts.keys)


def has_other_values(source: State, merged: State) -> bool:
    """Return whether a compared value of the copy was read as another one than the stored one."""
    class_facts = facts(merged.mapper)
    names = compared_names(merged.mapper, changed=(), deleting=True)
    if values_are_unknown(source) and any(name in source.dict for name in names):
        return True
    for name in names:
        seen, stored = value_as_read(source, name), value_as_read(merged, name)
        if seen is NO_VALUE or stored is NO_VALUE:
            continue
        if not class_facts.same(name, seen, stored):
            return True
    return False


def gone_error(source: State, version: Any) -> ConcurrencyError:
    """Return the error of a copy whose row was deleted."""
    return ConcurrencyError(
        [gone_entry(source, version)],
        f"Version id {version!r} on merged state {state_str(source)} does not match any row: the"
        " row was deleted after the copy was read, or the program hides it (with_loader_criteria)."
        " Nothing was merged. Drop the copy; or, if a deleted row is to be there again, add a new"
        " object with its values.",
    )


def gone_entry(source: State, version: Any) -> Entry[Any]:
    """Return the entry of a copy as it was and as it is; no row is stored."""
    return entry_of(attempt_of(source, "update", version), None)


def moved_error(session: Session, source: State, merged: State) -> ConcurrencyError:
    """Return the error of a copy whose row is in another version than the session's object."""
    entry = moved_entry(session, source, merged)
    assert entry.token is not None
    held = version_seen(merged, entry.token)
    return ConcurrencyError(
        [entry],
        f"Version id {entry.original[entry.token]!r} on merged state {state_str(source)} does not"
        f" match existing version {held!r}: another transaction changed the row after the copy was"
        " read." + _ADVICE,
    )


def undone_error(session: Session, source: State, merged: State) -> ConcurrencyError:
    """Return the error of a copy with values that may never have been stored."""
    return ConcurrencyError(
        [moved_entry(session, source, merged)],
        f"Version id on merged state {state_str(source)} is not known: it holds what a transaction"
        " had written that was not committed, or had no outcome yet, and the row is another one"
        " now." + _ADVICE,
    )


class _VersionProperty(ColumnProperty[Any]):
    """The version's attribute in ``session.merge``: it is compared, and not written.

    SQLAlchemy compares the versions before it merges, but only where both are loaded. Over an
    object that is expired it would write the old version, and the check would pass; and a row that
    is gone it would insert again.
    """

    __slots__ = ()
    inherit_cache = True

    def merge(
        self,
        session: Session,
        source_state: State,
        source_dict: Any,
        dest_state: State,
        dest_dict: Any,
        load: bool,
        _recursive: Any,
        _resolve_conflict_map: Any,
    ) -> None:
        seen = version_seen(source_state, self.key)
        if is_undone(source_state):
            if not load:
                return  # it must be read before it is edited
            if dest_state.key is not None:
                _expire_and_raise(
                    session, dest_state, undone_error(session, source_state, dest_state)
                )
        if self.key not in source_dict and seen is None:
            return
        if not load:
            dest_dict[self.key] = seen
            forget_version(dest_state)  # it came without a version
        elif dest_state.key is None:
            self._merge_into_new(session, source_state, dest_state, seen)
            dest_dict[self.key] = seen
        elif dest_state.get_impl(self.key).get(dest_state, dest_dict) != seen:
            _expire_and_raise(session, dest_state, moved_error(session, source_state, dest_state))
        elif source_state.key is not None and source_dict.get(self.key, seen) != seen:
            setattr(dest_state.obj(), self.key, source_dict[self.key])  # assigned to the copy

    def _merge_into_new(
        self, session: Session, source_state: State, dest_state: State, seen: Any
    ) -> None:
        """Refuse to insert a row again that was deleted after the copy was read."""
        loaded = source_state.key is not None or self.key not in source_state.committed_state
        if seen is not None and loaded:
            session.expunge(dest_state.obj())
            raise gone_error(source_state, seen)


def _expire_and_raise(session: Session, merged: State, error: ConcurrencyError) -> NoReturn:
    session.expire(merged.obj())  # other attributes may have been merged already
    raise error


def compare_in_merge(mapper: Mapper[Any], column: Column[Any]) -> None:
    """Let ``session.merge`` compare the version, also where it is not loaded."""
    held = mapper.get_property_by_column(column)
    extend_attribute(held, _VersionProperty)  # a joined child shares it with its parent


# -- session.merge() -------------------------------------------------------------------------------


def guarded_merge(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``Session.merge``: stale copies become entries, and the session is left as before."""

    @functools.wraps(original)
    def merge(self: Session, instance: Any, **options: Any) -> Any:
        source = inspect(instance, raiseerr=False)
        if not isinstance(source, InstanceState):
            return original(self, instance, **options)
        _compare_versions_of(source)
        send = functools.partial(original, self, instance, **options)
        if options.get("load", True):
            return _read_and_merge(self, source, send)
        with _all_or_none(self, source, ()):
            merged = _merge(self, source, send)
            _follow_copies(self, source)
        return merged

    return merge


def _read_and_merge(session: Session, source: State, send: Callable[[], Any]) -> Any:
    """Merge over the stored row, if no other transaction has changed it."""
    check_held(session, source)
    before_reading = memories(one for _, one in _merged(session, source))
    _refuse_unread(session, _copies(source))
    with _all_or_none(session, source, before_reading):
        _decide_copies(session, source)
        collections = members_of(session, _copies(source))
        merged = _merge(session, source, send)
        if any_compared() and (stale := _stale_by_value(session, source)):
            raise ConcurrencyError(stale)
        refuse_unseen(session, collections)
        check_payloads(session, _copies(source))
    return merged


def _merge(session: Session, source: State, send: Callable[[], Any]) -> Any:
    with _set_aside_next_versions(source) as following:
        merged = send()
    for copy, token, version in following:
        assert copy.key is not None
        setattr(session.identity_map[copy.key], token, version)
    return merged


@contextmanager
def _all_or_none(session: Session, source: State, before: Iterable[Memory]) -> Iterator[None]:
    """Undo all of the merge at a conflict, and raise it with all stale copies."""
    new, edited = session.new, session.dirty  # by identity: a dataclass may have no hash
    try:
        yield
    except StaleDataError as error:
        conflict = _conflict(session, source, error)
        _take_back(session, source, new, edited)
        _forget_reading(session, before)
        # The flush before a query has reported its conflict.
        conflict.reported = isinstance(error, ConcurrencyError) and error.reported
        raise report(conflict) from error.__cause__
    except ConfigurationError:
        for merged in rows_of_payloads(session, _copies(source)):
            session.expire(merged.obj())
        _take_back(session, source, new, edited)
        _forget_reading(session, before)
        raise


def guarded_merge_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``Session.merge_all`` (SQLAlchemy 2.1) by one merge for each object."""

    @functools.wraps(original)
    def merge_all(self: Session, instances: Iterable[Any], **options: Any) -> Sequence[Any]:
        return [self.merge(instance, **options) for instance in instances]

    return merge_all


def _compare_versions_of(state: State) -> None:
    """Compare classes that only have a ``version_id_col`` as those with the mixin."""
    for one in _copies(state):
        token = one.mapper.version_id_col
        if isinstance(token, Column):
            compare_in_merge(one.mapper, token)


def _decide_copies(session: Session, state: State) -> None:
    """Find the outcome of the transaction that had written a copy when it was made.

    It was undone if the row still is in the version from before. It was committed if the row is in
    the copy's version and holds the same values: another writer may have made the same number.
    """
    for copy in _copies(state):
        token = facts(copy.mapper).token
        if not token or not may_be_undone(copy) or copy.key is None:
            continue
        obj = session.get(copy.class_, tuple(copy.key[1]))
        if obj is None:
            continue  # a conflict, as for any copy of a row that is gone
        stored, class_facts = stored_of(session, instance_state(obj)), facts(copy.mapper)
        held = side_as_read(copy, version_seen(copy, token))
        undone = copy.info[VERSION_BEFORE] == stored[token]
        if undone or all(class_facts.same(name, held[name], stored[name]) for name in held):
            hold_version(copy, stored[token])


def _follow_copies(session: Session, source: State) -> None:
    """Record that copies merged without a read may yet be undone, as their sources."""
    for copy, merged in _merged(session, source):
        follow_copy(copy, merged)


@contextmanager
def _set_aside_next_versions(state: State) -> Iterator[list[tuple[State, str, Any]]]:
    """Set aside versions that the application has assigned to copies (``Manual``), and yield them.

    SQLAlchemy would compare them with the stored ones, instead of those that were read.
    """
    apart = []
    for copy in _copies(state):
        token = facts(copy.mapper).token
        if not token or copy.key is None or not facts(copy.mapper).by_application:
            continue
        seen = version_seen(copy, token)
        if copy.session is None and seen is not None and copy.dict.get(token, seen) != seen:
            apart.append((copy, token, copy.dict[token]))
            copy.dict[token] = seen
    try:
        yield apart
    finally:
        for copy, token, version in apart:
            copy.dict[token] = version


def _copies(state: State) -> Iterable[State]:
    yield state
    for _, _, one, _ in state.mapper.cascade_iterator("merge", state):
        yield one


def _merged(session: Session, source: State) -> Iterator[tuple[State, State]]:
    """Yield the copies, each with the object of the session that receives it."""
    for copy in _copies(source):
        merged = None if copy.key is None else session.identity_map.get(copy.key)
        if merged is not None and merged is not copy.obj():
            yield copy, instance_state(merged)


def _forget_reading(session: Session, before: Iterable[Memory]) -> None:
    """Forget reads of expired objects: the authors of their edits did not read these rows."""
    for memory in before:
        if memory.state.session is session and memory.state.persistent:
            session.expire(memory.state.obj(), memory.state.mapper.column_attrs.keys())
            restore_memory(memory)


def _refuse_unread(session: Session, copies: Iterable[State]) -> None:
    """Refuse copies of stored rows that hold values without the version of these values.

    One example is a pickle of an object that was edited when it was expired. SQLAlchemy would
    write it over the stored row, in any version.

    Raises:
        ConfigurationError: there is one; nothing was merged.
    """
    for copy in copies:
        token = facts(copy.mapper).token
        if not token or copy.key is None or token in copy.dict or copy.session is session:
            continue
        if is_never_read(copy):
            continue  # an INSERT that was undone can be made again: it conflicts with a stored row
        if _holds_values(copy) and version_seen(copy, token) is None:
            raise unseen_row_error(copy.mapper, tuple(copy.key[1]))


def _holds_values(copy: State) -> bool:
    keys, ignored = facts(copy.mapper).keys, facts(copy.mapper).ignored
    return any(
        name in copy.dict and name not in keys and column not in ignored
        for name, column in facts(copy.mapper).columns.items()
    )


def _conflict(session: Session, source: State, error: StaleDataError) -> ConcurrencyError:
    """Return one error for all stale copies, with SQLAlchemy's message."""
    found: dict[Any, Entry[Any]] = {}
    for entry in getattr(error, "entries", ()):
        found[entry.model, entry.identity] = entry
    for copy, merged in _merged(session, source):
        if is_stale(copy, merged):
            entry = moved_entry(session, copy, merged)
            found.setdefault((entry.model, entry.identity), entry)
    return ConcurrencyError(found.values(), reword(str(error)))


def _stale_by_value(session: Session, source: State) -> list[Entry[Any]]:
    """Return copies whose compared values are not the stored ones. SQLAlchemy compares none."""
    found = []
    for copy in _copies(source):
        key = copy.key
        if key is None and values_are_unknown(copy):  # its INSERT was rolled back
            key = copy.mapper.identity_key_from_instance(copy.obj())
        if key is None or not facts(copy.mapper).compares:
            continue
        merged = session.identity_map.get(key)
        if merged is None and copy.key is not None:
            found.append(gone_entry(copy, None))
        elif merged is None or merged is copy.obj():
            continue
        elif has_other_values(copy, instance_state(merged)):
            found.append(moved_entry(session, copy, instance_state(merged)))
    return found


def _take_back(
    session: Session, source: State, before: Collection[Any], edited: Collection[Any]
) -> None:
    for obj in session.new:
        if obj not in before and obj in session:
            session.expunge(obj)
    for _, merged in _merged(session, source):
        if merged.modified:
            session.expire(merged.obj())
    for obj in session.dirty:
        if obj not in edited:
            session.expire(obj)  # a member that the merge took out of a collection
