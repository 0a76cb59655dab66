"""The effect of an UPDATE statement on the version: it moves, perhaps in another table, or stays.

The version's column has an ``onupdate``. SQLAlchemy's own ``version_id_col`` has none: there the
statement itself names the next version (:func:`move_version`). Where only ignored columns change,
or inside a ``no_bump`` block, the statement keeps the version (:func:`keep_version`).

``update(Dog).values(tricks=...)`` writes ``dogs``, and the version of a dog is in ``animals``;
``update(Vehicle)`` writes ``vehicles``, and that of a car is in ``cars``. A watched session moves
it with a second UPDATE, before the statement, with the same WHERE (:func:`move_in_other_table`). It
refuses two statements whose versions it cannot move: an UPDATE of an alias, where no ``onupdate``
acts, and one of such a table outside the ORM.

:func:`unchanged` is the WHERE of a statement that is meant for rows as they were read::

    session.execute(update(Account).where(unchanged(account)).values(balance=0))
    session.execute(delete(Draft).where(unchanged(*drafts)))

It is true of a row while its key and its version are those of a loaded object. ``result.rowcount``,
the number of rows that the statement matched, shows whether all were.

A version that a program gives must be of the column's type (:class:`VersionType`). A version of
another type is refused before anything is sent. Otherwise the database, or its driver, would raise
an error about types that names no row; or would find no row, which looks like a conflict and is
none; or, where it turns text into numbers as MariaDB does, would find one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeDecorator, TypeEngine

from optilock._mapped import HINT_ADD_TOKEN, facts
from optilock._mapping.tables import joined_tables, moved_by_flushes, owner_of, versioned_tables
from optilock._undocumented.statements import criteria_of, is_ordered, names_set_by
from optilock._watched.session.connections import refuse_autocommit
from optilock._watched.session.record import session_record
from optilock.dialects.values import rows_with_keys
from optilock.errors import ConfigurationError, describe
from optilock.tokens.row_version import TransactionId
from optilock.tokens.timestamp import UtcDateTime


def columns_set(mapper: Mapper[Any], statement: sa.Update, params: Any) -> set[Any]:
    """Return the columns that get a new value; a name without a column is returned as it is."""
    names = names_set_by(statement)
    if isinstance(params, Mapping):
        names += [name for name in params if name in mapper.column_attrs]
    return {_column(mapper, name) for name in names}


def _column(mapper: Mapper[Any], name: Any) -> Any:
    if not isinstance(name, str):
        return next((one for one in mapper.columns if one.shares_lineage(name)), name)
    if name in mapper.column_attrs:
        return mapper.column_attrs[name].columns[0]
    return mapper.local_table.columns.get(name, name)


def _names_set(statement: sa.Update, params: Any) -> set[str]:
    """Return the columns of its table that it sets; other parameters are those of its WHERE."""
    rows = params if isinstance(params, list) else [params]
    columns: Any = getattr(statement.table, "element", statement.table).columns
    given = {name for row in rows if isinstance(row, Mapping) for name in row if name in columns}
    return given | {str(getattr(name, "key", name)) for name in names_set_by(statement)}


# -- versions that stay ----------------------------------------------------------------------------


def class_stands_still(session: Session, mapper: Mapper[Any]) -> bool:
    """Return whether a ``no_bump`` block is open for all rows, or for this class."""
    blocks = session_record(session).no_bump_blocks
    return bool(blocks) and any(
        issubclass(mapper.class_, still.classes) if still.classes else not still.objects
        for still in blocks
    )


def keep_version(mapper: Mapper[Any], statement: sa.Update) -> sa.Update:
    """Return the statement of the class, with a value that keeps the version."""
    token = facts(mapper).version
    if token.table is not mapper.local_table or token.onupdate is None or is_ordered(statement):
        return statement  # an ordered statement cannot be added to: there the version moves
    return mark_version_added(statement.values({token: token}))


def keep_version_of_table(session: Session, statement: Any, params: Any) -> Any:
    """Return an UPDATE of the table that keeps a version which must not move.

    Other statements are returned as they are.
    """
    table = statement.table
    mapper = None if isinstance(statement, sa.Delete) else owner_of(table)
    token: Any = None if mapper is None else mapper.version_id_col
    if mapper is None or token.table is not table or token.onupdate is None:
        return statement
    names = _names_set(statement, params)
    if token.key in names or is_ordered(statement):
        return statement
    stays = class_stands_still(session, mapper) or _are_ignored(mapper, table, names)
    return mark_version_added(statement.values({token: token})) if stays else statement


def _are_ignored(mapper: Mapper[Any], table: Any, names: set[str]) -> bool:
    ignored = {column.key for column in facts(mapper).ignored if column.table is table}
    return bool(names) and names <= ignored


# -- versions that move ----------------------------------------------------------------------------


def move_version(mapper: Mapper[Any], statement: sa.Update) -> sa.Update:
    """Return the statement with the next version, where no ``onupdate`` would make it.

    Raises:
        ConfigurationError: the next version depends on the one before in a way that only Python
            knows, or the statement is an ordered one, which cannot be added to.
    """
    token = facts(mapper).version
    if not callable(mapper.version_id_generator) or token.onupdate is not None:
        return statement
    if is_ordered(statement):
        raise version_not_moved_error(mapper, "ordered_values() cannot be added to")
    return mark_version_added(statement.values(dict(next_version_values(mapper))))


_ADDED = "optilock_version_added"


def mark_version_added(statement: sa.Update) -> sa.Update:
    """Return the statement, marked: optilock has given the version a value, and not the program."""
    return statement.execution_options(**{_ADDED: True})


def version_is_added(statement: sa.Update | sa.Delete) -> bool:
    """Return whether only optilock has given the version of the statement a value."""
    return _ADDED in statement.get_execution_options()


def move_in_other_table(
    connection: sa.Connection, mapper: Mapper[Any], table: Any, statement: sa.Update, params: Any
) -> None:
    """Move the versions of ``mapper``'s rows whose part in ``table`` the statement matches."""
    refuse_autocommit(connection, f"An UPDATE of {mapper.class_.__name__}, in two tables,")
    token = facts(mapper).version
    _refuse_compared_apart(mapper, token, statement)
    pairs = [
        (column_in(mapper, key, token.table), column_in(mapper, key, table))
        for key in mapper.primary_key
    ]
    rows = sa.select(*(local for _, local in pairs)).where(*criteria_of(statement))
    here = rows_with_keys([key for key, _ in pairs], rows)
    connection.execute(
        token.table.update().where(here).values(next_version_values(mapper)), params or {}
    )


