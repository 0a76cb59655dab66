"""One guarded flush: the unit of work's writes are held, sent together, and judged.

For the length of one flush the session's own connections answer ``execute`` through
:class:`Flush`. An UPDATE of a versioned row is kept and answered with a small result; any other
statement first sends what is held, so that whoever asks the database sees what was written. Rows
that missed are remembered, not raised: SQLAlchemy finishes as if all went well, and the conflict
is settled, or raised by ``flush()`` afterwards with the transaction still alive.

Nothing private of the compiler or the driver is touched. If SQLAlchemy ever stops sending the unit
of work's statements this way, the guard sees none of them and native checking goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Delete, Update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.state import InstanceState
from sqlalchemy.orm.unitofwork import UOWTransaction

from optilock.conflicts import Attempt, attempt_of, read_stored
from optilock.errors import LinkGone
from optilock.guard.aftermath import attempts_in
from optilock.guard.answers import Accepted, Counted, Nothing, Unmoved
from optilock.guard.batch import send
from optilock.guard.by_hand import of_own_row
from optilock.guard.children import settle_children
from optilock.guard.counting import require_row_counts
from optilock.guard.dependents import without_missed
from optilock.guard.keep import Kept
from optilock.guard.links import delete_links, judge_links
from optilock.guard.look import look
from optilock.guard.missed import Missed, not_written
from optilock.guard.natives import refuse_deferred
from optilock.guard.onupdate import fill_in
from optilock.guard.restore import restore_gone
from optilock.guard.state import Watched
from optilock.guard.still import unmoved
from optilock.guard.unversioned import never_seen, no_version
from optilock.guard.values import judge_values, write_one
from optilock.guard.words import Short
from optilock.guard.writes import Shape, Write, shape_of
from optilock.mapping.compared import any_compared
from optilock.mapping.makers import untouched
from optilock.seen import never_read
from optilock.versioned import ignored_columns, token_attribute

__all__ = ["Flush"]

Execute = Callable[..., Any]
_CHANGES = (Update, Delete)


class _Shapes(dict[Any, Shape | None]):
    """The shapes of one statement, kept on it: they live as long as the mapper's statement does."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner


