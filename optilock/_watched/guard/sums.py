"""Increments: rows whose writers add to them (``__version_commutes__``), in any version.

::

    UPDATE pages SET likes = likes + :1, version = CASE WHEN version = :read THEN :made
        ELSE version + 1 END WHERE id = :id RETURNING version, likes

It is the write of the same row without the version's condition, and with the difference instead of
the value (:mod:`optilock._mapping.checks`). All other conditions of the row stay in the WHERE.

If nothing else of an object has changed, :func:`is_commuting_write` notes how much its write adds.
A row that is sent individually is then written in any version. Rows that are sent together are
written as usual, all of them in one statement, under the versions that were read. Rows that missed
are locked by then, and the difference is added to their stored values (:func:`_rebase`). Next to
another change the version counts; the difference is added with any decision of a resolver
(:mod:`optilock._watched.guard.corrections`).

The version moves by one. Its new value shows whether the row was as it had been read: only then it
is the one that Python has made. A database without RETURNING may return a number with its result
(``telling`` of a database); otherwise the version is read once more.

A session that adds has not read the row in the version that it writes. So the object takes the new
version only if no other transaction has written the row. Otherwise it returns to the version that
was read, when the flush is over: the next ordinary write of the row conflicts, a further increment
does not. Listeners see the version that was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import CompileError, DBAPIError
from sqlalchemy.orm import NO_VALUE
from sqlalchemy.types import TypeEngine

from optilock._mapped import State, facts, place_of
from optilock._mapping.original_values import changes_only
from optilock._undocumented.mappers import expire_attribute
from optilock._watched.guard.records import Flush, RefusedSums
from optilock._watched.rows.entries import attempt_of
from optilock._watched.rows.stored import read_stored
from optilock._watched.writes.send import Send, send
from optilock.conditions.condition import parameter
from optilock.conditions.write import Lost, Shape, SingleWrite, Write, mark_checked
from optilock.dialects import database_of
from optilock.dialects.rows import execute_unguarded
from optilock.serialize import difference, exact_sum


def is_commuting_write(flush: Flush, write: Write) -> bool:
    """Return whether the write only adds to its row, and note how much."""
    state = flush.state_of(write)
    more = _differences(write, state) if _only_adds(flush, write, state) else None
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
    return not flush.is_missed(write) and changes_only(state, known.commuting | known.ignored)


def send_sums(flush: Flush, connection: sa.Connection, writes: list[Write]) -> list[Write]:
    """Write rows of one table, with sums among them; return those that missed."""
    more = _noted(flush, writes[0]) if len(writes) == 1 else None
    adding = _adding_for(writes[0].shape, connection) if more else None
    if more is None or adding is None:
        return send(connection, writes)
    (write,) = writes
    with refused_sums(flush, writes):
        told = _add_to_row(connection, write, adding, more)
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
        self,
        flush: Flush,
        connection: sa.Connection,
        write: Write,
        adding: Adding,
        more: Differences,
    ) -> None:
        self._flush, self._connection, self._write, self._adding = flush, connection, write, adding
        self._told: StoredSums | None = None
        self.alone = SingleWrite(adding.statement, _adding_parameters(write, more), self._written)

    @classmethod
    def of(cls, flush: Flush, connection: sa.Connection, write: Write) -> LastSum | None:
        """Return the sum; ``None`` if it is none, or needs another statement for its version."""
        more = _noted(flush, write)
        adding = _adding_for(write.shape, connection) if more else None
        if more is None or adding is None or not adding.at_once:
            return None
        return cls(flush, connection, write, adding, more)

    def _written(self, result: sa.CursorResult[Any]) -> bool:
        self._told = _read_answer(result, self._connection, self._write, self._adding)
        return self._told is not None

    def moves_on(self) -> None:
        if self._told is not None:
            _moves_on(self._flush, self._write, self._told)


def add_to_stored(
    flush: Flush, connection: sa.Connection, lost: list[Lost], send: Send
) -> list[Lost]:
    """Write those of the rows that are added to; they are locked. The others are returned."""
    sums = {
        id(one.write.params): write
        for one in lost
        if (more := _noted(flush, one.write)) is not None
        and (write := _rebase(one, more)) is not None
    }
    if not sums:
        return lost
    with refused_sums(flush, [one.write for one in lost if id(one.write.params) in sums]):
        missed = {id(write.params) for write in send(connection, list(sums.values()))}
    still = []
    for one in lost:
        again = sums.get(id(one.write.params))
        if again is None or id(again.params) in missed:
            still.append(one)
        else:
            shape, params = again
            values = {column: params[name] for name, column in shape.commuting.items()}
            told = StoredSums(params.get(shape.token.column.key), values)
            note_overtaken(flush, one.write, told)
    return still


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


# -- how much a write adds -------------------------------------------------------------------------


#: The difference between the new value and the one that was read, by the new one's parameter.
Differences = Mapping[str, Any]

_ADD, _MADE = "optilock_add_", "optilock_made"


class StoredSums(NamedTuple):
    """The stored values after a write, as far as its result shows them."""

    version: Any
    #: Column -> value.
    values: Mapping[sa.Column[Any], Any]


def _differences(write: Write, state: State) -> Differences | None:
    """Return by how much the write changes the row; ``None`` where that is not known exactly."""
    names = facts(state.mapper).names
    found = {
        name: difference(state.committed_state.get(names[column], NO_VALUE), write.params[name])
        for name, column in write.shape.commuting.items()
    }
    return None if None in found.values() else found


# -- one row, in whatever version it is ------------------------------------------------------------


@dataclass(frozen=True)
class Adding:
    """The statement that adds, and the way in which its result shows the version."""

    statement: sa.Update
    returned: tuple[sa.Column[Any], ...]
    tells: bool
    #: The row is stored when the result shows the version: no other statement is needed.
    at_once: bool


def _adding_for(shape: Shape, connection: sa.Connection) -> Adding | None:
    """Return the statement that adds to rows of the shape; ``None``: it takes more than one."""
    if "adding" not in shape.forms:
        shape.forms["adding"] = _adding(shape, connection)
    found: Adding | None = shape.forms["adding"]
    return found


def _adding(shape: Shape, connection: sa.Connection) -> Adding | None:
    class_facts, dialect = facts(shape.mapper), connection.dialect
    following = (
        None if class_facts.kind is None else class_facts.kind.following(class_facts.version)
    )
    if shape.sent_individually or not shape.exact or following is None:
        return None
    if not _can_compile(dialect, following):
        return None
    version: sa.Column[Any] = class_facts.version
    made = sa.bindparam(_MADE, type_=version.type)
    moved: Any = sa.case((shape.token.clause(parameter), made), else_=following)
    returns, ask = bool(dialect.update_returning), database_of(dialect).one_row
    told = ask.telling(moved) if isinstance(version.type, sa.Integer) else None
    if told is not None and not returns:
        moved = told
    statement = _statement_adding(shape, version, moved)
    if returns:
        returned = (version, *shape.commuting.values())
        at_once = ask.stores_before_rows_are_read
        return Adding(statement.returning(*returned), returned, tells=False, at_once=at_once)
    return Adding(statement, (), tells=told is not None, at_once=told is not None)


def _statement_adding(shape: Shape, version: sa.Column[Any], moved: Any) -> sa.Update:
    columns = shape.commuting.values()
    sums = {c: c + sa.bindparam(f"{_ADD}{n}", type_=_wide(c.type)) for n, c in enumerate(columns)}
    where = [one.clause(parameter) for one in (*shape.keys, *shape.demanded)]
    where += [column.is_not(None) for column in columns if column.nullable]
    statement = mark_checked(shape.table.update().where(*where))
    return statement.values({**sums, version: moved, **shape.extra_values(parameter)})


def _wide(kind: Any) -> TypeEngine[Any]:
    """Return the type of a difference, which may be twice as much as the column holds."""
    return sa.BigInteger() if isinstance(kind, sa.Integer) else sa.Numeric()


def _can_compile(dialect: sa.Dialect, expression: Any) -> bool:
    """Return whether the database can make the version."""
    try:
        expression.compile(dialect=dialect)
    except CompileError:
        return False
    return True


def _add_to_row(
    connection: sa.Connection, write: Write, adding: Adding, more: Differences
) -> StoredSums | None:
    """Add to the row; return ``None`` if there is none, or if it fails a condition."""
    result = execute_unguarded(connection, adding.statement, _adding_parameters(write, more))
    return _read_answer(result, connection, write, adding)


def _adding_parameters(write: Write, more: Differences) -> dict[str, Any]:
    """Return the parameters of the statement that adds."""
    shape, params = write
    sent = {name: value for name, value in params.items() if name not in shape.commuting}
    sent |= {f"{_ADD}{n}": more[name] for n, name in enumerate(shape.commuting)}
    sent[_MADE] = sent.pop(shape.token.column.key)
    return sent


def _read_answer(
    result: sa.CursorResult[Any], connection: sa.Connection, write: Write, adding: Adding
) -> StoredSums | None:
    """Return the stored values; ``None``: there is no such row, or it fails a condition."""
    if adding.returned:
        row: Any = result.first()
        if row is None:
            return None
        return StoredSums(row[0], dict(zip(adding.returned[1:], row[1:], strict=True)))
    if not result.rowcount:
        return None
    return StoredSums(result.lastrowid if adding.tells else _read_version(connection, write), {})


def _read_version(connection: sa.Connection, write: Write) -> Any:
    shape, params = write
    token, identity = facts(shape.mapper).token, shape.identity_of(params)
    found = read_stored(connection, shape.mapper, [identity], only=(token,), lock=False)
    return found[identity][token]


# -- a row that missed -----------------------------------------------------------------------------


def _rebase(lost: Lost, more: Differences) -> Write | None:
    """Return the write with the difference added to the stored values, in the stored version.

    ``None`` where there is nothing to add to, or another condition than the version has failed.
    """
    (shape, params), stored = lost.write, lost.stored
    if stored is None or lost.failed != (shape.token,):
        return None
    class_facts = facts(shape.mapper)
    before = {name: stored[class_facts.names[column]] for name, column in shape.commuting.items()}
    if None in before.values():
        return None
    sums = {name: exact_sum(value, more[name]) for name, value in before.items()}
    if None in sums.values():
        return None
    params = {**params, **sums, shape.token.parameter: stored[class_facts.token]}
    if shape.token.column.key in params:
        params[shape.token.column.key] = class_facts.next(stored[class_facts.token])
    return Write(shape, params)
