"""``optilock check``: what it finds in a mapping, a table, its rows, and a connection."""

from __future__ import annotations

import datetime
import json
import types
from typing import Any

import pytest
from sqlalchemy import DateTime, MetaData, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry

from optilock import ConfigurationError, Versioned
from optilock.check import Severity, check
from optilock.tokens import CompareValues, Counter, RowVersion, Unique

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def models() -> Any:
    """Classes as an application has them, each with its own weakness."""

    class Base(DeclarativeBase):
        registry = registry()

    class Page(Versioned, Base):
        __tablename__ = "ck_pages"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Ticket(Versioned, Base):
        __tablename__ = "ck_tickets"
        __version_token__ = Unique()
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.kept = (Page, Ticket)  # a registry alone would let them go
    return types.SimpleNamespace(Base=Base, Page=Page, Ticket=Ticket)


def found(findings, subject=None):
    return {f.code for f in findings if subject is None or f.subject == subject}


def about_models(findings):
    """A server's own settings are another test's."""
    return {f.code for f in findings if f.subject != "connection"}


def test_a_sound_application_has_no_findings(engine):
    base = models().Base
    base.metadata.create_all(engine)
    assert about_models(check(base, engine)) == set()


def test_a_class_without_a_version_is_named(engine):
    base = models().Base

    class Plain(base):
        __tablename__ = "ck_plain"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Native(base):
        __tablename__ = "ck_native"
        id: Mapped[int] = mapped_column(primary_key=True)
        revision: Mapped[int] = mapped_column()
        __mapper_args__ = {"version_id_col": revision}

    base.metadata.create_all(engine)
    findings = check(base, engine)
    assert found(findings, "Plain") == {"no-version"}
    assert found(findings, "Native") == {"not-versioned"}


def test_a_missing_table_and_a_missing_column_are_errors(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ck_pages (id INTEGER PRIMARY KEY)"))
    findings = check(models().Base, engine)

    assert found(findings, "ck_pages.version") == {"no-column"}
    assert found(findings, "ck_tickets") == {"no-table"}
    assert findings[0].severity is Severity.ERROR


def test_rows_without_a_version_are_counted(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ck_pages (id INTEGER PRIMARY KEY, version BIGINT)"))
        connection.execute(text("INSERT INTO ck_pages (id) VALUES (1), (2)"))
    page = models().Page
    findings = check(page, engine)

    assert found(findings, "ck_pages.version") == {"nullable", "null-versions"}
    [missing] = [f for f in findings if f.code == "null-versions"]
    assert missing.message.startswith("2 rows")


def test_random_versions_that_repeat_are_told(engine):
    built = models()
    built.Base.metadata.create_all(engine)
    table = built.Ticket.__table__
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"id": 1}])
        version = connection.scalar(table.select().with_only_columns(table.c.version))
        connection.execute(table.insert(), [{"id": 2, "version": version}])

    assert found(check(built.Ticket, engine)) >= {"repeated-versions"}


@pytest.mark.engines("mariadb", "postgresql")
def test_a_time_without_microseconds_is_an_error(engine):
    base = models().Base

    class Note(base):
        __tablename__ = "ck_notes"
        id: Mapped[int] = mapped_column(primary_key=True)
        seen: Mapped[datetime.datetime] = mapped_column(DateTime)
        __mapper_args__ = {
            "version_id_col": seen,
            "version_id_generator": lambda _: datetime.datetime.now(),
        }

    with engine.begin() as connection:
        kind = "DATETIME" if engine.dialect.name != "postgresql" else "TIMESTAMP(0)"
        connection.execute(
            text(f"CREATE TABLE ck_notes (id INTEGER PRIMARY KEY, seen {kind} NOT NULL)")
        )
    findings = check(Note, engine)
    assert found(findings, "ck_notes.seen") == {"resolution"}
    assert found(findings, "Note.seen") == {"clock"}


def test_a_compared_column_that_every_save_writes_is_told(engine):
    base = models().Base

    class Sheet(Versioned, base):
        __tablename__ = "ck_sheets"
        __version_token__ = CompareValues.all()
        id: Mapped[int] = mapped_column(primary_key=True)
        title: Mapped[int]
        saved: Mapped[int] = mapped_column(onupdate=lambda: 7)

    base.metadata.create_all(engine)
    assert found(check(Sheet, engine), "Sheet.saved") == {"rewritten"}


def test_a_column_of_another_type_is_an_error(engine):
    base = models().Base

    class Row(Versioned, base):
        __tablename__ = "ck_rows"
        __version_token__ = Counter()
        id: Mapped[int] = mapped_column(primary_key=True)

    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE ck_rows (id INTEGER PRIMARY KEY, version VARCHAR(9) NOT NULL)")
        )
    assert found(check(Row, engine), "ck_rows.version") == {"type"}


def test_autocommit_is_an_error(engine):
    base = models().Base
    base.metadata.create_all(engine)
    findings = check(base, engine.execution_options(isolation_level="AUTOCOMMIT"))
    assert "autocommit" in found(findings, "connection")


@pytest.mark.engines("mariadb")
def test_the_servers_snapshot_isolation_is_looked_at(engine):
    base = models().Base
    base.metadata.create_all(engine)
    with engine.connect() as connection:
        off = not connection.scalar(text("SELECT @@innodb_snapshot_isolation"))
    assert ("no-snapshot-isolation" in found(check(base, engine))) is off


@pytest.mark.engines("mariadb")
def test_a_table_without_transactions_is_an_error(engine):
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE ck_pages (id INTEGER PRIMARY KEY, version BIGINT NOT NULL)"
                " ENGINE = Aria"
            )
        )
    assert found(check(models().Page, engine), "ck_pages") == {"no-transactions"}


def test_what_has_no_classes_is_refused(engine):
    for nothing in (json, [], DeclarativeBase):
        with pytest.raises(ConfigurationError, match="no mapped classes"):
            check(nothing, engine)


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("token", [Counter(), RowVersion()], ids=["guard", "row-version"])
def test_a_function_that_a_dropped_table_has_left_is_noted(engine, token):
    """PostgreSQL drops the trigger with its table; a reflected MetaData has no function."""

    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "ck_left"
        __version_token__ = token
        __version_guard__ = None if token.has_trigger else "reject"
        id: Mapped[int] = mapped_column(primary_key=True)

    other = models().Base
    for made in (Base, other):
        made.metadata.create_all(engine)
    assert "unused-function" not in found(check(other, engine))
    reflected = MetaData()
    reflected.reflect(engine)
    reflected.drop_all(engine)
    other.metadata.create_all(engine)
    [left] = [one for one in check(other, engine) if one.code == "unused-function"]
    assert left.severity is Severity.NOTE
    with engine.begin() as connection:
        connection.execute(text(left.advice))
    assert "unused-function" not in found(check(other, engine))
