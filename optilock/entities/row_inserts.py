"""One row inserted by its key, or inserted or updated in any version: one statement.

:func:`insert_row` never changes an existing row. PostgreSQL and SQLite insert nothing then, without
an error (ON CONFLICT DO NOTHING). MariaDB raises an error, after which the row is read.

:func:`upsert_row` inserts the row, or changes the one with the same key and moves its version: by
one step, to the next random value, or as the database does. ON CONFLICT names the primary key.
MariaDB's ON DUPLICATE KEY UPDATE acts on any unique key, so it could change a row of another key.
There each new value depends on the keys being equal, and RETURNING has the comparison. If they
differ, nothing was written, and the error is :class:`~optilock.errors.AlreadyExists`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, Connection, Insert, Table, and_, bindparam
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import NO_VALUE, Mapper, Session

from optilock import events
from optilock._columns.identities import identity_in
from optilock._mapped import Identity, facts
from optilock._mapping.scopes import has_scopes, rules_of
from optilock._watched.rows.stored import read_stored
from optilock._watched.scopes.transaction import note_moves
from optilock._watched.session.commit_events import author_of, note_row
from optilock._watched.session.connections import (
    connection_to_write,
    is_autocommit,
    refuse_autocommit,
    require_answer,
)
from optilock._watched.session.record import demands_of, is_watched, session_record
from optilock._watched.statements.call import flush_before
from optilock._watched.statements.requests import unconditional_error
from optilock._watched.statements.rollback_effects import note_unseen_rows, unseen_rows_of
from optilock._watched.statements.scopes import (
    moves_of_new_row,
    moves_of_rows,
    values_of_new_row,
)
from optilock._watched.statements.version import next_version_values
from optilock._watched.writes.answers import onupdate_values
from optilock.dialects import database_of
from optilock.dialects.rows import execute_unguarded
from optilock.entities.row_statements import ignores_previous_version
from optilock.entities.row_writes import WrittenRow, look_at, read_again
from optilock.errors import AlreadyExists, ConfigurationError

_KEY, _OURS = "optilock_key_", "optilock_ours"
_TRIES = 3


@dataclass(frozen=True)
class NewRow:
    """The values of a row to insert."""

    mapper: Mapper[Any]
    #: ``None``: the database makes the key.
    identity: Identity | None
    #: Attribute -> value; the others get their defaults.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: The version, if it is made from the values or from the request.
    made: Any = None
    #: Returns whether this very request made a version, when it was sent before.
    is_ours: Callable[[Any], bool] | None = None

    def params(self) -> dict[str, Any]:
        known = facts(self.mapper)
        params = {known.columns[name].key: value for name, value in self.values.items()}
        if self.identity is not None:
            keys = zip(self.mapper.primary_key, self.identity, strict=True)
            params.update({str(key.key): value for key, value in keys})
        if self.mapper.polymorphic_on is not None:
            params[self.mapper.polymorphic_on.key] = self.mapper.polymorphic_identity
        make: Any = self.mapper.version_id_generator
        if self.made is not None or callable(make):
            params[known.version.key] = make(None) if self.made is None else self.made
        return params


def insert_row(session: Session, new: NewRow, *, status: int = 409) -> WrittenRow:
    """Flush the session, then insert the row.

    Raises:
        AlreadyExists: there is a row with this key; the error has this ``status``.
    """
    flush_before(session, {})
    mapper = new.mapper
    connection = connection_to_write(session, mapper, writes=True)
    moves = moves_of_new_row(session, mapper, new.params())
    for _ in range(_TRIES):
        written = _inserted(session, connection, new)
        if written is not None:
            note_moves(session, mapper, moves)
            read_again(session, mapper, written.identity)
            _note(session, connection, new, "insert", written)
            return written
        assert new.identity is not None
        stored, _ = look_at(connection, mapper, new.identity, of_class=False)
        version = None if stored is None else stored[facts(mapper).token]
        if stored is not None and new.is_ours is not None and new.is_ours(version):
            identity = identity_in(mapper, new.identity, stored)
            read_again(session, mapper, identity)
            return WrittenRow(identity, version, again=True)
        if stored is not None:
            raise AlreadyExists(mapper.class_, new.identity, stored, status)
    raise AlreadyExists(mapper.class_, new.identity or (), None, status)


def upsert_row(session: Session, new: NewRow, changed: frozenset[str]) -> WrittenRow:
    """Insert the row, or set the attributes ``changed`` of the stored one to its values.

    Raises:
        AlreadyExists: a row of another key has a value that must be unique.
        ConfigurationError: the database has no such statement, or the session has demands of its
            rows.
    """
    flush_before(session, {})
    mapper, identity = new.mapper, new.identity
    assert identity is not None
    connection = connection_to_write(session, mapper, writes=True)
    _refuse_demands(session, mapper)
    if is_watched(session) and session_record(session).require_conditions:
        raise unconditional_error(f"{mapper.class_.__name__} {identity!r}, in any version,")
    form = _upsert_of(connection, new, changed)
    if form.needs_select:
        refuse_autocommit(connection, f"An upsert of {mapper.class_.__name__}")
    _record(session, form.statement)
    params = form.params(connection, new)
    inserted = values_of_new_row(mapper, new.params()) if has_scopes(mapper) else {}
    replaced = {name: inserted.get(name, NO_VALUE) for name in changed}
    moves = moves_of_rows(session, mapper, {identity: replaced})
    known_row = bool(moves)
    moves |= moves_of_new_row(session, mapper, new.params())
    with _answered(mapper, is_autocommit(connection)):
        row = execute_unguarded(connection, form.statement, params).one()
    if form.by_any_key and not row[1]:
        raise AlreadyExists(mapper.class_, identity)
    version = _read_version(connection, mapper, identity) if form.needs_select else row[0]
    if moves and not known_row and not _is_first(mapper, version):
        moves.add(rules_of(mapper).any_key)  # the row was there all the same, in an unknown scope
    note_moves(session, mapper, moves)
    identity = tuple(row[-len(identity) :])
    read_again(session, mapper, identity)
    written = WrittenRow(identity, version)
    _note(session, connection, new, "upsert", written)
    return written


def _note(
    session: Session, connection: Connection, new: NewRow, action: str, written: WrittenRow
) -> None:
    if events.listeners_to_rows:
        note_row(
            session,
            new.mapper,
            action,
            written.identity,
            version=written.version,
            columns=new.values,
            author=author_of(new.mapper, new.values),
            connection=connection,
        )


def _is_first(mapper: Mapper[Any], version: Any) -> bool:
    """Return whether only a row that was just inserted has the version."""
    made: Any = mapper.version_id_generator
    return callable(made) and not ignores_previous_version(mapper) and made(None) == version


# -- INSERT ----------------------------------------------------------------------------------------


def _inserted(session: Session, connection: Connection, new: NewRow) -> WrittenRow | None:
    """Insert the row; return ``None`` if there is one with its key."""
    mapper, version = new.mapper, facts(new.mapper).version
    returns = connection.dialect.insert_returning
    statement, by_error = _insert_of(connection, new)
    _record(session, statement)
    params = new.params()
    commits = new.is_ours is None and is_autocommit(connection)  # or it is recognised later
    try:
        with _answered(mapper, commits):
            result = execute_unguarded(connection, statement, params)
            row = result.first() if returns else None
    except IntegrityError:
        if by_error and look_at(connection, mapper, new.identity or (), of_class=False)[0]:
            return None
        raise
    if returns:
        return None if row is None else WrittenRow(tuple(row[1:]), row[0])
    if new.identity is not None and not by_error and not result.rowcount:
        return None
    identity = tuple(result.inserted_primary_key)
    stored = params.get(version.key)
    if stored is None:
        refuse_autocommit(connection, f"Inserting a row of {mapper.class_.__name__}")
        stored = _read_version(connection, mapper, identity)
    return WrittenRow(identity, stored)


def _insert_of(connection: Connection, new: NewRow) -> tuple[Insert, bool]:
    """Return the statement, and whether an error of it can mean that the row exists."""
    table: Table = facts(new.mapper).table
    given = new.identity is not None
    unless = database_of(connection.dialect).one_row.insert_unless(table) if given else None
    statement = table.insert() if unless is None else unless
    if connection.dialect.insert_returning:
        version = facts(new.mapper).version
        statement = statement.returning(version, *new.mapper.primary_key)
    return statement, given and unless is None


@contextmanager
def _answered(mapper: Mapper[Any], commits: bool) -> Iterator[None]:
    """Find out what a lost answer means, if the statement commits by itself."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        if commits:
            require_answer(error, mapper)
        raise


