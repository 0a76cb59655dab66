"""Facts about a mapper, in one record that is made once; and keys of rows.

::

    facts(mapper).token         # "version", the attribute; "" where rows have none
    facts(mapper).names[column] # the attribute of a column
    facts(mapper).ignored       # columns that neither move the version nor conflict

Each fact is computed at its first use: some depend on the whole hierarchy of a class. A mapping
that is changed later (``add_property()``, a new subclass) gets another record.

An :data:`Identity` is the values of the mapper's primary key, in its order; a :data:`Place` is the
hierarchy's root mapper and an identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.exc import UnmappedColumnError

from optilock._undocumented.mappers import (
    keep_with_mapping,
    mappers_in,
    names_in_composite,
    registries,
)
from optilock._undocumented.statements import label_as_get
from optilock.errors import ConfigurationError
from optilock.serialize import is_same_value
from optilock.tokens import CompareValues, Token

#: An execution option of queries that a class keeps: they always have the same columns.
DESCRIBED_ONCE = "optilock_described_once"
#: Advice for a class whose rows have no version; it may have the mixin and compare values.
HINT_ADD_TOKEN = (
    "give the class one (optilock.Versioned, with a token that has a column: Counter())"
)

_KEY = "_optilock_facts"
#: In the ``info`` of a column that is no value of its row (:mod:`optilock.leases`).
NOT_A_VALUE = "optilock_beside"


def facts(mapper: Mapper[Any]) -> Facts:
    """Return the facts about ``mapper``."""
    record: Facts | None = mapper.__dict__.get(_KEY)
    return keep_with_mapping(mapper, _KEY, Facts(mapper)) if record is None else record


def all_mappers() -> Iterator[Mapper[Any]]:
    """Yield the mapper of every mapped class of the process. It is slow."""
    for registry in registries():
        yield from mappers_in(registry)


def opts_out(cls: type[Any]) -> bool:
    """Return whether the class has no version on purpose (``__version_token__ = None``)."""
    return getattr(cls, "__version_token__", ()) is None


def tokens_of(cls: type[Any]) -> tuple[Token | None, CompareValues | None]:
    """Return the token with a column and the one that compares values; both may be missing."""
    given = getattr(cls, "__version_token__", ())
    tokens = given if isinstance(given, tuple) else (given,)
    moving = (token for token in tokens if isinstance(token, Token))
    compared = (token for token in tokens if isinstance(token, CompareValues))
    return next(moving, None), next(compared, None)


def joined_groups(groups: Iterable[Iterable[str]]) -> tuple[frozenset[str], ...]:
    """Return the groups of names with overlapping ones joined, without single names."""
    found: list[frozenset[str]] = []
    for group in map(frozenset, groups):
        overlapping = [other for other in found if not other.isdisjoint(group)]
        found = [other for other in found if other.isdisjoint(group)]
        found.append(group.union(*overlapping))
    return tuple(group for group in found if len(group) > 1)


def always_there(source: sa.FromClause) -> set[sa.FromClause]:
    """Return the tables and aliases that have a row in each row of ``source``."""
    if isinstance(source, sa.Join):
        if source.full:
            return set()
        left = always_there(source.left)
        return left if source.isouter else left | always_there(source.right)
    return {source} if isinstance(source, (sa.Table, sa.Alias)) else set()


class _Names(dict[Any, str]):
    """The attribute of each column that the mapper knows."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self._mapper = mapper

    def __missing__(self, column: sa.Column[Any]) -> str:
        name = self[column] = self._mapper.get_property_by_column(column).key
        return name


