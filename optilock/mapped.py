"""What is known of a mapper, in one record that is made once; and keys of rows.

::

    facts(mapper).token               # "version", the attribute; "" where rows have none
    facts(mapper).names[column]       # the attribute of a column
    facts(mapper).ignored             # columns that neither move the version nor conflict
    facts(mapper).commuting           # columns that a write adds to, whatever the version is

Each fact is worked out when it is first asked for: some are not known before the whole hierarchy of
a class is. The record is kept in the mapper and goes with it, and a mapping that is changed later
(``add_property()``, a new subclass) begins another one.

Which row is meant is said by the values of the mapper's primary key, in its order
(:data:`Identity`); a :data:`Place` is the hierarchy's root mapper with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Alias,
    ClauseElement,
    Column,
    ColumnElement,
    FromClause,
    Join,
    Select,
    Table,
    bindparam,
    select,
)
from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.exc import UnmappedColumnError

from optilock.errors import ConfigurationError
from optilock.serialize import NAN, named_nan
from optilock.tokens import CompareValues, Token
from optilock.undocumented.mappers import (
    keep_with_mapping,
    mapped_by,
    names_in_composite,
    registries,
)
from optilock.undocumented.statements import named_as_by_get

#: An execution option of queries that a class keeps: their columns are the same each time.
DESCRIBED_ONCE = "optilock_described_once"
#: What to do about a class whose rows have no version; it may be of the mixin, and compare values.
GIVE_ONE = "give the class one (optilock.Versioned, with a token that has a column: Counter())"

_KEY = "_optilock_facts"
#: In the ``info`` of a column that stands beside the values of a row (:mod:`optilock.leases`).
BESIDE = "optilock_beside"


def facts(mapper: Mapper[Any]) -> Facts:
    """What is known of ``mapper``."""
    known: Facts | None = mapper.__dict__.get(_KEY)
    return keep_with_mapping(mapper, _KEY, Facts(mapper)) if known is None else known


def all_mappers() -> Iterator[Mapper[Any]]:
    """Every class that is mapped, also by others; for what is asked seldom."""
    for registry in registries():
        yield from mapped_by(registry)


def opts_out(cls: type[Any]) -> bool:
    """Does the class say that its rows have no version (``__version_token__ = None``)?"""
    return getattr(cls, "__version_token__", ()) is None


def tokens_of(cls: type[Any]) -> tuple[Token | None, CompareValues | None]:
    """The token with a column, and the one that compares values; both may be missing."""
    given = getattr(cls, "__version_token__", ())
    tokens = given if isinstance(given, tuple) else (given,)
    moving = (token for token in tokens if isinstance(token, Token))
    compared = (token for token in tokens if isinstance(token, CompareValues))
    return next(moving, None), next(compared, None)


def same(column: Column[Any], a: Any, b: Any) -> bool:
    """Are two values of a column the same value? NaN, which equals nothing, is itself here.

    Values that cannot be compared are two: a conflict is told, and not the comparison's error.
    """
    try:
        if column.type.compare_values(a, b) is True:
            return True
        if a is None or b is None or type(a) in _WITHOUT_NAN:
            return False
        plain = named_nan(a)
        if plain is a or plain is NAN:
            return plain is NAN and named_nan(b) is NAN
        return column.type.compare_values(plain, named_nan(b)) is True
    except Exception:
        return False


def joined(groups: Iterable[Iterable[str]]) -> tuple[frozenset[str], ...]:
    """The groups of names, where those that overlap are one; a single name is no group."""
    found: list[frozenset[str]] = []
    for group in map(frozenset, groups):
        overlapping = [other for other in found if not other.isdisjoint(group)]
        found = [other for other in found if other.isdisjoint(group)]
        found.append(group.union(*overlapping))
    return tuple(group for group in found if len(group) > 1)


def is_expression(value: Any) -> bool:
    """Is it SQL, which the database makes a value of?"""
    return isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")


def always_there(source: FromClause) -> set[FromClause]:
    """The tables, and aliases, of which each row of ``source`` has a row."""
    if isinstance(source, Join):
        if source.full:
            return set()
        left = always_there(source.left)
        return left if source.isouter else left | always_there(source.right)
    return {source} if isinstance(source, (Table, Alias)) else set()


#: Of values that differ, these contain no NaN.
_WITHOUT_NAN = frozenset((int, str, bytes, bool, datetime, date, UUID))


class _ThereAre:
    """Unusual kinds of classes that the process has mapped: nothing is asked for a kind without."""

    #: Two hierarchies with rows in one table (:mod:`optilock.mapping.tables`).
    shared = False
    #: Values of rows are compared (:mod:`optilock.mapping.compared`).
    compared = False
    #: Originals of mutable values are kept (:mod:`optilock.mapping.originals`).
    kept = False


there_are = _ThereAre()


class _Names(dict[Any, str]):
    """Column -> attribute, for whatever column the mapper knows."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self._mapper = mapper

    def __missing__(self, column: Column[Any]) -> str:
        name = self[column] = self._mapper.get_property_by_column(column).key
        return name


