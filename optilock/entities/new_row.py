"""One row inserted by its key, or written whatever is there: one statement.

:func:`insert_row` leaves a row that is there alone. PostgreSQL and SQLite say so without an error
(ON CONFLICT DO NOTHING), MariaDB by its error, after which the row is looked for.

:func:`upsert_row` inserts the row, or else changes the one with the same key and moves its
version: by one step, to the next random value, or as the database does. ON CONFLICT names the
primary key. MariaDB's ON DUPLICATE KEY UPDATE takes any unique key, so that it could change a row
of another key: there each new value is under the condition that the keys are equal, and RETURNING
says whether they were. If they were not, nothing was written, and the call ends in
:class:`~optilock.errors.AlreadyExists`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, Connection, Insert, Table, and_, bindparam
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Mapper, Session

from optilock.columns.identities import identity_in
from optilock.dialects import database_of
from optilock.dialects.rows import native
from optilock.entities.one_form import is_made_anew
from optilock.entities.one_row import Written, look_at, read_again
from optilock.errors import AlreadyExists, ConfigurationError
from optilock.mapped import Identity, facts
from optilock.watched.rows.stored import read_stored
from optilock.watched.session.connections import (
    autocommits,
    connection_to_write,
    refuse_autocommit,
    require_answer,
)
from optilock.watched.session.watched import demands_of, is_watched, watched
from optilock.watched.statements.call import flush_before
from optilock.watched.statements.requests import unconditional
from optilock.watched.statements.rollback_effects import note_unseen, unseen_of
from optilock.watched.statements.version import following
from optilock.watched.writes.answers import onupdate_values

_KEY, _OURS = "optilock_key_", "optilock_ours"
_TRIES = 3


@dataclass(frozen=True)
class NewRow:
    """A row as it is to be stored."""

    mapper: Mapper[Any]
    #: ``None``: the database makes the key.
    identity: Identity | None
    #: Attribute -> value; the others get their defaults.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: The version, where it is made from the values, or from the request.
    made: Any = None
    #: Was a version made by this very request, when it was sent before?
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


def insert_row(session: Session, new: NewRow, *, status: int = 409) -> Written:
    """Insert the row, after what is pending in the session.

    Raises:
        AlreadyExists: there is a row with this key; with this ``status``.
    """
    flush_before(session, {})
    mapper = new.mapper
    connection = connection_to_write(session, mapper)
    for _ in range(_TRIES):
        written = _inserted(session, connection, new)
        if written is not None:
            read_again(session, mapper, written.identity)
            return written
        assert new.identity is not None
        stored, _ = look_at(connection, mapper, new.identity, of_class=False)
        version = None if stored is None else stored[facts(mapper).token]
        if stored is not None and new.is_ours is not None and new.is_ours(version):
            identity = identity_in(mapper, new.identity, stored)
            read_again(session, mapper, identity)
            return Written(identity, version, again=True)
        if stored is not None:
            raise AlreadyExists(mapper.class_, new.identity, stored, status)
    raise AlreadyExists(mapper.class_, new.identity or (), None, status)


def upsert_row(session: Session, new: NewRow, changed: frozenset[str]) -> Written:
    """Insert the row; or else give the attributes ``changed`` of the one that is there its values.

    Raises:
        AlreadyExists: there is a row of another key, with a value that is to be unique.
        ConfigurationError: the database has no such statement, or the session demands something of
            its rows.
    """
    flush_before(session, {})
    mapper, identity = new.mapper, new.identity
    assert identity is not None
    connection = connection_to_write(session, mapper)
    _refuse_demands(session, mapper)
    if is_watched(session) and watched(session).require_conditions:
        raise unconditional(f"{mapper.class_.__name__} {identity!r}, whatever it is by then,")
    form = _upsert_of(connection, new, changed)
    params = new.params()
    if form.onupdate:
        values = onupdate_values(facts(mapper).table, connection, dict(params))
        params |= {f"optilock_new_{name}": values[name] for name in form.onupdate}
    if form.asks:
        refuse_autocommit(connection, f"An upsert of {mapper.class_.__name__}")
    _note(session, form.statement)
    if form.by_any_key:
        params |= {f"{_KEY}{i}": value for i, value in enumerate(identity)}
    commits = autocommits(connection)
    try:
        row = native(connection, form.statement, params).one()
    except DBAPIError as error:
        if commits:
            require_answer(error, mapper)
        raise
    if form.by_any_key and not row[1]:
        raise AlreadyExists(mapper.class_, identity)
    version = _read_version(connection, mapper, identity) if form.asks else row[0]
    identity = tuple(row[-len(identity) :])
    read_again(session, mapper, identity)
    return Written(identity, version)


# -- INSERT ----------------------------------------------------------------------------------------


def _inserted(session: Session, connection: Connection, new: NewRow) -> Written | None:
    mapper, known = new.mapper, facts(new.mapper)
    table: Table = known.table
    statement = (
        None if new.identity is None else database_of(connection.dialect).insert_unless(table)
    )
    unless = statement is not None
    if statement is None:
        statement = table.insert()
    returns = connection.dialect.insert_returning
    if returns:
        statement = statement.returning(known.version, *mapper.primary_key)
    _note(session, statement)
    params = new.params()
    commits = new.is_ours is None and autocommits(connection)  # or else it is known again
    try:
        result = native(connection, statement, params)
        row = result.first() if returns else None
    except IntegrityError:
        if unless or new.identity is None:
            raise
        if look_at(connection, mapper, new.identity, of_class=False)[0] is None:
            raise
        return None
    except DBAPIError as error:
        if commits:
            require_answer(error, mapper)
        raise
    if returns:
        return None if row is None else Written(tuple(row[1:]), row[0])
    if unless and not result.rowcount:
        return None
    identity = tuple(result.inserted_primary_key)
    version = params.get(known.version.key)
    if version is None:
        refuse_autocommit(connection, f"Inserting a row of {mapper.class_.__name__}")
        version = _read_version(connection, mapper, identity)
    return Written(identity, version)


def _note(session: Session, statement: Insert) -> None:
    """What was read of such rows after it must be read again if it is rolled back."""
    if is_watched(session):
        note_unseen(session, unseen_of(statement))


def _read_version(connection: Connection, mapper: Mapper[Any], identity: Identity) -> Any:
    token = facts(mapper).token
    found = read_stored(connection, mapper, [identity], only=(token,), lock=False)
    return next(iter(found.values()))[token]


# -- upserts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Upsert:
    statement: Insert
    #: A row of another key may be met.
    by_any_key: bool
    #: The version is read afterwards.
    asks: bool
    #: Columns whose ``onupdate`` Python makes.
    onupdate: tuple[str, ...]


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
    database, table = database_of(dialect), known.table
    if not dialect.insert_returning:
        raise ConfigurationError(
            f"An upsert of {mapper.class_.__name__} is refused: this database has no INSERT …"
            " RETURNING, which tells the version that the row gets (PostgreSQL, SQLite 3.35 and"
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

    statement = database.upsert(table, changes)
    asked: list[Any] = [known.version]
    if database.upserts_by_any_key:
        keys = enumerate(table.primary_key)
        ours = and_(*(key == bindparam(f"{_KEY}{i}", type_=key.type) for i, key in keys))
        asked.append(ours.label(_OURS))
    kind = known.kind
    asks = kind is not None and kind.has_trigger and database.returns_before_triggers
    asked += mapper.primary_key
    return _Upsert(statement.returning(*asked), database.upserts_by_any_key, asks, python)


def _updated(mapper: Mapper[Any], changed: frozenset[str]) -> list[Column[Any]]:
    """The columns that an UPDATE gives a new value by itself, the version's apart."""
    return [
        column
        for name, column in facts(mapper).columns.items()
        if column.onupdate is not None and name not in changed and name != facts(mapper).token
    ]


def _moved(mapper: Mapper[Any], fresh: Any, *, empty: bool) -> dict[str, Any]:
    """What moves the version of a row that is there."""
    known = facts(mapper)
    version = known.version
    if known.by_values:
        return {version.key: fresh[version.key]}
    if not callable(mapper.version_id_generator):
        touch = known.touch if empty or known.version.onupdate is not None else {}
        return {column.key: value for column, value in touch.items()}
    if is_made_anew(mapper):
        return {version.key: fresh[version.key]}  # that of the new row
    return {column.key: value for column, value in following(mapper).items()}


def _refuse_demands(session: Session, mapper: Mapper[Any]) -> None:
    demands = demands_of(session)
    if demands is not None and demands.on(mapper):
        raise ConfigurationError(
            f"An upsert of {mapper.class_.__name__} is refused in this session, which demands"
            " something of every row that it writes (optilock.demand, or the leases of the class):"
            " of a row that an upsert changes nobody could say whether that is true. Use insert(),"
            " and where it raises AlreadyExists, replace() or merge(). Nothing was sent."
        )
