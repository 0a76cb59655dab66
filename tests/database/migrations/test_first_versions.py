"""``create_all()`` and a migration give a version the same default in the database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import MetaData, String
from sqlalchemy.ext.compiler import compiles, deregister
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.schema import CreateColumn, CreateTable

from optilock import Versioned
from optilock._mapping.first_versions import write_first_versions
from optilock.dialects import database_of
from optilock.testing import count_statements
from optilock.tokens import Counter, Manual, Token
from tests.support.migrating import each_token, migrate, revise, run, send

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def crate(token: Token) -> Any:
    class Base(DeclarativeBase):
        pass

    class Crate(Versioned, Base):
        __tablename__ = "fv_crates"
        __version_token__ = token
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        owner: Mapped[str | None] = mapped_column(String(20))

    return Crate


def default(engine: Any) -> Any:
    """Return it as the catalogue has it: SQLAlchemy reads none that begins with a function."""
    with engine.connect() as connection:
        stored = database_of(engine.dialect).catalogue(connection, None).tables(["fv_crates"])
    return stored["fv_crates"].columns["version"].default


@each_token
def test_a_created_and_a_migrated_table_have_the_same_default(engine, token):
    """B7: and autogenerate, which compares defaults here, finds no difference to either."""
    cls = crate(token)
    cls.metadata.create_all(engine)
    made = default(engine)
    assert made is not None
    assert revise(engine, cls.metadata).empty
    cls.metadata.drop_all(engine)

    send(
        engine,
        "CREATE TABLE fv_crates (id INTEGER NOT NULL PRIMARY KEY, owner VARCHAR(20))",
        "INSERT INTO fv_crates (id) VALUES (7)",
    )
    migrate(engine, lambda op: op.add_version_column("fv_crates", token))
    if token.has_trigger:
        migrate(engine, lambda op: op.create_version_trigger("fv_crates", token))
    assert default(engine) == made
    assert revise(engine, cls.metadata).empty


@each_token
def test_a_table_that_autogenerate_creates_has_it_too(engine, token):
    """B7: op.create_table."""
    cls = crate(token)
    cls.metadata.create_all(engine)
    made = default(engine)
    cls.metadata.drop_all(engine)
    revision = revise(engine, cls.metadata)
    run(engine, revision, revision.upgrade)
    assert default(engine) == made
    assert revise(engine, cls.metadata).empty
    run(engine, revision, revision.downgrade)
    assert cls.__table__.c.version.server_default is None or token.has_trigger


@pytest.mark.usually("sqlite-wal")
@pytest.mark.parametrize("line", [True, False])
def test_a_copy_of_the_table_keeps_the_default_as_well(engine, line):
    """B7: of to_metadata(), and where env.py lacks the line: Alembic would drop the default."""
    cls = crate(Counter())
    cls.metadata.create_all(engine)
    copied = cls.__table__.to_metadata(MetaData()).metadata
    options = {} if line else {"autogenerate_plugins": ["alembic.autogenerate.*"]}
    assert revise(engine, copied, **options).empty
    assert revise(engine, cls.metadata, **options).empty


@each_token
def test_a_program_that_knows_no_version_inserts_a_row(engine, token):
    """B7: its first version is one that a session can read, compare and move."""
    cls = crate(token)
    cls.metadata.create_all(engine)
    send(engine, "INSERT INTO fv_crates (id, owner) VALUES (1, 'Ada'), (2, 'Bob')")
    with Session(engine) as session:
        row = session.get_one(cls, 1)
        before = row.version
        row.owner = "Eve"
        session.commit()
        assert row.version not in (None, before)


def test_a_version_of_the_applications_has_none(engine):
    cls = crate(Manual(String(10)))
    cls.metadata.create_all(engine)
    assert default(engine) is None


@pytest.mark.engines("sqlite-wal")
def test_the_mapping_has_no_default_and_fetches_none(engine):
    """A default in the metadata would be fetched with RETURNING for each row."""
    cls = crate(Counter())
    cls.metadata.create_all(engine)
    with Session(engine) as session, count_statements(engine) as sent:
        session.add(cls(id=1))
        session.flush()
        session.get_one(cls, 1).owner = "Ada"
        session.flush()
    assert not any("RETURNING" in str(one) for one in sent.statements)


@pytest.mark.engines("sqlite-wal")
def test_a_table_whose_class_is_mapped_no_more_can_still_be_created(engine, collect):
    cls = crate(Counter())
    table = cls.__table__
    cls.registry.dispose()
    collect()
    table.create(engine)
    assert default(engine) is None
    table.drop(engine)


@pytest.mark.engines("sqlite-wal")
def test_a_program_s_own_create_column_is_called(engine):
    cls = crate(Counter())
    deregister(CreateColumn)
    try:

        @compiles(CreateColumn)
        def shout(element: Any, compiler: Any, **options: Any) -> Any:
            return f"{compiler.visit_create_column(element, **options)} /* own */"

        write_first_versions.__wrapped__()
        made = str(CreateTable(cls.__table__).compile(engine))
    finally:
        deregister(CreateColumn)
        write_first_versions.__wrapped__()
    assert "version BIGINT DEFAULT 1 NOT NULL /* own */" in made
    assert "id INTEGER NOT NULL /* own */" in made
    assert "/* own" not in str(CreateTable(cls.__table__).compile(engine))