class Facts:
    """The record of one mapper."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self.mapper = mapper
        #: The column of the version; ``None`` where rows have none.
        self.version: Any = mapper.version_id_col
        #: The attribute of each column.
        self.names = _Names(mapper)
        #: What writes of its rows by key have in common (:mod:`optilock.watched.writes.shapes`).
        self.shapes: dict[Any, Any] = {}

    # -- attributes and columns ----------------------------------------------------------------

    @cached_property
    def token(self) -> str:
        """The attribute of the version; empty, as no attribute is, where rows have none."""
        return "" if self.version is None else self.names[self.version]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The attributes of the primary key, in its order."""
        return tuple(self.names[column] for column in self.mapper.primary_key)

    @cached_property
    def columns(self) -> Mapping[str, Column[Any]]:
        """Attribute -> column of the mapper's own tables (the nearest, where they are joined)."""
        mapper = self.mapper
        if self.maps_a_select:
            behind = {a.key: self._behind(a.columns[0]) for a in mapper.column_attrs}
            return {name: column for name, column in behind.items() if column is not None}
        return {
            attribute.key: column
            for attribute in mapper.column_attrs
            if isinstance(column := attribute.columns[0], Column) and column.table in mapper.tables
            # Of two attributes of a column, the one that is written.
            if self.named([column]) == {attribute.key}
        }

    def named(self, columns: Iterable[Any]) -> set[str]:
        """The attributes of those of the columns that the class maps."""
        found = set()
        for column in columns:
            with suppress(UnmappedColumnError):
                found.add(self.names[column])
        return found

    @cached_property
    def editable(self) -> frozenset[str]:
        """The attributes of columns: without the key, the version, and what says the class.

        And without what the database computes.
        """
        mapper = self.mapper
        others = {*mapper.primary_key, self.version, mapper.polymorphic_on}
        return frozenset(
            attribute.key
            for attribute in mapper.column_attrs
            if isinstance(column := attribute.columns[0], Column)
            and column.computed is None
            and others.isdisjoint(attribute.columns)
        )

    @property
    def ignored(self) -> frozenset[Column[Any]]:
        """Columns of the whole hierarchy that neither move the version nor conflict."""
        return facts(self.mapper.base_mapper).ignored_of_all

    @cached_property
    def ignored_of_all(self) -> frozenset[Column[Any]]:
        """The same, kept at the root of the hierarchy."""
        return frozenset({*self._named_in("__version_ignore__"), *self._beside()})

    @property
    def commuting(self) -> frozenset[Column[Any]]:
        """Columns of the whole hierarchy to which a write adds, whatever the version is."""
        return facts(self.mapper.base_mapper).commuting_of_all

    @cached_property
    def commuting_of_all(self) -> frozenset[Column[Any]]:
        """The same, kept at the root of the hierarchy."""
        return frozenset(self._named_in("__version_commutes__"))

    def _named_in(self, option: str) -> Iterator[Column[Any]]:
        """The columns of the attributes that an option of the hierarchy's classes names."""
        for member in self.mapper.self_and_descendants:
            for name in getattr(member.class_, option, ()):
                if name in member.column_attrs:
                    columns = member.column_attrs[name].columns
                    yield from (column for column in columns if isinstance(column, Column))

    def _beside(self) -> Iterator[Column[Any]]:
        """Columns of optilock's own, which no class has as attributes."""
        for table in self.mapper.tables:
            for column in table.columns:
                if isinstance(column, Column) and BESIDE in column.info:
                    yield column

    @cached_property
    def together(self) -> tuple[frozenset[str], ...]:
        """Groups of column attributes that conflict as one
        (:mod:`optilock.resolvers.column_groups`).

        What the classes of its line have declared, and the columns of each composite.
        """
        line = (vars(cls) for cls in self.mapper.class_.__mro__)
        declared = (group for names in line for group in names.get("__merge_together__", ()))
        composites = ((composite.key,) for composite in self.mapper.composites)
        groups = (
            (n for name in group for n in self.behind(name)) for group in (*declared, *composites)
        )
        ignored = self.ignored
        merged = {
            n for n in self.editable.intersection(self.columns) if self.columns[n] not in ignored
        }
        return joined(merged.intersection(group) for group in groups)

    def behind(self, name: str) -> list[str]:
        """The attributes of the columns that a name stands for; none where the class has none."""
        mapper = self.mapper
        if name in mapper.synonyms:
            return self.behind(mapper.synonyms[name].name)
        names = names_in_composite(mapper, name) if name in mapper.composites else [name]
        return [one for one in names if one in self.columns]

    def same(self, name: str, a: Any, b: Any) -> bool:
        """Are two values of an attribute the same value?"""
        return same(self.columns[name], a, b)

    # -- where the rows are --------------------------------------------------------------------

    @cached_property
    def root(self) -> Mapper[Any]:
        """The mapper that stands for all classes a row of this one may be read as.

        That is the root of its hierarchy. Classes of concrete tables have rows of their own there,
        and a row of one has nothing to do with that of another which has the same key.
        """
        mapper = self.mapper
        lines: Iterable[Mapper[Any]] = mapper.iterate_to_root() if mapper.inherits else ()
        return next((one for one in lines if one.concrete), mapper.base_mapper)

    @cached_property
    def is_alone(self) -> bool:
        """Is the class a hierarchy of its own?"""
        return len(list(self.mapper.base_mapper.self_and_descendants)) == 1

    @cached_property
    def maps_a_select(self) -> bool:
        """Is the class mapped to a SELECT, or an alias, and its rows are stored elsewhere?"""
        return not isinstance(self.mapper.persist_selectable, (Table, Join))

    def _behind(self, column: Any) -> Column[Any] | None:
        """The column that a column of the SELECT shows, in the table that has the version."""
        version = self.version
        for base in column.base_columns:
            if isinstance(base, Column) and version is not None and base.table is version.table:
                return base
        return None

    @cached_property
    def table(self) -> Table:
        """The table whose row stands for the whole: the version's, or the base.

        Raises:
            ConfigurationError: ``version_id_col`` is the column of a SELECT, which SQLAlchemy
                neither compares nor moves when it writes the table behind it.
        """
        table = self.table_if_any
        if table is None:
            name = self.version.key
            raise ConfigurationError(
                f"{self.mapper.class_.__name__} is mapped to a SELECT, and its version_id_col is"
                f" {name!r} of the SELECT: SQLAlchemy checks no version when it writes the table"
                f" behind it. Name the column of the table, version_id_col=table.c.{name}. Nothing"
                " was written."
            )
        return table

    @cached_property
    def table_if_any(self) -> Table | None:
        """That table; ``None`` where the class is mapped to a SELECT that hides it."""
        mapper = self.mapper
        table = (
            mapper.base_mapper.local_table
            if self.version is None
            else getattr(self.version, "table", None)
        )
        return table if isinstance(table, Table) else None

    @cached_property
    def name(self) -> str:
        """The name of that table, for the process alone; of the class where there is none."""
        table = self.table_if_any
        return self.mapper.class_.__name__ if table is None else table.key

    @cached_property
    def locked_in(self) -> Table | None:
        """That table, where a query for the class may name it in its FOR UPDATE."""
        table = self.table_if_any
        there = always_there(self.mapper.selectable)
        return table if table in there else None

    @cached_property
    def rows(self) -> tuple[list[Any], FromClause]:
        """The columns of the primary key, and where the stored rows are."""
        keys = list(self.mapper.primary_key)
        if not self.maps_a_select:
            return keys, self.mapper.persist_selectable
        return [self._behind(key) for key in keys], self.version.table

    @cached_property
    def select_one(self) -> Select[Any]:
        """The object of a row, for :attr:`key_parameters`; in SQL it is what ``get()`` sends."""
        keys = zip(self.key_parameters, self.mapper.primary_key, strict=True)
        query = select(self.mapper).where(*(key == bindparam(name) for name, key in keys))
        return named_as_by_get(query).execution_options(**{DESCRIBED_ONCE: True})

    @cached_property
    def key_parameters(self) -> tuple[str, ...]:
        """The names that SQLAlchemy's own ``get()`` has for the parts of the key."""
        return tuple(f"pk_{number}" for number, _ in enumerate(self.mapper.primary_key, 1))

    @cached_property
    def lock_one(self) -> Select[Any]:
        """The same, with the row locked; only where there is a :attr:`locked_in`."""
        return self.select_one.with_for_update(of=self.locked_in, key_share=True)

    @cached_property
    def is_read_simply(self) -> bool:
        """Are :attr:`select_one` and :attr:`lock_one` the queries for a row by its key?"""
        return self.locked_in is not None

    # -- its tokens ----------------------------------------------------------------------------

    @cached_property
    def kind(self) -> Token | None:
        """The token of the mixin with a column."""
        return tokens_of(self.mapper.class_)[0]

    @cached_property
    def rule(self) -> CompareValues | None:
        """Which values are compared."""
        return tokens_of(self.mapper.class_)[1]

    @property
    def compares(self) -> bool:
        """Are values of the rows compared?"""
        return self.rule is not None

    @cached_property
    def guarded(self) -> bool:
        """Do the rows have a token of any kind?"""
        return self.version is not None or self.rule is not None

    @cached_property
    def forgotten(self) -> bool:
        """Have the rows no token, and has nobody said that they need none?"""
        return not self.guarded and not opts_out(self.mapper.class_)

    @cached_property
    def comparable(self) -> frozenset[str]:
        """The attributes that the rule compares, of a row whose every column is changed."""
        if self.rule is None or self.rule.names:
            return frozenset(self.rule.names if self.rule else ())
        left_out = {*self.mapper.primary_key, self.version, *self.ignored}
        attributes = self.mapper.column_attrs
        return frozenset(n for n in self.columns if left_out.isdisjoint(attributes[n].columns))

    # -- who makes the next version ------------------------------------------------------------

    def next(self, version: Any) -> Any:
        """The version after this one, of a class whose versions Python makes."""
        make: Any = self.mapper.version_id_generator
        return make(version)

    @cached_property
    def by_database(self) -> bool:
        """Is the version known only after the write?"""
        return self.mapper.version_id_generator is False and self.is_read_back

    @cached_property
    def by_itself(self) -> bool:
        """Does the database move the version at every write, whatever the statement says?"""
        return self.by_database and self.version.onupdate is None

    @cached_property
    def by_application(self) -> bool:
        """Does the version move only when somebody assigns it?"""
        generated = self.mapper.version_id_generator is not False or self.is_read_back
        return self.version is not None and not generated and not self.by_values

    @property
    def is_read_back(self) -> bool:
        """Does SQLAlchemy ask for a written version with RETURNING? This is its own rule."""
        column = self.version
        if not isinstance(column, Column):
            return column is not None
        default = column.default
        return column.server_default is not None or (
            default is not None and not default.is_scalar and not default.is_callable
        )

    @cached_property
    def by_values(self) -> bool:
        """Is the version made from the values of the row?"""
        return self.kind is not None and self.kind.made_by == "values"

    @cached_property
    def made_of(self) -> frozenset[Column[Any]]:
        """The columns whose values the version is made from."""
        read = self.kind.reads if self.kind is not None and self.by_values else ()
        return frozenset(self.columns[name] for name in read if name in self.columns)

    def made_from(self, values: Mapping[str, Any]) -> Any:
        """The version of a row with these values.

        Raises:
            ConfigurationError: one of them is a SQL expression.
        """
        assert self.kind is not None
        read = {name: values.get(name) for name in self.kind.reads if name in self.mapper.columns}
        for name, value in read.items():
            if is_expression(value):
                raise ConfigurationError(
                    f"{self.mapper.class_.__name__}.{name} was set to a SQL expression, and the"
                    f" version is made from its value ({type(self.kind).__name__}): set a value."
                )
        return self.kind.make(read)

    def again(self, version: Any) -> Any:
        """The version of a row that is inserted again after ``version``; ``None``: any other's."""
        return None if self.kind is None else self.kind.again(version)

    @cached_property
    def touch(self) -> Mapping[Column[Any], ColumnElement[Any]]:
        """What an UPDATE sets so that the version moves though nothing else changes.

        Empty where Python makes the version, or the application does.
        """
        if self.kind is not None:
            return self.kind.touch(self.version)
        return {self.version: self.version} if self.by_database else {}


#: What SQLAlchemy knows of an object.
State = InstanceState[Any]
Identity = tuple[Any, ...]
#: A row, whatever class of the hierarchy it was read as.
Place = tuple[Mapper[Any], Identity]


def identity_of(state: State) -> Identity:
    """The primary key of a stored object."""
    assert state.key is not None
    return tuple(state.key[1])


def place_of(state: State) -> Place:
    """The row of a stored object."""
    return facts(state.mapper).root, identity_of(state)