def _record(session: Session, statement: Insert) -> None:
    """Record the statement, so that rows read after it are read again if it is rolled back."""
    if is_watched(session):
        note_unseen_rows(session, unseen_rows_of(statement))


def _read_version(connection: Connection, mapper: Mapper[Any], identity: Identity) -> Any:
    token = facts(mapper).token
    found = read_stored(connection, mapper, [identity], only=(token,), lock=False)
    return next(iter(found.values()))[token]


# -- upserts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Upsert:
    statement: Insert
    #: The statement can find a row of another key.
    by_any_key: bool
    #: The version is read afterwards.
    needs_select: bool
    #: Columns whose ``onupdate`` Python makes.
    onupdate: tuple[str, ...]

    def params(self, connection: Connection, new: NewRow) -> dict[str, Any]:
        params = new.params()
        if self.onupdate:
            values = onupdate_values(facts(new.mapper).table, connection, dict(params))
            params |= {f"optilock_new_{name}": values[name] for name in self.onupdate}
        if self.by_any_key:
            params |= {f"{_KEY}{i}": value for i, value in enumerate(new.identity or ())}
        return params


_upserts: WeakKeyDictionary[Mapper[Any], dict[Any, _Upsert]] = WeakKeyDictionary()


def _upsert_of(connection: Connection, new: NewRow, changed: frozenset[str]) -> _Upsert:
    dialect = connection.dialect
    forms = _upserts.setdefault(new.mapper, {})
    place = dialect.name, dialect.driver, changed
    found = forms.get(place)
    if found is None:
        found = forms[place] = _made(connection, new, changed)
    return found


