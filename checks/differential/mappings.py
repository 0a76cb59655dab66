"""Mappings by chance, each of them twice: for plain sessions, and for watched ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from random import Random
from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    FetchedValue,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    func,
    inspect,
)
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    column_property,
    composite,
    deferred,
    foreign,
    registry,
    relationship,
    synonym,
    validates,
)

from optilock import Versioned
from optilock.tokens import Counter

#: How many different ones there are.
MAPPINGS = 60
ROWS = (1, 2, 3)


class Stop(BaseException):
    """As Ctrl-C is one."""


class Odd(TypeDecorator[str]):
    """Some of its values cannot be compared, and some cannot be bound."""

    impl = String(30)
    cache_ok = True

    def compare_values(self, x: Any, y: Any) -> bool:
        if x == "incomparable":
            raise ValueError(x)
        if x == "stop":
            raise Stop
        return bool(x == y)

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        if value == "unbindable":
            raise ValueError(value)
        return value


@dataclass
class Point:
    x: int | None
    y: int | None

    def __composite_values__(self) -> tuple[int | None, int | None]:
        return self.x, self.y


@dataclass(frozen=True)
class Traits:
    """What is unusual about a mapping."""

    number: int
    key: str
    version: str
    relation: str
    hierarchy: str
    some: frozenset[str]

    def __str__(self) -> str:
        named = (self.key, self.version, self.relation, self.hierarchy, *sorted(self.some))
        return f"mapping {self.number}: " + ", ".join(named)


#: With these the guard flushes the class by itself, and with the others SQLAlchemy does.
_OURS = (
    *("twice", "hidden_python", "hidden_sql", "hidden_server", "included", "made_python"),
    *("made_sql", "made_server", "synonym", "deferred", "mutable", "validates", "renamed"),
)
_THEIRS = ("composite", "expression", "eager", "single_rows")


def traits_of(number: int) -> Traits:
    """The same for the same number; of two of them, the guard may flush one by itself."""
    rng = Random(f"mapping {number}")
    ours = number % 2 == 0
    few = rng.choice((0, 1, 2, 2, 3, 5))
    return Traits(
        number,
        rng.choice(("id", "id", "id", "pair", "code", "both", "turned")),
        rng.choice(("mixin", "mixin", "native")),
        rng.choice(("none", "none", "by_key", "by_code")),
        "none" if ours else rng.choice(("none", "single", "joined")),
        frozenset(rng.sample(_OURS if ours else (*_OURS, *_THEIRS), few)),
    )


@dataclass
class Mapping:
    """Classes over the tables of one side, and what programs may set."""

    traits: Traits
    metadata: MetaData
    thing: Any
    other: Any
    below: Any
    #: Attributes with values to choose from; ``bad`` ones end in an error somewhere.
    values: list[tuple[str, tuple[Any, ...]]]
    bad: list[tuple[str, tuple[Any, ...]]]

    def key(self, number: int) -> Any:
        """The primary key of a row of ``thing``."""
        if self.traits.key == "id":
            return number
        code = number + 10
        return {"code": code, "pair": (number, code), "both": (code, number)}.get(
            self.traits.key, (code, number)
        )

    def new(self, number: int, cls: Any = None) -> Any:
        return (cls or self.thing)(id=number, code=number + 10, title=f"t{number}", num=number)

    def fill(self, connection: Any) -> None:
        """The rows that each program begins with."""
        tables = self.metadata.sorted_tables
        for table in reversed(tables):
            connection.execute(table.delete())
        kind = {"kind": "thing"} if self.traits.hierarchy != "none" else {}
        rows = [
            {"id": n, "code": n + 10, "title": f"t{n}", "num": n, "version": 1, **kind}
            for n in ROWS
        ]
        connection.execute(self.thing.__table__.insert(), rows)
        others = [{"id": n, "code": n, "note": "n", "version": 1} for n in (1, 2)]
        connection.execute(self.other.__table__.insert(), others)

    def stored(self, connection: Any) -> list[Any]:
        """All rows of all tables."""
        return [
            (table.name, sorted(map(repr, connection.execute(table.select()))))
            for table in self.metadata.sorted_tables
        ]


@functools.cache
def mapping(number: int, side: str) -> Mapping:
    """The classes of one side, which no session of the other side ever sees."""
    traits, mapped = traits_of(number), registry()
    thing = _thing(traits, mapped)
    if "twice" in traits.some:
        inspect(thing).add_property("also", column_property(thing.__table__.c.num))
    other = _class("Other", traits, mapped, _other_table(traits, mapped), {})
    if traits.relation != "none":
        column = other.id if traits.relation == "by_key" else other.code
        target = thing.__table__.c.other_ref
        inspect(thing).add_property(
            "other",
            relationship(other, primaryjoin=foreign(target) == column, passive_updates=False),
        )
    below = _below(traits, mapped, thing)
    mapped.configure()
    values, bad = _values(traits)
    return Mapping(traits, mapped.metadata, thing, other, below, values, bad)


def _class(name: str, traits: Traits, mapped: registry, table: Table, more: dict[str, Any]) -> Any:
    given: dict[str, Any] = {"__table__": table, **more}
    bases: tuple[type[Any], ...] = (Versioned,)
    options = given.setdefault("__mapper_args__", {})
    if traits.version == "mixin":
        given["__version_token__"] = Counter()
    else:
        bases = ()
        options["version_id_col"] = table.c.version

    def __init__(self: Any, **values: Any) -> None:
        for key, value in values.items():
            setattr(self, key, value)

    given["__init__"] = __init__
    return mapped.mapped(type(name, bases, given))


def _other_table(traits: Traits, mapped: registry) -> Table:
    return Table(
        f"df_others_{traits.number}",
        mapped.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("code", Integer, unique=True),
        Column("note", String(30)),
        Column("version", Integer, nullable=False),
    )


def _table(traits: Traits, mapped: registry) -> Table:
    some, json = traits.some, JSON()
    pair = traits.key in ("pair", "turned")
    columns: list[Any] = [
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("code", Integer, unique=True, primary_key=pair, autoincrement=False),
        Column("title", Odd, key="heading" if "renamed" in some else "title"),
        Column("num", Integer, CheckConstraint("num >= 0")),
        Column("body", String(30)),
        Column("data", MutableDict.as_mutable(json) if "mutable" in some else json),
        Column("x", Integer),
        Column("y", Integer),
        Column("other_ref", Integer),
        Column("kind", String(10)),
        Column("version", Integer, nullable=False),
        Column("python_made", String(10), onupdate=lambda: "p")
        if some & {"hidden_python", "made_python"}
        else Column("python_made", String(10)),
        Column("sql_made", Integer, onupdate=func.abs(-8))
        if some & {"hidden_sql", "made_sql"}
        else Column("sql_made", Integer),
        Column("server_made", Integer, server_onupdate=FetchedValue())
        if some & {"hidden_server", "made_server"}
        else Column("server_made", Integer),
    ]
    return Table(f"df_things_{traits.number}", mapped.metadata, *columns)


def _thing(traits: Traits, mapped: registry) -> Any:
    table, some = _table(traits, mapped), traits.some
    title = table.c.heading if "renamed" in some else table.c.title
    more: dict[str, Any] = {"title": title} if "renamed" in some else {}
    options: dict[str, Any] = {}
    hidden = {f"{name}_made" for name in ("python", "sql", "server") if f"hidden_{name}" in some}
    if hidden:
        options["exclude_properties"] = hidden
    if "included" in some and "renamed" not in some:
        options.pop("exclude_properties", None)
        kept = {c.key for c in table.c} - hidden - {"y"}
        options["include_properties"] = kept
    if traits.key in ("code", "both", "turned"):
        c = table.c
        options["primary_key"] = [c.code] if traits.key == "code" else [c.code, c.id]
    if traits.hierarchy != "none":
        options |= {"polymorphic_on": table.c.kind, "polymorphic_identity": "thing"}
    if "eager" in some:
        options["eager_defaults"] = True
    if "single_rows" in some:
        options["batch"] = False
    more |= _attributes(table, some, included="include_properties" in options)
    return _class("Thing", traits, mapped, table, {**more, "__mapper_args__": options})


def _attributes(table: Table, some: frozenset[str], *, included: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "deferred" in some:
        found["body"] = deferred(table.c.body)
    if "synonym" in some:
        found["alias"] = synonym("num")
    if "expression" in some:
        found["double"] = column_property(table.c.num * 2)
    if "composite" in some and not included:
        found["point"] = composite(Point, table.c.x, table.c.y)
    if "validates" in some:

        @validates("num")
        def check(self: Any, key: str, value: Any) -> Any:
            if value == 13:
                raise LookupError(key)
            return value

        found["check"] = check
    return found


def _below(traits: Traits, mapped: registry, thing: Any) -> Any:
    """A class below it, if there is one."""
    if traits.hierarchy == "none":
        return None
    given: dict[str, Any] = {"__mapper_args__": {"polymorphic_identity": "below"}}
    if traits.hierarchy == "joined" and traits.key == "id":
        keys = list(thing.__table__.primary_key)
        joined = [
            Column(c.name, Integer, ForeignKey(c), primary_key=True, autoincrement=False)
            for c in keys
        ]
        name = f"df_belows_{traits.number}"
        given["__table__"] = Table(name, mapped.metadata, *joined, Column("more", Integer))
    return mapped.mapped(type("Below", (thing,), given))


_Values = list[tuple[str, tuple[Any, ...]]]


def _values(traits: Traits) -> tuple[_Values, _Values]:
    """What is unusual is chosen more often."""
    some = traits.some
    values: _Values = [
        ("title", ("a", "b", None, "t1")),
        ("num", (1, 2, 5, None)),
        ("body", ("a", "b", None)),
        ("data", ({"a": 1}, {"a": [1]}, None)),
        ("x", (1, 2, None)),
    ]
    bad: _Values = [
        ("title", ("incomparable", "stop", "unbindable")),
        ("num", (-1, -2)),
        ("num", ("no number", 13)),
    ]
    if traits.key == "id":
        values.append(("code", (21, 22, 23)))
        bad.append(("code", (11, 12)))
    if traits.key == "code":
        values.append(("id", (31, 32)))
    if "synonym" in some:
        values.append(("alias", (7, 8)))
    if "twice" in some:
        values += 2 * [("also", (17, 18)), ("num", (3, 4))]
    if "composite" in some and "included" not in some:
        values.append(("point", (Point(1, 2), Point(3, None), None)))
    if "made_python" in some and "hidden_python" not in some:
        values.append(("python_made", ("mine", None)))
    if "made_sql" in some and "hidden_sql" not in some:
        values.append(("sql_made", (3, None)))
    return values, bad
