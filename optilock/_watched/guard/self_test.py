"""The self-test of the guard: the usual writes and conflicts, on a database in memory.

:func:`find_faults` runs in the first ``watch()`` or unit of a process
(:mod:`optilock._watched.guard.release`). A release of SQLAlchemy may rename a function, add an
argument or read another attribute of a result. Here that is found before a row of the application
is written, in a release of any number: an application, a distribution or another library may
have changed SQLAlchemy as well.

The database is SQLite, behind a dialect of its own, so no other dialect is imported. It has one
connection: the other writer's statements are sent with the driver. The application notices nothing.
Its listeners to classes of SQLAlchemy, which may expect another database, are not called; nor are
those of :mod:`optilock.events`. The classes do not have the mixin, which would register them, and
are free once the test is over. Context variables of the caller (its unit, its request) are not
visible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Mapper, Session, load_only, registry
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.pool import StaticPool

from optilock import events
from optilock._mapping.moves import touch_state
from optilock._undocumented import connections, flushes, mappers, statements
from optilock._undocumented.isolation import configure_hidden, hide_events, without_flush
from optilock._watched.guard.methods import cover_methods, follow_mapping, follow_tables
from optilock._watched.guard.own_flush import OFF, ON, OWN_FLUSH
from optilock._watched.guard.session_events import LISTENERS
from optilock._watched.session.order import listen_alone
from optilock._watched.session.record import options
from optilock._watched.statements.refusals import forget_statements
from optilock.errors import ConcurrencyError
from optilock.resolvers.rules import merge_fields, reject

Case = Callable[["_Trial"], None]

_TABLES = """
CREATE TABLE rows (id INTEGER PRIMARY KEY, title TEXT, body TEXT, version INTEGER);
CREATE TABLE parts (id INTEGER PRIMARY KEY, n INTEGER);
"""
_ROWS = """
DELETE FROM rows; DELETE FROM parts;
INSERT INTO rows VALUES (1, 'old', '', 1), (2, 'old', '', 1), (3, 'old', '', 1);
INSERT INTO parts VALUES (1, 1);
"""


def find_faults(driver: ModuleType, *, own_flush: bool) -> tuple[str | None, str | None]:
    """Return a fault of SQLAlchemy's flushes, and one of the guard's own; ``None``: all works.

    Args:
        driver: the module ``sqlite3``.
        own_flush: also try the guard's own.
    """
    return Context().run(_find_faults, driver, own_flush)


def _find_faults(driver: ModuleType, own_flush: bool) -> tuple[str | None, str | None]:
    events.muted.set(True)
    try:
        trial = _Trial(driver)
    except Exception as error:
        return _described("mapping", error), None
    try:
        with trial:
            fault = trial.find_fault(*_PLANNED, *_OF_BOTH, *(() if own_flush else _SIMPLE))
            if fault is not None or not own_flush:
                return fault, None
            return None, trial.find_own_fault()
    finally:
        forget_statements()


def _described(what: str, error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{what} ({': '.join([type(error).__name__, *lines[:1]])})"


# -- the database and the classes ------------------------------------------------------------------


_Base: Any = DefaultDialect.statement_compiler


class _Compiler(_Base):  # type: ignore[misc]
    def for_update_clause(self, select: Any, **options: Any) -> str:
        return " /* FOR UPDATE */"


@hide_events
class _Dialect(DefaultDialect):
    name, driver = "optilock_self_test", "sqlite3"
    statement_compiler = _Compiler
    supports_statement_cache = True
    default_paramstyle = "qmark"


@hide_events
class _Connection(Connection):
    pass


@hide_events
class _Pool(StaticPool):
    pass


@hide_events
class _Engine(Engine):
    def connect(self) -> Connection:
        return _Connection(self)


@hide_events
class _Mapper(Mapper[Any]):
    pass


@hide_events
class _Table(sa.Table):
    pass


@hide_events
class _Column(sa.Column[Any]):
    inherit_cache = True


class _Title(sa.TypeDecorator[str]):
    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        require(value != "refused", "refused")
        return value


class _Trial:
    """A database with three rows, two classes, and a session over them."""

    Row: Any
    Part: Any
    all_rows: Any

    def __init__(self, driver: ModuleType) -> None:
        self._connection = driver.connect(":memory:", check_same_thread=False)
        try:
            self._connection.executescript(_TABLES)
            dialect = _Dialect(dbapi=driver)
            pool = _Pool(lambda: self._connection, dialect=dialect)
            self._engine = _Engine(pool, dialect, URL.create("optilock"))
            pool.logger = self._engine.logger = logging.Logger(__name__, logging.CRITICAL)
            self._registry = registry()
            self.Row, self.Part = _map(self._registry)
            self.all_rows = sa.select(self.Row).order_by(self.Row.id)
            self._session = _watched(self._engine)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._registry.dispose()
        self._engine.dispose()
        self._connection.close()

    def find_own_fault(self) -> str | None:
        """Return the first case that fails where the guard carries out flushes itself."""
        setattr(self._session, OWN_FLUSH, ON)
        with without_flush(self._session):
            fault = self.find_fault(*_SIMPLE)
        return fault or self.find_fault(*_OF_BOTH)

    def find_fault(self, *cases: Case) -> str | None:
        """Return the first case that fails."""
        for case in cases:
            try:
                case(self)
            except Exception as error:
                return _described(case.__name__.strip("_").replace("_", " "), error)
        return None

    @contextmanager
    def session(self, resolver: Any = None) -> Iterator[Any]:
        """Open the session over rows in their first version."""
        self._connection.executescript(_ROWS)
        options(self._session, on_conflict=resolver or reject)
        with self._session as session:
            yield session

    def write(self, *numbers: int) -> None:
        """Write rows as another transaction does."""
        self._connection.executemany(
            "UPDATE rows SET title = 'theirs', version = version + 1 WHERE id = ?",
            [(number,) for number in numbers],
        )

    def require(self, *rows: tuple[Any, ...]) -> None:
        """Compare all stored rows."""
        found = self._connection.execute("SELECT * FROM rows ORDER BY id").fetchall()
        require(found == [*rows], f"stored are {found}")


def _map(mapped: registry) -> tuple[Any, Any]:
    rows = _Table(
        "rows",
        mapped.metadata,
        _Column("id", sa.Integer, primary_key=True),
        _Column("title", _Title),
        _Column("body", sa.Text),
        _Column("version", sa.Integer, nullable=False),
    )
    parts = _Table(
        "parts",
        mapped.metadata,
        _Column("id", sa.Integer, primary_key=True),
        _Column("n", sa.Integer),
    )

    class Part:
        __table__ = parts
        __mapper_cls__ = _Mapper

    class Row:
        __table__ = rows
        __mapper_cls__ = _Mapper
        __mapper_args__ = {"version_id_col": rows.c.version}

    classes = mapped.mapped(Row), mapped.mapped(Part)
    configure_hidden(mapped)
    for one in classes:
        follow_tables(sa.inspect(one), one)
        follow_mapping(sa.inspect(one), one)
    return classes


def _watched(engine: Engine) -> Session:
    @hide_events
    class Watched(Session):
        pass

    cover_methods(Watched)
    setattr(Watched, OWN_FLUSH, OFF)
    session = Watched(engine)
    listen_alone(session, LISTENERS)
    return session


def require(holds: bool, otherwise: str) -> None:
    """Raise ``AssertionError``, also in a Python that leaves out assertions."""
    if not holds:
        raise AssertionError(otherwise)


# -- what is tried ---------------------------------------------------------------------------------


@contextmanager
def _conflict(*numbers: int) -> Iterator[None]:
    """Require a conflict on these rows, with its three values."""
    try:
        yield
    except ConcurrencyError as conflict:
        found = sorted(entry.identity for entry in conflict.entries)
        require(found == [(number,) for number in numbers], f"conflict on {found}")
        for entry in conflict.entries:
            values: Any = entry.original.get("title", "old"), (entry.database or {})["title"]
            require(values == ("old", "theirs"), f"conflict with {values}")
    else:
        raise AssertionError("an update was lost")


def _planned_writes(trial: _Trial) -> None:
    """An UPDATE, a DELETE, an INSERT, a row without a version, and the root that it moves."""
    with trial.session() as session:
        edited, deleted, root = session.scalars(trial.all_rows)
        part = session.get(trial.Part, 1)
        edited.title, part.n = "mine", 2
        touch_state(instance_state(root))
        session.delete(deleted)
        session.add(trial.Row(id=4, title="new", body=""))
        session.flush()
        written = [(1, "mine", "", 2), (3, "old", "", 2), (4, "new", "", 1)]
        trial.require(*written)
        require(not session.dirty and edited.version == 2, "changes after the flush")
        savepoint = session.begin_nested()
        edited.title = "again"
        session.flush()
        savepoint.rollback()
        require((edited.title, edited.version) == ("mine", 2), "other values after a savepoint")
        trial.require(*written)
        session.rollback()
        require((edited.title, edited.version) == ("old", 1), "other values after a rollback")


def _edits(trial: _Trial) -> None:
    with trial.session() as session:
        row = session.get(trial.Row, 1)
        for title in ("mine", "again"):
            row.title = title
            session.flush()
            require(not session.dirty, "changes after the flush")
        require(row.version == 3, f"version {row.version}, not 3")
        for row in session.scalars(trial.all_rows):  # the session alone holds them
            row.body = "mine"
        session.commit()
        require((row.body, row.version) == ("mine", 2), "other values after COMMIT")
        trial.require((1, "again", "mine", 4), (2, "old", "mine", 2), (3, "old", "mine", 2))


def _conflict_of_a_row(trial: _Trial) -> None:
    with trial.session() as session:
        session.get(trial.Row, 1).title = "mine"
        trial.write(1)
        with _conflict(1):
            session.commit()


def _conflicts_of_a_batch(trial: _Trial) -> None:
    with trial.session() as session:
        for row in session.scalars(trial.all_rows):
            row.body = "mine"
        del row
        trial.write(1, 3)
        with _conflict(1, 3):
            session.flush()


def _conflict_of_a_delete(trial: _Trial) -> None:
    with trial.session() as session:
        session.delete(session.get(trial.Row, 1))
        trial.write(1)
        with _conflict(1):
            session.flush()


def _conflict_of_an_expired_row(trial: _Trial) -> None:
    with trial.session() as session:
        row = session.scalars(trial.all_rows.options(load_only(trial.Row.id))).first()
        require("version" in row.__dict__, "a row without its version")
        session.expire(row)
        trial.write(1)
        row.title = "mine"
        with _conflict(1):
            session.flush()


def _merge(trial: _Trial) -> None:
    with trial.session(merge_fields) as session:
        row, *_ = session.scalars(trial.all_rows).all()
        row.body = "mine"
        trial.write(1)
        session.flush()
        trial.require((1, "theirs", "mine", 3), (2, "old", "", 1), (3, "old", "", 1))
        require((row.title, row.version) == ("theirs", 3), "an object without the other's edit")
        session.commit()
        trial.write(1)
        session.scalars(trial.all_rows.execution_options(populate_existing=True)).all()
        row.body = "again"
        session.commit()
        require((row.title, row.body, row.version) == ("theirs", "again", 5), "another version")


def _refused_write(trial: _Trial) -> None:
    with trial.session() as session:
        row = session.get(trial.Row, 1)
        row.title = "refused"
        try:
            session.flush()
        except StatementError:
            require(not session.is_active, "an error left the transaction open")
            session.rollback()
        require((row.title, row.version) == ("old", 1), "other values after an error")
        row.title = "mine"
        session.commit()
        trial.require((1, "mine", "", 2), (2, "old", "", 1), (3, "old", "", 1))


def _listeners(trial: _Trial) -> None:
    """A listener to the flush, which changes a row, and one to the rows that are written."""
    heard: list[int] = []

    def before_flush(session: Session, flush: Any, objects: Any) -> None:
        row: Any = session.get(trial.Row, 2)
        row.body = "heard"

    def after_update(mapper: Any, connection: Any, row: Any) -> None:
        heard.append(row.id)

    mapper = sa.inspect(trial.Row)
    with trial.session() as session:
        event.listen(session, "before_flush", before_flush)
        event.listen(mapper, "after_update", after_update)
        try:
            for row in session.scalars(trial.all_rows):
                row.title = "mine"
            trial.write(1)
            with _conflict(1):
                session.flush()
        finally:
            event.remove(mapper, "after_update", after_update)
            event.remove(session, "before_flush", before_flush)
    require(heard == [2, 3], f"listeners of rows {heard}")


# -- parts of SQLAlchemy, by the functions that use them -------------------------------------------


def _parts_of_statements(trial: _Trial) -> None:
    row, mapper = trial.Row, sa.inspect(trial.Row)
    change = sa.update(row).where(row.id == 1).values(title="mine").options(load_only(row.id))
    ordered = sa.update(row).ordered_values((row.title, "mine"))
    new = sa.insert(row.__table__)
    query = sa.select(row)
    joins = statements.joins_of(query.outerjoin(trial.Part, trial.Part.id == row.id))
    found = (
        statements.subject_of(change) is mapper,
        statements.is_of_the_orm(change),
        not statements.is_of_the_orm(new),
        len(statements.criteria_of(change)) == len(statements.loader_options_of(change)) == 1,
        [name.key for name in statements.names_set_by(change)] == ["title"],
        [name.key for name in statements.names_set_by(ordered)] == ["title"],
        statements.is_ordered(ordered) and not statements.is_ordered(change),
        statements.names_given_by(new.values([{"id": 1}, {"body": ""}])) == {"id", "body"},
        statements.names_given_by(new.from_select(["id"], sa.select(row.id))) == {"id"},
        statements.prefixes_of(new.prefix_with("OR IGNORE")) == ["OR IGNORE"],
        statements.upsert_of(new) is None,
        statements.returns_values(sa.update(row).returning(row.id)),
        not statements.returns_values(change),
        statements.resolve_lambda(sa.lambda_stmt(lambda: sa.select(sa.text("1")))) is not None,
        statements.may_lock(query) and not statements.may_lock(query.distinct()),
        not statements.may_lock(query.group_by(row.id)),
        statements.has_inner_write(query.add_cte(sa.select(row.id).cte())),
        joins.outer and not joins.full and not joins.placed,
        statements.joins_of(query.select_from(row)).froms != (),
        statements.locks_rows(statements.add_shared_lock(query)),
        statements.locks_rows(statements.add_shared_lock(query.from_statement(query))),
        statements.cache_key_of(query) is not None,
        statements.next_run() < statements.next_run(),
    )
    require(all(found), f"number {found.index(False)}" if False in found else "")


def _parts_of_sessions(trial: _Trial) -> None:
    with trial.session() as session:
        row, state = (one := session.get(trial.Row, 1)), sa.inspect(one)
        mapper = state.mapper
        transaction, connection = session.get_transaction(), session.connection()
        assert transaction is not None
        mappers.expire_attributes(state, ["body"])
        mappers.read_expired(state)
        new = trial.Row(id=4)
        session.add(new)
        session.flush()
        row.title = "mine"
        flushes.take_connections(transaction, flushes.leave_connections(transaction))
        flushes.expire_with_savepoint(session, [state])
        found = (
            row.__dict__["body"] == "",
            flushes.classes_to_flush(session) == {mapper},
            flushes.stored_states_to_flush(session) == [state],
            [*flushes.states_inserted_by(session)] == [sa.inspect(new)],
            flushes.is_opened_by_session(transaction, connection),
            not flushes.was_committed(transaction) and not flushes.was_committing(transaction),
            not flushes.is_orphan(mapper, [state]),
            {*mappers.mappers_in(mapper.registry)} == {mapper, sa.inspect(trial.Part)},
            mapper.registry in [*mappers.registries()],
            not mappers.key_of_mapping(mapper),
            [*mappers.mappers_meant(mapper, mapper.class_.__name__)] == [mapper],
        )
        require(all(found), f"number {found.index(False)}" if False in found else "")
        flushes.note_deleted_rows(session, [state])
        require(state.was_deleted or state.deleted, "a deleted row")
        _parts_of_connections(connection)


def _parts_of_connections(connection: Connection) -> None:
    dialect, engine = connection.dialect, connection.engine
    column: sa.Column[Any] = sa.Column("n", sa.Integer, server_default="5")
    error = statements.wrap_error(
        ValueError(), connection, sa.update(sa.table("rows", sa.column("n"))), {"n": 1}
    )
    found = (
        not connections.has_statement_listeners(connection, except_for=None),
        not connections.has_begin_listeners(engine),
        not connections.has_commit_listeners(connection),
        not connections.has_listeners_after_statements(connection),
        connections.level_on_connect(dialect) is None,
        not connections.doubles_percents(dialect),
        connections.default_in_ddl(column, dialect) == "'5'",
        connections.type_on(column.type, dialect) is column.type,
        connections.variants_of(column.type) == [],
        not connections.has_bind_expression(column.type),
        isinstance(error, Exception),
    )
    require(all(found), f"number {found.index(False)}" if False in found else "")


#: Cases that the guard's own flushes carry out without SQLAlchemy's. They are tried in these, or
#: where there are none: the planned cases take the same ways.
_SIMPLE: tuple[Case, ...] = (_edits, _conflict_of_a_row, _refused_write)
#: Cases that are tried in flushes of SQLAlchemy, and in the guard's own with steps of SQLAlchemy.
_OF_BOTH: tuple[Case, ...] = (_conflicts_of_a_batch, _merge)
#: In these SQLAlchemy has to plan the flush, or an object is read in an unusual way.
_PLANNED: tuple[Case, ...] = (
    _parts_of_statements,
    _parts_of_sessions,
    _listeners,
    _planned_writes,
    _conflict_of_a_delete,
    _conflict_of_an_expired_row,
)