def _made(connection: Connection, new: NewRow, changed: frozenset[str]) -> _Upsert:
    mapper, known, dialect = new.mapper, facts(new.mapper), connection.dialect
    ask, table = database_of(dialect).one_row, known.table
    if not dialect.insert_returning:
        raise ConfigurationError(
            f"An upsert of {mapper.class_.__name__} is refused: this database has no INSERT …"
            " RETURNING, which returns the row's new version (PostgreSQL, SQLite 3.35 and"
            " MariaDB 10.5 have it). Use insert(), and where it raises AlreadyExists, replace() or"
            " merge(). Nothing was sent."
        )
    updated = _updated(mapper, changed)
    sql: dict[str, Any] = {column.key: column.onupdate for column in updated}
    python = tuple(name for name, how in sql.items() if not how.is_clause_element)

    def changes(fresh: Any) -> Mapping[str, Any]:
        sets = {known.columns[name].key: fresh[known.columns[name].key] for name in changed}
        for column in updated:
            own = bindparam(f"optilock_new_{column.key}", type_=column.type)
            sets[column.key] = own if column.key in python else sql[column.key].arg
        return sets | _moved(mapper, fresh, empty=not sets)

    statement = ask.upsert(table, changes)
    asked: list[Any] = [known.version]
    if ask.upserts_by_any_key:
        keys = enumerate(table.primary_key)
        ours = and_(*(key == bindparam(f"{_KEY}{i}", type_=key.type) for i, key in keys))
        asked.append(ours.label(_OURS))
    kind = known.kind
    needs_select = kind is not None and kind.has_trigger and ask.returns_before_triggers
    asked += mapper.primary_key
    return _Upsert(statement.returning(*asked), ask.upserts_by_any_key, needs_select, python)


def _updated(mapper: Mapper[Any], changed: frozenset[str]) -> list[Column[Any]]:
    """Return the columns with an ``onupdate``, without the version's."""
    return [
        column
        for name, column in facts(mapper).columns.items()
        if column.onupdate is not None and name not in changed and name != facts(mapper).token
    ]


def _moved(mapper: Mapper[Any], fresh: Any, *, empty: bool) -> dict[str, Any]:
    """Return the values that move the version of an existing row."""
    known = facts(mapper)
    version = known.version
    if known.by_values:
        return {version.key: fresh[version.key]}
    if not callable(mapper.version_id_generator):
        touch = known.touch if empty or known.version.onupdate is not None else {}
        return {column.key: value for column, value in touch.items()}
    if ignores_previous_version(mapper):
        return {version.key: fresh[version.key]}  # that of the new row
    return {column.key: value for column, value in next_version_values(mapper).items()}


def _refuse_demands(session: Session, mapper: Mapper[Any]) -> None:
    demands = demands_of(session)
    if demands is not None and demands.conditions_for(mapper):
        raise ConfigurationError(
            f"An upsert of {mapper.class_.__name__} is refused in this session, which demands"
            " something of every row that it writes (optilock.statements.demand, or the leases"
            " of the class): that cannot be checked for a row which an upsert changes. Use"
            " insert(), and if it raises AlreadyExists, replace() or merge(). Nothing was sent."
        )
