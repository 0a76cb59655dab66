"""Scopes: the rows of a class with the same values in some columns, as a value with a version.

::

    class Booking(Versioned, Base):
        __version_scopes__ = ("room_id", ("room_id", "day"), ())

    Booking.scope(room_id=7)                    # all bookings of room 7
    Booking.scope(room_id=7, day=today)         # those of one day
    Booking.scope()                             # all bookings

An element of ``__version_scopes__`` is an attribute, a tuple of attributes, or ``()`` for the whole
table. Each combination of values has a version, which every insert, delete and change of its rows
moves (:mod:`optilock._watched.scopes`). A version of a row stops a lost update of that row; a
version of a scope also shows that a row was *added*.

**The key** of a scope is a text, the primary key of its row in ``optilock_scopes``::

    bookings(room_id)=1:7                       # table, columns, then length:value of each value
    bookings(room_id,day)=1:7,10:2026-01-31     # NULL is "-"
    bookings()=                                 # the whole table
    bookings(*)                                 # moved by writers that cannot name their scopes

A trigger can make the same text, so only types are allowed whose text is the same in Python and in
SQL: integers, booleans (``1``, ``0``), dates (ISO), UUIDs (32 hexadecimal digits), enums and texts.
A list of values of more than 400 characters is replaced by ``#`` and its MD5.

A class that has an attribute ``scope`` of its own keeps it. The call is then
``make_scope(Booking, room_id=7)``, of this module.

**NULL** is a value of its own: ``Booking.scope(room_id=None)`` has the rows without a room.

**Hierarchies.** A row has the same scopes, whichever class it was read as: the class at the root of
the hierarchy declares them, over columns of its own table. Its subclasses have the same scopes.

**Refused** while the class is mapped: a name that is no column attribute, a column of
``__version_ignore__`` or ``__version_commutes__``, a type whose values may be equal and have two
texts (floats, decimals, times, a collation that ignores case or trailing spaces), two equal scopes,
and scopes of a subclass.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.orm import Mapper

from optilock._mapped import facts
from optilock._mapping.tables import OfTables
from optilock.errors import ConfigurationError

OPTION = "__version_scopes__"
#: The longest list of values that a key holds as it is.
LONGEST = 400
#: The longest name of a table with its columns.
_LONGEST_NAME = 200
#: An attribute of a mapper: its :class:`ScopeRules`.
_RULES = "_optilock_scope_rules"
#: Of one value, as ``length:value``; ``None``: the text is unknown.
Text = Callable[[Any], str | None]


class UnknownScope(Exception):
    """A value whose text is unknown: the scope cannot be named."""


@dataclass(frozen=True)
class Scope:
    """The rows of a class with these values; a value without a session, hashable and picklable.

    ``Booking.scope(room_id=7)`` makes it.
    """

    #: The class that declares the scope.
    model: type[Any]
    #: Attribute -> value, as pairs in the declared order.
    items: tuple[tuple[str, Any], ...] = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """The values in the declared order."""
        return tuple(value for _, value in self.items)

    @property
    def key(self) -> str:
        """The key of the scope's row in ``optilock_scopes``."""
        rules = rules_of(sa.inspect(self.model))
        return rules.named(tuple(name for name, _ in self.items)).key(dict(self.items))

    @property
    def any_key(self) -> str:
        """The key of the row that is moved by writers which cannot name their scopes."""
        return rules_of(sa.inspect(self.model)).any_key

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.items)
        return f"{self.model.__name__}.scope({shown})"


@dataclass(frozen=True, eq=False)
class ScopeRule:
    """One element of ``__version_scopes__``."""

    table: str
    #: The attributes, their columns, and what makes their texts.
    names: tuple[str, ...]
    columns: tuple[sa.Column[Any], ...]
    texts: tuple[Text, ...]

    @cached_property
    def prefix(self) -> str:
        """The key without values."""
        return f"{self.table}({','.join(column.name for column in self.columns)})="

    def key(self, values: Mapping[str, Any]) -> str:
        """Return the key of the scope with these values.

        Raises:
            UnknownScope: a value is missing, or of another type than its column.
        """
        parts = []
        for name, text in zip(self.names, self.texts, strict=True):
            if name not in values:
                raise UnknownScope(name)
            value = values[name]
            if value is None:
                parts.append("-")
                continue
            shown = text(value)
            if shown is None:
                raise UnknownScope(name)
            parts.append(f"{len(shown)}:{shown}")
        whole = ",".join(parts)
        if len(whole) > LONGEST:
            whole = "#" + hashlib.md5(whole.encode(), usedforsecurity=False).hexdigest()
        return self.prefix + whole