def _refuse_compared_apart(mapper: Mapper[Any], token: Any, statement: sa.Update) -> None:
    """Refuse a WHERE with a version that is moved before the statement: it would find no row."""
    for criterion in criteria_of(statement):
        for one in visitors.iterate(criterion):
            if isinstance(one, sa.ColumnClause) and token.shares_lineage(one):
                name = mapper.class_.__name__
                raise ConfigurationError(
                    f"The UPDATE of {name} compares {token.name!r}, which is in another table"
                    f" ({token.table.description}) and moves before it: it would find no row. Use"
                    f" optilock.bulk_update(session, {name}, ...) with the versions that were read,"
                    " or change the objects. Nothing was sent."
                )


def versioned_children(mapper: Mapper[Any]) -> list[Mapper[Any]]:
    """Return children of a class without a version that have one, in a table of their own."""
    return [
        child
        for child in mapper.self_and_descendants
        if child.version_id_col is not None
        and child.inherits is not None
        and child.inherits.version_id_col is None
        and mapper.local_table in child.tables
    ]


def next_version_values(mapper: Mapper[Any]) -> Mapping[Any, Any]:
    """Return the values that an UPDATE sets to move the version."""
    touch = facts(mapper).touch
    if touch:
        return touch
    token = facts(mapper).version
    if token.onupdate is not None and token.onupdate.is_clause_element:
        return {token: token.onupdate.arg}
    kind = facts(mapper).kind
    if kind is not None:
        return {token: kind.anew()}
    make: Any = mapper.version_id_generator
    first = make(None)
    if type(first) is int and (make(1), make(41)) == (2, 42):
        return {token: token + 1}
    if make(None) == first:
        raise version_not_moved_error(mapper, "it is made in Python from the version before")
    return {token: first}