class Flush:
    """The guard's side of one ``session.flush()``."""

    # Most flushes need none of these: they cost nothing until something is put in.
    uow: UOWTransaction | None = None
    settled = False
    #: Raised by ``flush()`` once SQLAlchemy has finished.
    error: Exception | None = None
    #: Reported by the database before SQLAlchemy could see it: raised by the first statement.
    broken: DBAPIError | None = None
    #: Edits of refused rows, put back once SQLAlchemy has finished.
    kept: Sequence[Kept] = ()
    expire_later: Sequence[tuple[Any, list[str]]] = ()
    expunge_later: Sequence[Any] = ()
    #: Objects that nothing is to be written for any more.
    skipped: frozenset[InstanceState[Any]] = frozenset()
    #: What the flush wanted to write, taken when the database reported an error.
    wanted: list[Attempt] | tuple[()] = ()
    #: The first statement that did not find all of its rows.
    short: Short | None = None
    _judged: frozenset[Any] = frozenset()
    #: Link rows that were not there any more.
    gone_links: Sequence[LinkGone] = ()
    #: Objects whose compared values were looked at.
    looked: frozenset[InstanceState[Any]] = frozenset()
    _states: dict[Any, InstanceState[Any]] | None = None

    def __init__(self, session: Session, known: Watched) -> None:
        self.session = session
        self.known = known
        self._armed: list[Connection] = []
        self._armed_wholly: list[Connection] = []
        self._held: dict[Connection, dict[Any, list[Write]]] = {}
        self._keys: set[tuple[Any, Any]] = set()
        #: Rows that were not found as they were read.
        self.misses: list[Missed] = []
        self._missed: set[tuple[Any, Any]] = set()

    # -- arming ------------------------------------------------------------------------------

    def arm_all(self) -> None:
        """Answer for the session's connections until the flush is over."""
        for connection in self.known.connections:
            self.arm(connection)

    def disarm_all(self) -> None:
        for connection in self._armed:
            delattr(connection, "execute")
        for connection in self._armed_wholly:
            delattr(connection, "scalar")
            delattr(connection, "exec_driver_sql")

    def arm(self, connection: Connection) -> None:
        """Answer for ``connection``; it stays the same object of the same type."""
        native = type(connection).execute.__get__(connection)

        def execute(statement: Any, parameters: Any = None, **options: Any) -> Any:
            try:
                if self.broken is not None:
                    raise self.broken
                if type(statement) in _CHANGES:
                    if "compiled_cache" in (options.get("execution_options") or ()):
                        return self._written(connection, native, statement, parameters, options)
                    if type(parameters) is list:  # link rows come without that option
                        return self._links(connection, native, statement, parameters, options)
                    if self.skipped:
                        return self._unguarded(connection, native, statement, parameters, options)
                    if type(statement) is Update:
                        statement = of_own_row(self, statement, parameters)
                self.drain(connection)
                return native(statement, parameters, **options)
            except DBAPIError:
                self.remember()
                raise

        # As an attribute, not through __dict__: CPython keeps the object compact that way.
        setattr(connection, "execute", execute)  # noqa: B010
        if connection not in self._armed:
            self._armed.append(connection)

    def _arm_the_rest(self, connection: Connection) -> None:
        """Once something is held, nothing may pass it by."""
        if connection in self._armed_wholly:
            return
        self._armed_wholly.append(connection)
        execute = connection.execute

        def scalar(statement: Any, parameters: Any = None, **options: Any) -> Any:
            return execute(statement, parameters, **options).scalar()

        def exec_driver_sql(*args: Any, **options: Any) -> Any:
            try:
                self.drain(connection)
                return type(connection).exec_driver_sql(connection, *args, **options)
            except DBAPIError:
                self.remember()
                raise

        connection.__dict__.update(scalar=scalar, exec_driver_sql=exec_driver_sql)

    def remember(self) -> None:
        """Take our side of every row now: the rollback that follows expires the objects."""
        if self.uow is not None and not self.wanted:
            states = {state: doomed for state, (doomed, _) in self.uow.states.items()}
            self.wanted = attempts_in(states, [*self.known.sent, *self.held()])

    def held(self) -> list[Write]:
        """What was not sent yet."""
        return [w for some in self._held.values() for ws in some.values() for w in ws]

    def conclude(self) -> None:
        """After SQLAlchemy has finished: put refused edits back and raise, or tidy up."""
        for kept in self.kept:
            kept.put_back()
        for obj, names in self.expire_later:
            self.session.expire(obj, names)
        for obj in self.expunge_later:
            self.session.expunge(obj)
        if self.error is not None:
            for gone in self.gone_links:
                self.error.add_note(f"optilock: {gone}")
            raise self.error
        for gone in self.gone_links:
            raise gone

    # -- one statement of the unit of work ---------------------------------------------------

    def _written(
        self, connection: Connection, native: Execute, statement: Any, params: Any, options: Any
    ) -> Any:
        uow = self.uow
        if uow is None or not params:
            return native(statement, params, **options)
        many = isinstance(params, list)
        shape = self._shape(connection, statement, params[0] if many else params)
        if shape is None:
            return self._unguarded(connection, native, statement, params, options)
        if not connection.dialect.supports_sane_rowcount:
            require_row_counts(connection.dialect)
        if many:
            return self._many(connection, shape, params, options)
        write = Write(shape, params)
        if params.get(shape.token_parameter) is None:
            self._without_version(connection, write)
            return Accepted(shape, params)
        if self.known.still:
            write = unmoved(self, write)
            params = write.params
        if shape.special:
            answer = self._special(connection, native, statement, write, options)
            if answer is not None:
                return answer
        if (self._missed or self.skipped) and self._is_missed(write):
            self._missed_again(write)
            return Accepted(shape, params)
        if shape.alone or len(uow.states) == 1:
            if self._held:
                self.drain(connection)
            return self._single(connection, native, write, options)
        return self._hold(connection, write)

    def _special(
        self, connection: Connection, native: Execute, statement: Any, write: Write, options: Any
    ) -> Any:
        """The answer where the version is not all that counts; ``None``: write it as any other."""
        shape, params = write
        if shape.ignored_only and not self._touched(write):
            return self._ignoring(connection, native, write, options)
        if shape.perhaps_ignored and self._only_ignored(write):
            return Accepted(
                shape, {**params, shape.token.column.key: params[shape.token.parameter]}
            )
        if shape.compares:
            answer = self._compared(connection, native, statement, params, options)
            if answer is not None:
                self.known.sent.append(write)  # a rollback takes it back
            return answer
        return None

    def _shape(self, connection: Connection, statement: Any, params: Any) -> Shape | None:
        shapes = statement.__dict__.get("_optilock_shapes")
        if shapes is None or shapes.owner is not statement:  # SQLAlchemy copies statements
            shapes = statement.__dict__["_optilock_shapes"] = _Shapes(statement)
        driver, given = connection.dialect.driver, tuple(params)
        try:
            shape: Shape | None = shapes[driver, given]
        except KeyError:
            names = frozenset(given)  # the same names may come in another order
            if (driver, names) not in shapes:
                shapes[driver, names] = self._read_shape(connection, statement, names)
            shape = shapes[driver, given] = shapes[driver, names]
        return shape

    def _read_shape(
        self, connection: Connection, statement: Any, names: frozenset[str]
    ) -> Shape | None:
        mapper = self._mapper_of(statement)
        if mapper is None:
            return None
        refuse_deferred(mapper)
        return shape_of(statement, names, mapper, connection.dialect)

    def _mapper_of(self, statement: Any) -> Mapper[Any] | None:
        assert self.uow is not None
        for mapper in self.uow.mappers:
            if statement.table in mapper.tables and mapper.version_id_col is not None:
                return mapper
        return None

    def _hold(self, connection: Connection, write: Write) -> Accepted:
        key = (write.shape.statement, write.key())
        if key in self._keys:
            self.drain(connection)  # post_update writes the same row a second time
        if write.shape.prefetch:
            fill_in(write, connection)
        self._keys.add(key)
        by_statement = self._held.get(connection)
        if by_statement is None:
            by_statement = self._held[connection] = {}
            self._arm_the_rest(connection)
        held = by_statement.get(write.shape.statement)
        if held is None:
            by_statement[write.shape.statement] = [write]
        else:
            held.append(write)
        return Accepted(write.shape, write.params)

    def _single(self, connection: Connection, native: Execute, write: Write, options: Any) -> Any:
        """The plain statement of one row, and its real count."""
        self.known.sent.append(write)
        result = native(write.shape.statement, write.params, **options)
        if result.rowcount == 0:
            self._miss(connection, [write], sent=1)
            return Unmoved(result, write.shape)
        return result

    def _ignoring(self, connection: Connection, native: Execute, write: Write, options: Any) -> Any:
        """Only ignored columns change: neither check the version nor move it."""
        self.drain(connection)
        shape, params = write
        token = shape.token
        statement = shape.table.update().where(
            *(key.column == shape.bind(key) for key in shape.keys)
        )
        kept = {k: v for k, v in params.items() if k not in (token.parameter, token.column.key)}
        values = dict(shape.expressions)
        if token.column.onupdate is not None:
            values[token.column] = token.column
        result = native(statement.values(values), kept)
        if result.rowcount == 0:
            self._miss(connection, [write], sent=1)
        return Unmoved(result, shape)

    def _many(
        self, connection: Connection, shape: Shape, rows: list[Any], options: Any
    ) -> Counted | Accepted:
        """DELETEs, and the UPDATEs of post_update: a list of rows in one call."""
        self.drain(connection)
        if shape.compares:
            judge_values(self, connection, shape.statement, rows)
        writes = []
        for row in rows:
            write = Write(shape, row)
            if self.known.still:
                write = unmoved(self, write)
            if write.params.get(shape.token_parameter) is None:
                self._without_version(connection, write)
            elif self._is_missed(write):
                self._missed_again(write)
            else:
                writes.append(write)
        if not shape.deletes:
            for write in writes:
                if shape.prefetch:
                    fill_in(write, connection)
        self._send(connection, writes)
        return Accepted(shape, *rows)

    def _unguarded(
        self, connection: Connection, native: Execute, statement: Any, params: Any, options: Any
    ) -> Any:
        """A statement without a token: tables of a row that missed are not written."""
        self.drain(connection)
        self._judge_apart(connection, statement.table)
        if any_compared() and params:
            answer = self._compared(connection, native, statement, params, options)
            if answer is not None:
                return answer
        if not (self.misses or self.skipped) or not params:
            return native(statement, params, **options)
        rows = params if isinstance(params, list) else [params]
        kept = without_missed(self, statement, rows)
        if len(kept) == len(rows):
            return native(statement, params, **options)
        if not kept:
            return Nothing(rows)
        result = native(statement, kept, **options)
        return Counted(result, result.rowcount + len(rows) - len(kept), rows)

    def _links(
        self, connection: Connection, native: Execute, statement: Any, rows: Any, options: Any
    ) -> Any:
        """Link rows that are taken away: not those of a row that is gone, and some may be gone."""
        if self.skipped:
            result = self._unguarded(connection, native, statement, rows, options)
        else:
            self.drain(connection)
            if options or self.uow is None:
                return native(statement, rows, **options)
            result = delete_links(self, connection, native, statement, rows)
        if options or not rows or self.uow is None:
            return result
        return judge_links(self, statement, rows, result)

    def _compared(
        self, connection: Connection, native: Execute, statement: Any, params: Any, options: Any
    ) -> Any:
        """Rows with ``CompareValues``: written with their values, or looked at before (None)."""
        answer = write_one(self, connection, native, statement, params, options)
        if answer is None:
            judge_values(self, connection, statement, params)
        return answer

    def _judge_apart(self, connection: Connection, table: Any) -> None:
        """A base table is written before the joined table with the version: look there first."""
        assert self.uow is not None
        if table in self._judged:
            return
        self._judged |= {table}
        states = [
            state
            for mapper, some in self.uow.mappers.items()
            if _version_apart(mapper) and table is mapper.base_mapper.local_table
            for state in some
            if state.modified and not self.is_delete(state)
        ]
        for stale in look(self.session, states, deleting=False) if states else ():
            self.skipped |= {stale.state}
            missed = Missed(
                stale.state,
                stale.obj,
                connection,
                stale.attempt,
                {},
                {},
                stale.stored,
                problem=stale.problem,
            )
            self.misses.append(missed)

    # -- sending -----------------------------------------------------------------------------

    def drain(self, connection: Connection) -> None:
        """Send what is held for ``connection``, one statement a table."""
        held = self._held.pop(connection, None)
        if not held:
            return
        self._keys.clear()
        for writes in held.values():  # all of them first: an error may end the transaction
            self.known.sent.extend(writes)
        for writes in held.values():
            self._miss(connection, send(connection, writes), sent=len(writes))

    def drain_all(self) -> None:
        for connection in tuple(self._held):
            self.drain(connection)

    def _send(self, connection: Connection, writes: list[Write]) -> None:
        if not writes:
            return
        self.known.sent.extend(writes)
        self._miss(connection, send(connection, writes), sent=len(writes))

    # -- rows that missed --------------------------------------------------------------------

    def _miss(self, connection: Connection, writes: list[Write], *, sent: int) -> None:
        """Take our side from the objects now, and read what is stored instead."""
        if writes and self.short is None:
            self.short = Short(writes[0].shape, sent, len(writes))
        by_mapper: dict[Mapper[Any], list[Missed]] = {}
        for write in writes:
            missed = self._missed_row(connection, write)
            by_mapper.setdefault(missed.state.mapper, []).append(missed)
        for mapper, some in by_mapper.items():
            try:
                stored = read_stored(connection, mapper, [m.attempt.identity for m in some])
            except DBAPIError:  # such as a lock timeout: nobody knows whether the row is there
                self.misses = [missed for missed in self.misses if missed not in some]
                raise
            for missed in some:
                missed.stored = stored.get(missed.attempt.identity)
                missed.problem = missed.problem or not_written(missed)
        if writes and self.uow is not None and len(self.uow.states) > 1:
            missed_now = [m for some in by_mapper.values() for m in some]
            restore_gone(self, missed_now)
            settle_children(self, missed_now)

    def _missed_row(
        self, connection: Connection, write: Write, problem: Exception | None = None
    ) -> Missed:
        state = self.state_of(write)
        shape, params = write
        untouched(state, shape.touches)
        attempt = attempt_of(
            state,
            "delete" if self.is_delete(state) else "update",
            params.get(shape.token.parameter),
            expressions=shape.expressions,
            computed=shape.prefetch,
        )
        missed = Missed(
            state, state.obj(), connection, attempt, shape.expressions, params, problem=problem
        )
        missed.touched = shape.ignored_only and self._touched(write)
        self.misses.append(missed)
        self.skip(write)
        return missed

    def _missed_again(self, write: Write) -> None:
        """The second UPDATE of a row (post_update) is not sent, and belongs to our side as well."""
        state = self.state_of(write)
        for missed in self.misses:
            if missed.state is state and missed.attempt.action == "update":
                missed.expressions = {**missed.expressions, **write.shape.expressions}
                missed.__dict__.pop("entry", None)
                missed.attempt = attempt_of(
                    state,
                    "delete" if self.is_delete(state) else "update",
                    missed.attempt.original.get(token_attribute(state.mapper) or ""),
                    expressions=missed.expressions,
                    computed=write.shape.prefetch,
                )

    def _without_version(self, connection: Connection, write: Write) -> None:
        """A row whose version is NULL, or was never read, is left out; ``flush()`` says so."""
        reason = never_seen if never_read(self.state_of(write)) else no_version
        self._missed_row(connection, write, reason(write.shape.mapper, write.key()))

    def skip(self, write: Write) -> None:
        """Do not send further statements for this row."""
        self._missed.add((write.shape.table, write.key()))

    def is_delete(self, state: InstanceState[Any]) -> bool:
        return self.uow is not None and self.uow.states.get(state, (False, False))[0]

    def _is_missed(self, write: Write) -> bool:
        if self._missed and (write.shape.table, write.key()) in self._missed:
            return True
        return bool(self.skipped) and self.state_of(write) in self.skipped

    # -- whose row it is ---------------------------------------------------------------------

    def state_of(self, write: Write) -> InstanceState[Any]:
        """The object behind a write."""
        found = self.find(write.shape.mapper, write.shape.identity_of(write.params))
        assert found is not None
        return found

    def find(self, mapper: Mapper[Any], identity: tuple[Any, ...]) -> InstanceState[Any] | None:
        """The object of this flush with that key."""
        if self._states is None:
            self._states = self._index()
        return self._states.get((mapper.base_mapper, identity))

    def _index(self) -> dict[Any, InstanceState[Any]]:
        assert self.uow is not None
        found: dict[Any, InstanceState[Any]] = {}
        for state, (is_delete, _) in self.uow.states.items():
            mapper = state.mapper
            key = state.key or mapper.identity_key_from_instance(state.obj())
            place = (mapper.base_mapper, tuple(key[1]))
            if place not in found or not is_delete:
                found[place] = state
        return found

    def _touched(self, write: Write) -> bool:
        """Is the version to move, whatever else changes (``touch``)?"""
        state = self.state_of(write)
        return token_attribute(state.mapper) in state.committed_state

    def _only_ignored(self, write: Write) -> bool:
        state = self.state_of(write)
        ignored = ignored_columns(state.mapper)
        return all(
            set(state.mapper.column_attrs[name].columns) <= ignored
            for name in state.committed_state
            if name in state.mapper.column_attrs
        )


def _version_apart(mapper: Mapper[Any]) -> bool:
    """Is the version in another table than the one that is written first?"""
    token = mapper.version_id_col
    return token is not None and token.table is not mapper.base_mapper.local_table