@dataclass(frozen=True, eq=False)
class ScopeRules:
    """The scopes of a class."""

    mapper: Mapper[Any]
    rules: tuple[ScopeRule, ...]
    #: Databases on which the columns' texts were found to be compared exactly.
    exact_on: set[type[Any]] = field(default_factory=set)

    @cached_property
    def columns(self) -> tuple[sa.Column[Any], ...]:
        """All columns of scopes, each once."""
        return tuple(dict.fromkeys(column for rule in self.rules for column in rule.columns))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All attributes of scopes, each once."""
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.names))

    @cached_property
    def any_key(self) -> str:
        """The key of the row that is moved by writers which cannot name their scopes."""
        return f"{_table(self.mapper).fullname}(*)"

    def named(self, names: Collection[str]) -> ScopeRule:
        """Return the scope of these attributes.

        Raises:
            ConfigurationError: the class declares none.
        """
        for rule in self.rules:
            if set(rule.names) == set(names):
                return rule
        cls = self.mapper.class_.__name__
        there = "; ".join(f"{cls}.scope({', '.join(f'{n}=...' for n in r.names)})" for r in self)
        raise ConfigurationError(
            f"{cls}.scope({', '.join(f'{name}=...' for name in names)}) is not declared in"
            f" {cls}.{OPTION}. Declared: {there}. Nothing was sent."
        )

    def __iter__(self) -> Iterator[ScopeRule]:
        return iter(self.rules)

    def keys(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield the keys of the row's scopes; that of unnamed ones where a value is unknown."""
        for rule in self.rules:
            try:
                yield rule.key(values)
            except UnknownScope:
                yield self.any_key


def rules_of(mapper: Mapper[Any]) -> ScopeRules:
    """Return the scopes of the class, which are those of the root of its hierarchy."""
    found: ScopeRules | None = facts(mapper).root.__dict__.get(_RULES)
    return ScopeRules(mapper, ()) if found is None else found


def has_scopes(mapper: Mapper[Any]) -> bool:
    """Return whether rows of the class have scopes."""
    return _RULES in facts(mapper).root.__dict__


def make_scope(cls: type[Any], /, **values: Any) -> Scope:
    """Return the scope of ``cls`` with these values: ``Booking.scope(room_id=7)``. Sends no SQL.

    Raises:
        ConfigurationError: the class declares no such scope, or a value is of another type than its
            column.
    """
    mapper = sa.inspect(cls)
    mapper.registry.configure(cascade=True)
    rules = rules_of(mapper)
    rule = rules.named(tuple(values))
    try:
        rule.key(values)
    except UnknownScope as unknown:
        name = str(unknown)
        column = rule.columns[rule.names.index(name)]
        raise ConfigurationError(
            f"{cls.__name__}.scope({name}=...) got a value of type {type(values[name]).__name__},"
            f" and {column.table.name}.{column.name} is of type {column.type!r}. Pass a value of"
            " the column's own type, or None for rows with NULL. Nothing was sent."
        ) from None
    return Scope(rules.mapper.class_, tuple((name, values[name]) for name in rule.names))


# -- the class, while it is mapped -----------------------------------------------------------------

#: Tables with scopes, joined ones included: the class at the root of the hierarchy.
scoped_tables: OfTables[Mapper[Any]] = OfTables()


def declare(mapper: Mapper[Any], cls: type[Any]) -> bool:
    """Check and keep the scopes of a class; return whether it declares any.

    Raises:
        ConfigurationError: see the head of this module.
    """
    if OPTION not in vars(cls) and (mapper.inherits is not None or not getattr(cls, OPTION, ())):
        return False
    given = getattr(cls, OPTION)
    parent = mapper.inherits
    if not given:
        return False
    if parent is not None and not mapper.concrete:
        root = mapper.base_mapper.class_.__name__
        raise ConfigurationError(
            f"{cls.__name__} has {OPTION}, and its rows are rows of {root} as well, which may be"
            f" read and written as {root}. Declare the scopes in {root}, over its own columns."
        )
    rules = tuple(_rule(mapper, cls, element) for element in _elements(cls, given))
    if len({frozenset(rule.names) for rule in rules}) < len(rules):
        raise ConfigurationError(f"{cls.__name__}.{OPTION} names a scope twice: {given!r}.")
    mapper.__dict__[_RULES] = ScopeRules(mapper, rules)
    if not hasattr(cls, "scope"):  # a column of the class may have this name
        cls.scope = classmethod(make_scope)
    return True


def note_tables(mapper: Mapper[Any]) -> None:
    """Note the tables of a class with scopes: a statement may come before it is configured."""
    for table in mapper.tables:
        if isinstance(table, sa.Table):
            scoped_tables[table] = facts(mapper).root


def check_columns(mapper: Mapper[Any]) -> None:
    """Check what a class with scopes ignores, once it is configured.

    Raises:
        ConfigurationError: a column of a scope is ignored, or is one to which writers add.
    """
    known = facts(mapper)
    for rule in rules_of(mapper):
        for name, column in zip(rule.names, rule.columns, strict=True):
            for option, loose in (("ignore", known.ignored), ("commutes", known.commuting)):
                if column in loose:
                    raise ConfigurationError(
                        f"{mapper.class_.__name__}.{OPTION} names {name!r}, which is in"
                        f" __version_{option}__ as well: a row could change its scope without a"
                        " move of its version. Remove it from one of the two."
                    )


