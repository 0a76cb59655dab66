"""What an engine's own catalogue says of tables is what SQLAlchemy's inspector says, one by one."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from optilock.dialects import database_of
from optilock.dialects.catalogue import Catalogue
from tests.database.check.faults import CLASSES, create

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

MORE = (
    "CREATE TABLE cc_pairs (a INTEGER NOT NULL, b INTEGER NOT NULL, c INTEGER UNIQUE, d INTEGER,"
    " e VARCHAR(20) DEFAULT 'x', PRIMARY KEY (b, a))",
    "CREATE UNIQUE INDEX cc_d ON cc_pairs (d, e)",
    "CREATE INDEX cc_e ON cc_pairs (e)",
    "CREATE VIEW cc_view AS SELECT a, e FROM cc_pairs",
)
PARTIAL = "CREATE UNIQUE INDEX cc_some ON cc_pairs (a) WHERE d > 3"
OF_AN_EXPRESSION = "CREATE UNIQUE INDEX cc_lower ON cc_pairs (lower(e))"


@pytest.fixture
def catalogues(engine):
    create(engine)
    with engine.begin() as connection:
        for statement in MORE:
            connection.execute(text(statement))
        if engine.dialect.name != "mysql":
            connection.execute(text(PARTIAL))
            connection.execute(text(OF_AN_EXPRESSION))
    with engine.connect() as connection:
        own = database_of(engine.dialect).catalogue(connection, None)
        inspected = type("Inspected", (Catalogue,), {"cased": own.cased})
        yield own, inspected(connection, None)
    with engine.begin() as connection:
        connection.execute(text("DROP VIEW cc_view"))


def said(table):
    columns = {one.name: (one.nullable, one.generated) for one in table.columns.values()}
    # Of a view SQLAlchemy knows no more than the names, on some databases.
    return table.is_view, set(columns) if table.is_view else columns, set(table.keys)


# An index of an expression is left out by both; SQLAlchemy says so.
@pytest.mark.filterwarnings("ignore:Skipp?ed unsupported reflection")
def test_tables_views_and_keys_are_the_same(catalogues):
    own, inspected = catalogues
    assert type(own) is not Catalogue
    names = {cls.__tablename__ for cls in CLASSES} | {"cc_pairs", "cc_view"}
    found, expected = own.tables(names), inspected.tables(names)
    assert set(found) == set(expected) == names
    for name in names:
        assert said(found[name]) == said(expected[name]), name
    assert frozenset({"a", "b"}) in found["cc_pairs"].keys
    assert not any(key <= {"a"} for key in found["cc_pairs"].keys)


def test_what_is_not_there_is_left_out(catalogues):
    for catalogue in catalogues:
        assert set(catalogue.tables({"ck_pages", "cc_nothing"})) == {"ck_pages"}
        assert catalogue.tables(()) == {}