def column_in(mapper: Mapper[Any], key: Any, table: Any) -> sa.Column[Any]:
    """Return the column of ``table`` that holds the same as ``key``."""
    columns = mapper.get_property_by_column(key).columns
    return next(one for one in columns if one.table is table)


# -- refusals --------------------------------------------------------------------------------------


def refuse_update_of_table(statement: sa.Update, params: Any) -> None:
    """Refuse an UPDATE that would change a versioned row and leave its version.

    Raises:
        ConfigurationError: it is an UPDATE of an alias, of a table with SQLAlchemy's own
            ``version_id_col``, of one whose rows have their version in another table, or of values
            that the version is made from.
    """
    named = statement.table
    table: Any = getattr(named, "element", named)  # an alias of it
    mapper = joined_tables().get(table)
    version = versioned_tables().get(table)
    if mapper is not None:
        if not _are_ignored(mapper, table, _names_set(statement, params)):
            raise _elsewhere_error(table, mapper)
    elif version is not None and version.key not in _names_set(statement, params):
        owner = owner_of(table)
        if owner is not None and facts(owner).by_values:
            _refuse_made_of(owner, table, _names_set(statement, params))
        native = moved_by_flushes(version)
        if native is not None or (table is not named and version.onupdate is not None):
            raise _version_left_error(table, version, native)


def _refuse_made_of(mapper: Mapper[Any], table: Any, names: set[str]) -> None:
    """Refuse to change values that the version is made from."""
    if any(column.table is table and column.key in names for column in facts(mapper).made_of):
        raise version_not_moved_error(
            mapper, "it is made from values, which only their object knows"
        )


def _elsewhere_error(table: Any, mapper: Mapper[Any]) -> ConfigurationError:
    cls, version = mapper.class_.__name__, mapper.version_id_col
    return ConfigurationError(
        f"The UPDATE of {table.description} leaves the version of {cls}, which is in"
        f" {getattr(version, 'table', version)}: a session that has read the rows would overwrite"
        f" them unseen. Write update({_class_of(mapper, table)}), which moves it. Nothing was sent."
    )


def _version_left_error(
    table: Any, version: sa.Column[Any], native: str | None
) -> ConfigurationError:
    what, instead = "an alias of ", "the class or the table itself"
    if native is not None:
        what, instead = "", f"the class itself, update({native})"
    return ConfigurationError(
        f"The UPDATE of {what}{table.description} leaves {version.name!r}: a session that has read"
        f" the rows would overwrite them unseen. Update {instead}, or name {version.name!r} among"
        " the values. Nothing was sent."
    )


def refuse_children_by_key(mapper: Mapper[Any], children: list[Mapper[Any]]) -> NoReturn:
    """Refuse ``update(Vehicle)`` with rows by key: some may be cars, with a version."""
    name = mapper.class_.__name__
    known = ", ".join(child.class_.__name__ for child in children)
    raise ConfigurationError(
        f"The UPDATE of {name} by primary key would leave the versions of rows that are {known},"
        f" whose version stands for both tables. Update {known} by primary key, or say"
        f" update({name}).where(...). Nothing was sent."
    )


def _class_of(mapper: Mapper[Any], table: Any) -> str:
    own = next((m for m in mapper.iterate_to_root() if m.local_table is table), mapper)
    return str(own.class_.__name__)


def version_not_moved_error(mapper: Mapper[Any], why: str) -> ConfigurationError:
    cls, key = mapper.class_.__name__, facts(mapper).token
    return ConfigurationError(
        f"The UPDATE of {cls} would leave {key!r}, and optilock cannot add the next version: {why}."
        f" Name it among the values of the statement, or change the objects. Nothing was sent."
    )