def _elements(cls: type[Any], given: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise _malformed(cls, given)
    for element in given:
        names = (element,) if isinstance(element, str) else element
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise _malformed(cls, given)
        if len(set(names)) < len(names):
            raise _malformed(cls, given)
        yield names


def _malformed(cls: type[Any], given: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{cls.__name__}.{OPTION} is {given!r}: write a tuple whose elements are an attribute, a"
        f' tuple of attributes, or () for the whole table: {OPTION} = ("room_id", ("room_id",'
        ' "day"), ()).'
    )


def _table(mapper: Mapper[Any]) -> sa.Table:
    table = mapper.local_table
    if isinstance(table, sa.Table):
        return table
    raise ConfigurationError(
        f"{mapper.class_.__name__} has {OPTION} and is mapped to {type(table).__name__}: map the"
        " class to one table."
    )


def _column(mapper: Mapper[Any], name: str, what: str) -> sa.Column[Any]:
    column = mapper.columns.get(name)  # column_attrs would configure all mappers, too early
    if isinstance(column, sa.Column) and column.table is mapper.local_table:
        if column is not facts(mapper).version:
            _refuse_made(column, what)
            return column
        raise ConfigurationError(f"{what} the version itself: remove it.")
    there = (n for n, c in mapper.columns.items() if c is not facts(mapper).version)
    raise ConfigurationError(f"{what} not a column attribute. It has: {', '.join(sorted(there))}.")


def _refuse_made(column: sa.Column[Any], what: str) -> None:
    """Refuse a column that an UPDATE changes though it does not name it."""
    if column.onupdate is None and column.server_onupdate is None and column.computed is None:
        return
    raise ConfigurationError(
        f"{what} made by the database or by onupdate=, so a row could change its scope without a"
        " move of its version. Name a column that only the program sets."
    )


def _rule(mapper: Mapper[Any], cls: type[Any], names: tuple[str, ...]) -> ScopeRule:
    columns, texts = [], []
    for name in names:
        what = f"{cls.__name__}.{OPTION} names {name!r}, which is"
        column = _column(mapper, name, what)
        texts.append(_text_of(column, what))
        columns.append(column)
    rule = ScopeRule(_table(mapper).fullname, names, tuple(columns), tuple(texts))
    if len(rule.prefix) > _LONGEST_NAME:
        raise ConfigurationError(
            f"{cls.__name__}.{OPTION}: the names of the table and of the columns {names!r} have"
            f" more than {_LONGEST_NAME} characters together, too many for the key of a scope."
        )
    return rule


# -- the text of a value ---------------------------------------------------------------------------


def _text_of(column: sa.Column[Any], what: str) -> Text:
    """Return what makes the text of a value of the column.

    Raises:
        ConfigurationError: two equal values may have different texts; ``what`` begins the message.
    """
    kind = column.type
    if isinstance(kind, sa.types.TypeDecorator):
        why = "of a type of the application's own"
    elif isinstance(kind, sa.Enum):
        bind = kind.bind_processor(DefaultDialect())  # type: ignore[no-untyped-call]
        return lambda value: _of_enum(bind, value)
    elif isinstance(kind, sa.Boolean):
        return lambda value: {True: "1", False: "0"}[value] if isinstance(value, bool) else None
    elif isinstance(kind, sa.Integer):
        return _of_integer
    elif isinstance(kind, sa.Uuid):
        return _of_uuid
    elif isinstance(kind, sa.Date):
        return lambda value: value.isoformat() if type(value) is datetime.date else None
    elif isinstance(kind, sa.String):
        why = inexact_collation(kind)
        if not why:
            return lambda value: value if type(value) is str else None
    else:
        why = f"of type {kind!r}"
    raise ConfigurationError(
        f"{what} {why}: two equal values may have different texts there, and a change of the one"
        " would leave the version of the other. Scopes take integers, booleans, dates, UUIDs, enums"
        " and texts that are compared exactly."
    )


def inexact_collation(kind: sa.String) -> str:
    """Return why the collation takes different texts for equal; an empty text if it does not."""
    if type(kind).__name__.upper() == "CITEXT":
        return "of a type that ignores case"
    name = (kind.collation or "").lower()
    if name.endswith("_ci") or "_ci_" in name or name in ("nocase", "rtrim"):
        return f"compared by the collation {kind.collation}, which takes different texts for equal"
    return ""


def _of_integer(value: Any) -> str | None:
    return str(int(value)) if isinstance(value, int) and not isinstance(value, bool) else None


def _of_uuid(value: Any) -> str | None:
    if isinstance(value, uuid.UUID):
        return value.hex
    try:
        return uuid.UUID(value).hex if isinstance(value, str) else None
    except ValueError:
        return None


def _of_enum(bind: Any, value: Any) -> str | None:
    if not isinstance(value, (str, enum.Enum)):
        return None
    try:
        text = value if bind is None else bind(value)
    except (LookupError, ValueError):
        return None
    return text if isinstance(text, str) else None
