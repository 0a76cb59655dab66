"""Rows whose writers add to them (``__version_commutes__``): they do not conflict with each other.

If nothing else of an object has changed, :func:`is_commuting_write` notes how much its write adds.
A row that is sent individually is then written in any version. Of rows that are sent together, and
missed, the difference is added to the stored value (:mod:`optilock.watched.writes.commuting`). Next
to another change the version counts; the difference is added with any decision of a resolver
(:mod:`optilock.watched.guard.corrections`).

A session that adds has not read the row in the version that it writes. So the object takes the new
version only if no other transaction has written the row. Otherwise it returns to the version that
was read, when the flush is over: the next ordinary write of the row conflicts, a further increment
does not. Listeners see the version that was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError

from optilock.conditions.write import Lost, SingleWrite, Write
from optilock.mapped import State, facts, place_of
from optilock.mapping.original_values import changed_names
from optilock.undocumented.mappers import expire_attribute
from optilock.watched.guard.records import Flush, RefusedSums
from optilock.watched.rows.entries import attempt_of
from optilock.watched.writes.commuting import (
    Adding,
    Differences,
    StoredSums,
    add_to_row,
    adding_for,
    adding_parameters,
    differences,
    read_answer,
    rebase,
)
from optilock.watched.writes.send import send


def is_commuting_write(flush: Flush, write: Write) -> bool:
    """Return whether the write only adds to its row, and note how much."""
    state = flush.state_of(write)
    more = differences(write, state) if _only_adds(flush, write, state) else None
    if more is None:
        return False
    if flush.adding is None:
        flush.adding = {}
    flush.adding[write.shape.table, write.key()] = more
    return True


def _only_adds(flush: Flush, write: Write, state: State) -> bool:
    """Return whether nothing else has changed, in any table, and the version is not demanded.

    In a touched object the version itself has changed.
    """
    known, (shape, params) = facts(state.mapper), write
    promises, token = flush.record.promises, shape.token
    if state.key is None or (promises and place_of(state) in promises):
        return False
    if token.column.key in params and params[token.column.key] == params[token.parameter]:
        return False  # no_bump
    counts = known.commuting | known.ignored
    columns = state.mapper.column_attrs
    return not flush.is_missed(write) and all(
        counts.issuperset(columns[name].columns) for name in changed_names(state)
    )


def send_sums(flush: Flush, connection: Connection, writes: list[Write]) -> list[Write]:
    """Write rows of one table, with sums among them; return those that missed."""
    more = _noted(flush, writes[0]) if len(writes) == 1 else None
    adding = adding_for(writes[0].shape, connection) if more else None
    if more is None or adding is None:
        return send(connection, writes)
    (write,) = writes
    with refused_sums(flush, writes):
        told = add_to_row(connection, write, adding, more)
    if told is None:
        return writes
    _moves_on(flush, write, told)
    return []


def _moves_on(flush: Flush, write: Write, told: StoredSums) -> None:
    """Give the object the sum and its version, unless another transaction has written the row."""
    shape, params = write
    known = facts(shape.mapper)
    if not known.same(known.token, told.version, params[shape.token.column.key]):
        note_overtaken(flush, write, told)


class LastSum:
    """The only write of the last flush, which is a sum: it may go with COMMIT."""

    def __init__(
        self, flush: Flush, connection: Connection, write: Write, adding: Adding, more: Differences
    ) -> None:
        self._flush, self._connection, self._write, self._adding = flush, connection, write, adding
        self._told: StoredSums | None = None
        self.alone = SingleWrite(adding.statement, adding_parameters(write, more), self._written)

    @classmethod
    def of(cls, flush: Flush, connection: Connection, write: Write) -> LastSum | None:
        """Return the sum; ``None`` if it is none, or needs another statement for its version."""
        more = _noted(flush, write)
        adding = adding_for(write.shape, connection) if more else None
        if more is None or adding is None or not adding.at_once:
            return None
        return cls(flush, connection, write, adding, more)

    def _written(self, result: CursorResult[Any]) -> bool:
        self._told = read_answer(result, self._connection, self._write, self._adding)
        return self._told is not None

    def moves_on(self) -> None:
        if self._told is not None:
            _moves_on(self._flush, self._write, self._told)


def add_to_stored(flush: Flush, connection: Connection, lost: list[Lost]) -> list[Lost]:
    """Write those of the rows that are added to; they are locked. The others are returned."""
    again = {id(one.write.params): sum_on_stored(flush, one) for one in lost}
    sums = {place: one.write for place, one in again.items() if one is not None}
    if not sums:
        return lost
    with refused_sums(flush, [one.write for one in lost if id(one.write.params) in sums]):
        missed = {id(write.params) for write in send(connection, list(sums.values()))}
    still = []
    for one in lost:
        write = sums.get(id(one.write.params))
        if write is None or id(write.params) in missed:
            still.append(one)
        else:
            note_sum_on_stored(flush, one.write, write)
    return still


def sum_on_stored(flush: Flush, lost: Lost) -> Lost | None:
    """Return the write of a row that missed, on the stored values; ``None``: it is a conflict."""
    more = _noted(flush, lost.write)
    return None if more is None else rebase(lost, more)


def note_sum_on_stored(flush: Flush, write: Write, again: Write) -> None:
    """Note that the row is written, on top of the changes of others."""
    shape, params = again
    values = {column: params[name] for name, column in shape.commuting.items()}
    note_overtaken(flush, write, StoredSums(params.get(shape.token.column.key), values))


def note_overtaken(flush: Flush, write: Write, told: StoredSums) -> None:
    """Note that the row was written in a version that the session has not read."""
    shape, params = write
    state = flush.state_of(write)
    known = facts(state.mapper)
    if flush.overtaken is None:
        flush.overtaken = {}
    flush.overtaken[state] = params[shape.token.parameter]
    flush.record.overtook(write)
    if told.version is not None:
        state.dict[known.token] = told.version
    for column in shape.commuting.values():
        if column in told.values:
            state.dict[known.names[column]] = told.values[column]
        else:
            expire_attribute(state, known.names[column])


def name_what_was_read(flush: Flush, write: Write) -> None:
    """Name the version that was read in a second UPDATE of a row (post_update), which is no sum."""
    shape, params = write
    state = flush.state_of(write)
    if flush.overtaken is not None and state in flush.overtaken:
        params[shape.token.parameter] = flush.overtaken[state]


def take_sums_as_stored(flush: Flush, state: State) -> None:
    """Treat a row's sums as stored: its second UPDATE has missed, and must not add them again."""
    if flush.overtaken is not None and state in flush.overtaken:
        known = facts(state.mapper)
        for column in known.commuting:
            state.committed_state.pop(known.names[column], None)


def return_to_read_versions(flush: Flush) -> None:
    """Give objects whose rows others had changed the version that was read."""
    for state, version in (flush.overtaken or {}).items():
        if state in flush.missed_states:
            continue  # settled, or put back later
        token = facts(state.mapper).token
        state.dict[token] = version
        state.committed_state.pop(token, None)
        state.expired_attributes.discard(token)


def _noted(flush: Flush, write: Write) -> Differences | None:
    if flush.adding is None or not write.shape.commuting:
        return None
    return flush.adding.get((write.shape.table, write.key()))


@contextmanager
def refused_sums(flush: Flush, writes: list[Write]) -> Iterator[None]:
    """Take our side, where the database refuses the sum (CHECK, the range of a type)."""
    try:
        yield
    except DBAPIError as error:
        versions = {flush.state_of(w): w.params[w.shape.token.parameter] for w in writes}
        flush.unadded = RefusedSums(
            error, [attempt_of(state, "update", version) for state, version in versions.items()]
        )
        raise