class Facts:
    """The facts about one mapper."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self.mapper = mapper
        #: The column of the version; ``None`` where rows have none.
        self.version: Any = mapper.version_id_col
        #: The attribute of each column.
        self.names = _Names(mapper)
        #: Shapes of writes by key (:mod:`optilock._watched.writes.shapes`).
        self.shapes: dict[Any, Any] = {}
        self._locking: dict[sa.ColumnElement[bool] | None, sa.Select[Any]] = {}

    # -- attributes and columns ----------------------------------------------------------------

    @cached_property
    def token(self) -> str:
        """The attribute of the version; an empty text where rows have none."""
        return "" if self.version is None else self.names[self.version]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The attributes of the primary key, in order."""
        return tuple(self.names[column] for column in self.mapper.primary_key)

    @cached_property
    def columns(self) -> Mapping[str, sa.Column[Any]]:
        """The column of each attribute, of the mapper's own tables (the nearest of joined ones)."""
        mapper = self.mapper
        if self.maps_a_select:
            behind = {a.key: self._behind(a.columns[0]) for a in mapper.column_attrs}
            return {name: column for name, column in behind.items() if column is not None}
        return {
            attribute.key: column
            for attribute in mapper.column_attrs
            if isinstance(column := attribute.columns[0], sa.Column)
            and column.table in mapper.tables
            # Of two attributes of a column, the one that is written.
            if self.named([column]) == {attribute.key}
        }

    def named(self, columns: Iterable[Any]) -> set[str]:
        """Return the attributes of the columns, without columns that the class does not map."""
        found = set()
        for column in columns:
            with suppress(UnmappedColumnError):
                found.add(self.names[column])
        return found

    @cached_property
    def editable(self) -> frozenset[str]:
        """The attributes of columns without key, version, discriminator and computed columns."""
        mapper = self.mapper
        others = {*mapper.primary_key, self.version, mapper.polymorphic_on}
        return frozenset(
            attribute.key
            for attribute in mapper.column_attrs
            if isinstance(column := attribute.columns[0], sa.Column)
            and column.computed is None
            and others.isdisjoint(attribute.columns)
        )

    @cached_property
    def covered(self) -> frozenset[str]:
        """The attributes whose values the version covers, without those of the key."""
        others = {self.token, *self.keys}
        names = (n for n, column in self.columns.items() if column not in self.ignored)
        return frozenset(names).difference(others)

    @cached_property
    def covered_and_loaded(self) -> frozenset[str]:
        """The same, without those that are deferred by the mapping."""
        attributes = self.mapper.attrs
        return frozenset(n for n in self.covered if not getattr(attributes[n], "deferred", False))

    @property
    def ignored(self) -> frozenset[sa.Column[Any]]:
        """Columns of the whole hierarchy that neither move the version nor conflict."""
        return facts(self.mapper.base_mapper).ignored_of_all

    @cached_property
    def ignored_of_all(self) -> frozenset[sa.Column[Any]]:
        """The same, kept at the root of the hierarchy; with optilock's own unmapped columns."""
        columns = (column for table in self.mapper.tables for column in table.columns)
        own = (c for c in columns if isinstance(c, sa.Column) and NOT_A_VALUE in c.info)
        return frozenset({*self._named_in("__version_ignore__"), *own})

    @property
    def commuting(self) -> frozenset[sa.Column[Any]]:
        """Columns of the whole hierarchy to which a write adds, at any version."""
        return facts(self.mapper.base_mapper).commuting_of_all

    @cached_property
    def commuting_of_all(self) -> frozenset[sa.Column[Any]]:
        """The same, kept at the root of the hierarchy."""
        return frozenset(self._named_in("__version_commutes__"))

    @cached_property
    def of_each_write(self) -> frozenset[str]:
        """The attributes that each write sets: of ``onupdate``, and of the last change."""
        return self.last_change.union(
            name
            for name, column in self.columns.items()
            if column.onupdate is not None or column.server_onupdate is not None
        )

    @cached_property
    def repeats(self) -> frozenset[str]:
        """The attributes of ``__version_repeats__``, of the class and those above it."""
        line = (vars(cls) for cls in self.mapper.class_.__mro__)
        return frozenset(
            behind
            for names in line
            for name in names.get("__version_repeats__", ())
            for behind in self.behind(name)
        )

    @cached_property
    def last_change(self) -> frozenset[Any]:
        """The attributes of the author and the time of the last change: each write sets them."""
        options = ("__version_author__", "__version_time__")
        return frozenset({getattr(self.mapper.class_, one, None) for one in options} - {None})

    def _named_in(self, option: str) -> Iterator[sa.Column[Any]]:
        """Yield the columns whose attributes an option of the hierarchy's classes names."""
        for member in self.mapper.self_and_descendants:
            for name in getattr(member.class_, option, ()):
                if name in member.column_attrs:
                    columns = member.column_attrs[name].columns
                    yield from (column for column in columns if isinstance(column, sa.Column))

    @cached_property
    def together(self) -> tuple[frozenset[str], ...]:
        """Groups of column attributes that conflict as one (:mod:`optilock.resolvers`).

        They are declared by the class and those above it, or are the columns of a composite.
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
        return joined_groups(merged.intersection(group) for group in groups)

    def behind(self, name: str) -> list[str]:
        """Return the attributes of the columns that a name stands for, if there are any."""
        mapper = self.mapper
        if name in mapper.synonyms:
            return self.behind(mapper.synonyms[name].name)
        names = names_in_composite(mapper, name) if name in mapper.composites else [name]
        return [one for one in names if one in self.columns]

    @cached_property
    def same(self) -> Callable[[str, Any, Any], bool]:
        """The function that returns whether two values of an attribute are the same value."""
        return partial(is_same_value, self.columns)

    @cached_property
    def tables(self) -> tuple[sa.Table, ...]:
        """The tables of the rows, the base first."""
        if self.maps_a_select:
            return (self.table,)
        mapper = self.mapper
        line = [mapper] if mapper.concrete else [*mapper.iterate_to_root()]
        tables = (one.local_table for one in reversed(line))
        return tuple(dict.fromkeys(one for one in tables if isinstance(one, sa.Table)))

    @cached_property
    def columns_in(self) -> Mapping[sa.Table, Mapping[str, sa.Column[Any]]]:
        """The attributes of each of these tables, with their columns there."""
        mapped: set[Any] = {*self.columns.values()}
        if not self.maps_a_select:
            mapped = {c for attribute in self.mapper.column_attrs for c in attribute.columns}
        return {
            table: {self.names[column]: column for column in table.columns if column in mapped}
            for table in self.tables
        }

    # -- where the rows are --------------------------------------------------------------------

    @cached_property
    def root(self) -> Mapper[Any]:
        """The root of the hierarchy: it stands for all classes that a row may be read as.

        A class with a concrete table has rows of its own, so it is a root as well.
        """
        mapper = self.mapper
        line: Iterable[Mapper[Any]] = mapper.iterate_to_root() if mapper.inherits else ()
        return next((one for one in line if one.concrete), mapper.base_mapper)

    @cached_property
    def is_alone(self) -> bool:
        """Whether the class is a hierarchy of its own."""
        return len(list(self.mapper.base_mapper.self_and_descendants)) == 1

    @cached_property
    def maps_a_select(self) -> bool:
        """Whether the class is mapped to a SELECT or an alias, so its rows are stored elsewhere."""
        return not isinstance(self.mapper.persist_selectable, (sa.Table, sa.Join))

    def _behind(self, column: Any) -> sa.Column[Any] | None:
        """Return the column behind one of the SELECT, in the table that has the version."""
        version = self.version
        for base in column.base_columns:
            if isinstance(base, sa.Column) and version is not None and base.table is version.table:
                return base
        return None

    @cached_property
    def table(self) -> sa.Table:
        """The table whose row stands for the object: the version's, or the base table.

        Raises:
            ConfigurationError: ``version_id_col`` is the column of a SELECT, which SQLAlchemy
                neither compares nor moves when it writes the table behind it.
        """
        if self.table_if_any is not None:
            return self.table_if_any
        name = self.version.key
        raise ConfigurationError(
            f"{self.mapper.class_.__name__} is mapped to a SELECT, and its version_id_col is"
            f" {name!r} of the SELECT: SQLAlchemy checks no version when it writes the table behind"
            f" it. Name the column of the table, version_id_col=table.c.{name}. Nothing was"
            " written."
        )

    @cached_property
    def table_if_any(self) -> sa.Table | None:
        """The same table; ``None`` if the class is mapped to a SELECT that hides it."""
        table: Any = getattr(self.version, "table", None)
        table = self.mapper.base_mapper.local_table if self.version is None else table
        return table if isinstance(table, sa.Table) else None

    @cached_property
    def name(self) -> str:
        """The name of that table within this process; the class's name where there is none."""
        table = self.table_if_any
        return self.mapper.class_.__name__ if table is None else table.key

    @cached_property
    def locked_in(self) -> sa.Table | None:
        """The same table, if a query for the class may name it in its FOR UPDATE."""
        table = self.table_if_any
        return table if table in always_there(self.mapper.selectable) else None

    @cached_property
    def rows(self) -> tuple[list[Any], sa.FromClause]:
        """The columns of the primary key, and the FROM clause of the stored rows."""
        keys = list(self.mapper.primary_key)
        if not self.maps_a_select:
            return keys, self.mapper.persist_selectable
        return [self._behind(key) for key in keys], self.version.table

    @cached_property
    def select_one(self) -> sa.Select[Any]:
        """The query for an object by :attr:`key_parameters`, with the SQL of ``get()``."""
        keys = zip(self.key_parameters, self.mapper.primary_key, strict=True)
        query = sa.select(self.mapper).where(*(key == sa.bindparam(name) for name, key in keys))
        return label_as_get(query).execution_options(**{DESCRIBED_ONCE: True})

    @cached_property
    def key_parameters(self) -> tuple[str, ...]:
        """The names of the key's parts in SQLAlchemy's own ``get()``."""
        return tuple(f"pk_{number}" for number, _ in enumerate(self.mapper.primary_key, 1))

    def lock_one(self, bound: sa.ColumnElement[bool] | None) -> sa.Select[Any]:
        """The same, with the row locked; only where there is a :attr:`locked_in`.

        ``bound`` limits the wait for the lock, and is true of each row.
        """
        found = self._locking.get(bound)
        if found is None:
            found = self.select_one.with_for_update(of=self.locked_in, key_share=True)
            found = self._locking[bound] = found if bound is None else found.where(bound)
        return found

    # -- its tokens ----------------------------------------------------------------------------

    @cached_property
    def kind(self) -> Token | None:
        """The mixin's token with a column."""
        return tokens_of(self.mapper.class_)[0]

    @cached_property
    def rule(self) -> CompareValues | None:
        """The rule for compared values."""
        return tokens_of(self.mapper.class_)[1]

    @cached_property
    def compares(self) -> bool:
        """Whether values of the rows are compared."""
        return self.rule is not None

    @cached_property
    def guarded(self) -> bool:
        """Whether the rows have a token of any kind."""
        return self.version is not None or self.rule is not None

    @cached_property
    def forgotten(self) -> bool:
        """Whether the rows have no token, and the class does not opt out."""
        return not self.guarded and not opts_out(self.mapper.class_)

    @cached_property
    def comparable(self) -> frozenset[str]:
        """The attributes that the rule compares if every column is changed."""
        if self.rule is None or self.rule.names:
            return frozenset(self.rule.names if self.rule else ())
        left_out = {*self.mapper.primary_key, self.version, *self.ignored}
        attributes = self.mapper.column_attrs
        return frozenset(n for n in self.columns if left_out.isdisjoint(attributes[n].columns))

    # -- how the next version is made ----------------------------------------------------------

    def next(self, version: Any) -> Any:
        """Return the version after this one, for a class whose versions Python makes."""
        return self.mapper.version_id_generator(version)  # type: ignore[operator, misc]

    @cached_property
    def by_database(self) -> bool:
        """Whether the version is known only after the write."""
        return self.mapper.version_id_generator is False and self.is_read_back

    @cached_property
    def by_itself(self) -> bool:
        """Whether the database moves the version at every write, by itself."""
        return self.by_database and self.version.onupdate is None

    @cached_property
    def by_application(self) -> bool:
        """Whether the version moves only when the application assigns it."""
        generated = self.mapper.version_id_generator is not False or self.is_read_back
        return self.version is not None and not generated and not self.by_values

    @property
    def is_read_back(self) -> bool:
        """Whether SQLAlchemy reads a written version back with RETURNING. This is its own rule."""
        column = self.version
        if not isinstance(column, sa.Column):
            return column is not None
        default = column.default
        return column.server_default is not None or (
            default is not None and not default.is_scalar and not default.is_callable
        )

    @cached_property
    def by_values(self) -> bool:
        """Whether the version is made from the values of the row."""
        return self.kind is not None and self.kind.made_by == "values"

    @cached_property
    def made_of(self) -> frozenset[sa.Column[Any]]:
        """The columns that the version is made from."""
        read = self.kind.reads if self.kind is not None and self.by_values else ()
        return frozenset(self.columns[name] for name in read if name in self.columns)

    def again(self, version: Any) -> Any:
        """Return the version of a row inserted again after ``version``; ``None``: a first one."""
        return None if self.kind is None else self.kind.again(version)

    @cached_property
    def touch(self) -> Mapping[sa.Column[Any], sa.ColumnElement[Any]]:
        """The columns that an UPDATE sets to move only the version, if the database makes it."""
        if self.kind is not None:
            return self.kind.touch(self.version)
        return {self.version: self.version} if self.by_database else {}


#: SQLAlchemy's record of an object.
State = InstanceState[Any]
Identity = tuple[Any, ...]
#: A row, independent of the class of the hierarchy that it was read as.
Place = tuple[Mapper[Any], Identity]


def identity_of(state: State) -> Identity:
    """Return the primary key of a stored object."""
    assert state.key is not None
    return tuple(state.key[1])


def place_of(state: State) -> Place:
    """Return the row of a stored object."""
    return facts(state.mapper).root, identity_of(state)
