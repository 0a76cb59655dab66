"""Which conditions of an UPDATE or DELETE pin the version of the rows that it writes."""

from __future__ import annotations

import pytest
from sqlalchemy import (
    Column,
    Integer,
    String,
    Table,
    and_,
    cast,
    collate,
    column,
    delete,
    exists,
    false,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    text,
    true,
    tuple_,
    type_coerce,
    update,
    values,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column

from optilock import Versioned
from optilock._watched.statements.unguarded import compares_version


class Base(DeclarativeBase):
    pass


class Vault(Versioned, Base):
    __tablename__ = "vaults"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    size: Mapped[int]


OTHER = aliased(Vault)
ROWS = Vault.__table__
SEEN = Table("seen", Base.metadata, Column("id", Integer), Column("version", Integer))
GIVEN = values(column("id", Integer), column("version", Integer), name="given").data([(1, 3)])
NEWEST = select(Vault.id, Vault.version).cte()

COMPARED = [
    Vault.version == 3,
    literal(3) == Vault.version,
    Vault.version.in_([3, 4]),
    Vault.version.is_(None),
    Vault.version.is_not_distinct_from(3),
    and_(Vault.id == 1, and_(Vault.version == 3, Vault.name > "a")),
    or_(and_(Vault.id == 1, Vault.version == 3), and_(Vault.id == 2, Vault.version == 4)),
    tuple_(Vault.id, Vault.version).in_([(1, 3)]),
    tuple_(Vault.id, Vault.version) == tuple_(1, 3),
    type_coerce(Vault.version, Integer) == 3,
    cast(Vault.version, String) == "3",
    Vault.version == func.coalesce(None, 3),
    Vault.version == literal_column("3"),
    and_(Vault.id == SEEN.c.id, Vault.version == SEEN.c.version),
    and_(Vault.id == GIVEN.c.id, Vault.version == GIVEN.c.version),
    ROWS.c.version == 3,
    false(),
    and_(Vault.id == 1, false()),
    Vault.version.in_([]),
]
NOT_COMPARED = [
    true(),
    Vault.id == 1,
    or_(Vault.id == 1, Vault.version == 3),
    or_(Vault.version == 3, true()),
    not_(Vault.version == 3),
    not_(and_(Vault.version == 3, Vault.id == 1)),
    Vault.version != 3,
    Vault.version > 0,
    Vault.version >= 3,
    Vault.version.between(1, 9),
    Vault.version.not_in([4]),
    Vault.version.is_not(None),
    Vault.version.is_distinct_from(None),
    Vault.version == Vault.version,
    Vault.version == Vault.size,
    Vault.version == Vault.size + 0,
    Vault.version == literal_column("version"),
    Vault.version == column("version"),
    Vault.version == OTHER.version,
    Vault.version == NEWEST.c.version,
    Vault.version == select(func.max(OTHER.version)).scalar_subquery(),
    Vault.version.in_(select(OTHER.version)),
    Vault.version % 2 == 1,
    func.coalesce(Vault.version, 0) == 3,
    OTHER.version == 3,
    Vault.id.in_(select(OTHER.id).where(OTHER.version == 3)),
    exists().where(OTHER.version == 3),
    tuple_(Vault.id, Vault.version).in_(select(OTHER.id, OTHER.version)),
    text("version = 3"),
]


@pytest.mark.parametrize("where", COMPARED, ids=str)
def test_a_statement_that_demands_a_version_of_each_row_compares_it(where):
    for statement in update(Vault).values(name="x"), update(ROWS).values(name="x"), delete(Vault):
        assert compares_version(statement.where(where), ROWS, ROWS.c.version)


@pytest.mark.parametrize("where", NOT_COMPARED, ids=str)
def test_one_that_writes_rows_in_other_versions_does_not(where):
    for statement in update(Vault).values(name="x"), update(ROWS).values(name="x"), delete(Vault):
        assert not compares_version(statement.where(where), ROWS, ROWS.c.version)


def test_a_collation_around_the_version_changes_nothing():
    written = update(ROWS).where(collate(ROWS.c.name, "x") == "3").values(size=1)
    assert compares_version(written, ROWS, ROWS.c.name)


def test_an_alias_that_is_written_is_compared_by_its_own_column():
    alias = ROWS.alias()
    written = update(alias).values(name="x")
    assert compares_version(written.where(alias.c.version == 3), alias, ROWS.c.version)
    assert not compares_version(written.where(ROWS.c.version == 3), alias, ROWS.c.version)