def unchanged(*objects: object) -> sa.ColumnElement[bool]:
    """Return a condition that holds for the rows of ``objects`` in the versions that were loaded.

    Raises:
        ConfigurationError: no object; one that is not loaded, or has no version.
    """
    if not objects:
        raise ConfigurationError(
            "unchanged() got no object: a statement without a condition writes every row."
        )
    return sa.or_(*map(_as_loaded, objects))


def _as_loaded(obj: Any) -> sa.ColumnElement[bool]:
    state = sa.inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState) or state.key is None:
        raise ConfigurationError(
            f"unchanged() takes objects that a session has loaded, and got {describe(obj)} that is"
            " not stored yet, or not mapped."
        )
    mapper = state.mapper
    token = facts(mapper).token
    if not token:
        raise ConfigurationError(
            f"{mapper.class_.__name__} has no version to compare: {HINT_ADD_TOKEN}."
        )
    version = state.committed_state.get(token, state.dict.get(token))
    if version is None:
        raise ConfigurationError(
            f"The version of this {mapper.class_.__name__} is not loaded: a commit has expired it."
            " Call session.refresh(), or create the sessions with expire_on_commit=False."
        )
    keys = [
        getattr(mapper.class_, name) == value
        for name, value in zip(facts(mapper).keys, state.key[1], strict=True)
    ]
    return sa.and_(*keys, getattr(mapper.class_, token) == version)


# -- the type of a version -------------------------------------------------------------------------

#: Type of the versions as they are read -> further types that a program may give.
ALSO_ACCEPTED: dict[type, tuple[type, ...]] = {Decimal: (int,), bytes: (bytearray, memoryview)}
#: No database has a whole number beyond.
_LARGEST = 1 << 63


class VersionType:
    """The versions that the rows of a class can have."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self._mapper = mapper
        kind = facts(mapper).version.type
        self._type = _python_type(kind)
        self._takes = () if self._type is None else (self._type, *ALSO_ACCEPTED.get(self._type, ()))
        self._zone = _has_zone(kind)

    def takes(self, version: Any) -> bool:
        """Return whether it is of the type, and no larger than any number of a database."""
        if self._type is None:
            return True
        if not isinstance(version, self._takes) or isinstance(version, bool):
            return False
        if isinstance(version, datetime) and self._zone is not None:
            return (version.tzinfo is not None) is self._zone
        return not isinstance(version, int) or -_LARGEST <= version < _LARGEST

    def refused(self, where: str, version: Any) -> ConfigurationError:
        """Return the error for a version that no row can have; ``where`` names its row."""
        name, token = self._mapper.class_.__name__, facts(self._mapper).token
        return ConfigurationError(
            f"{where} gives {kind_of(version)} as {token!r}, and the version of {name} is"
            f" {self._words()}: give the version as it was read. Nothing was sent."
        )

    def _words(self) -> str:
        assert self._type is not None
        if self._type is datetime and self._zone is not None:
            return f"a datetime {'with' if self._zone else 'without'} a time zone"
        return f"a value of type {self._type.__name__}" + (" (64 bits)" * (self._type is int))


def _python_type(kind: TypeEngine[Any]) -> type[Any] | None:
    """Return the type of versions as they are read; ``None``: only the application's type knows."""
    if isinstance(kind, TransactionId):
        return int
    if isinstance(kind, UtcDateTime):
        return datetime
    if isinstance(kind, TypeDecorator):
        return None
    try:
        return kind.python_type
    except NotImplementedError:
        return None


def _has_zone(kind: TypeEngine[Any]) -> bool | None:
    """Return whether times have a zone; ``None``: the database decides."""
    if isinstance(kind, UtcDateTime):
        return True
    return None if not isinstance(kind, sa.DateTime) or kind.timezone else False


def kind_of(value: object) -> str:
    """Return the type of a value in words, for a time also whether it has a zone."""
    if isinstance(value, datetime):
        return f"a datetime {'without' if value.tzinfo is None else 'with'} a time zone"
    return f"a value of type {type(value).__name__}"
