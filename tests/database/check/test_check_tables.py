"""``optilock check``: tables that are not what the mapping says, and triggers that are missing."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, ForeignKey, String, Table, create_engine, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from optilock import Versioned
from optilock.check import Severity, check
from optilock.tokens import Counter, RowVersion
from tests.support.migrating import migrate

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def page(**options):
    class Base(DeclarativeBase):
        pass

    body = {
        "__tablename__": "ck_pages",
        "__annotations__": {"id": Mapped[int], "body": Mapped[str], "views": Mapped[int]},
        "id": mapped_column(primary_key=True),
        "body": mapped_column(String(20)),
        "views": mapped_column(),
        **options,
    }
    return type("Page", (Versioned, Base), body)


def found(findings):
    return {(f.code, f.subject) for f in findings if f.subject != "connection"}


def run(engine, *statements):
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


class TestDrift:
    def test_a_column_that_the_table_lacks(self, engine):
        run(engine, "CREATE TABLE ck_pages (id INTEGER PRIMARY KEY, version BIGINT NOT NULL)")
        assert found(check(page(), engine)) == {
            ("no-column", "ck_pages.body"),
            ("no-column", "ck_pages.views"),
        }

    def test_a_column_that_every_insert_would_have_to_name(self, engine):
        cls = page()
        cls.metadata.create_all(engine)
        run(
            engine,
            "ALTER TABLE ck_pages ADD COLUMN spare INTEGER",
            "ALTER TABLE ck_pages ADD COLUMN filled INTEGER NOT NULL DEFAULT 7",
        )
        assert found(check(cls, engine)) == set()
        run(engine, "DROP TABLE ck_pages")
        run(
            engine,
            "CREATE TABLE ck_pages (id INTEGER PRIMARY KEY, body VARCHAR(20), views INTEGER,"
            " version BIGINT NOT NULL, owner INTEGER NOT NULL)",
        )
        assert found(check(cls, engine)) == {("unknown-column", "ck_pages.owner")}

    def test_a_key_that_does_not_name_one_row(self, engine):
        columns = "id INTEGER NOT NULL, body VARCHAR(20), views INTEGER, version BIGINT NOT NULL"
        run(engine, f"CREATE TABLE ck_pages ({columns}, PRIMARY KEY (id, views))")
        assert found(check(page(), engine)) == {("key", "ck_pages")}
        run(engine, "CREATE UNIQUE INDEX ck_key ON ck_pages (id)")
        assert found(check(page(), engine)) == set()

    @pytest.mark.engines("postgresql", "mariadb")
    def test_a_column_of_another_type(self, engine):
        run(
            engine,
            "CREATE TABLE ck_pages (id INTEGER PRIMARY KEY, body INTEGER, views BIGINT,"
            " version INTEGER NOT NULL)",
        )
        assert found(check(page(), engine)) == {("type", "ck_pages.body")}

    def test_a_table_of_several_classes_is_told_once(self, engine):
        class Base(DeclarativeBase):
            pass

        class Employee(Versioned, Base):
            __tablename__ = "ck_employees"
            id: Mapped[int] = mapped_column(primary_key=True)
            kind: Mapped[str] = mapped_column(String(9))
            __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "e"}

        class Boss(Employee):
            budget: Mapped[int | None]
            __mapper_args__ = {"polymorphic_identity": "b"}

        run(
            engine,
            "CREATE TABLE ck_employees (id INTEGER PRIMARY KEY, kind VARCHAR(9), budget INTEGER)",
        )
        told = [f for f in check([Boss, Employee], engine) if f.subject != "connection"]
        assert [(f.code, f.subject) for f in told] == [("no-column", "ck_employees.version")]

    def test_a_table_of_links_is_looked_at(self, engine):
        class Base(DeclarativeBase):
            pass

        links = Table(
            "ck_links",
            Base.metadata,
            Column("a", ForeignKey("ck_posts.id"), primary_key=True),
            Column("b", ForeignKey("ck_posts.id"), primary_key=True),
        )

        class Post(Versioned, Base):
            __tablename__ = "ck_posts"
            id: Mapped[int] = mapped_column(primary_key=True)
            others = relationship(
                "Post",
                secondary=links,
                primaryjoin=id == links.c.a,
                secondaryjoin=id == links.c.b,
            )

        Post.__table__.create(engine)
        assert found(check(Post, engine)) == {("no-table", "ck_links")}

    @pytest.mark.engines("postgresql", "mariadb")
    def test_versions_that_may_not_be_read_are_told(self, engine):
        """On a column that may be NULL; otherwise nothing has to be read."""
        user = "optilock_reader"
        run(
            engine,
            "CREATE TABLE ck_pages (id INTEGER PRIMARY KEY, body VARCHAR(20), views INTEGER,"
            " version BIGINT)",
        )
        if engine.dialect.name == "postgresql":
            run(engine, f"DROP ROLE IF EXISTS {user}", f"CREATE ROLE {user}")
            run(engine, f"GRANT USAGE ON SCHEMA public TO {user}")
            weak = create_engine(engine.url)

            @event.listens_for(weak, "connect")
            def become(connection, record):
                connection.execute(f"SET ROLE {user}")
                connection.commit()

        else:
            run(engine, f"CREATE OR REPLACE USER {user} IDENTIFIED BY 'w'")
            # Enough to see the table, and not to read it.
            run(engine, f"GRANT INSERT ON `{engine.url.database}`.* TO {user}")
            weak = create_engine(engine.url.set(username=user, password="w"))
        try:
            told = {code for code, subject in found(check(page(), weak)) if "ck_pages" in subject}
            assert told - {"nullable"} == {"unreadable"}
        finally:
            weak.dispose()
            if engine.dialect.name == "postgresql":
                run(engine, f"DROP OWNED BY {user}", f"DROP ROLE {user}")
            else:
                run(engine, f"DROP USER {user}")


GUARD = {"__version_guard__": "bump", "__version_ignore__": ("views",)}
VERSION = {"__version_token__": RowVersion()}


def make(op, options):
    if options is GUARD:
        op.create_guard_trigger("ck_pages", Counter(), "bump", ignore=["views"])
    else:
        op.create_version_trigger("ck_pages", RowVersion())


def drop(op, options):
    if options is GUARD:
        op.drop_guard_trigger("ck_pages", Counter(), "bump")
    else:
        op.drop_version_trigger("ck_pages", RowVersion())


@pytest.mark.parametrize("options", [GUARD, VERSION], ids=["guard", "version"])
class TestTriggers:
    def test_one_that_is_missing(self, engine, options):
        cls = page(**options)
        cls.metadata.create_all(engine)
        migrate(engine, lambda op: drop(op, options))
        [finding] = [f for f in check(cls, engine) if f.subject != "connection"]
        assert (finding.code, finding.subject) == ("no-trigger", "ck_pages")
        assert finding.severity is Severity.ERROR

        migrate(engine, lambda op: make(op, options))
        assert found(check(cls, engine)) == set()

    @pytest.mark.engines("postgresql")
    def test_one_that_is_switched_off(self, engine, options):
        cls = page(**options)
        cls.metadata.create_all(engine)
        migrate(engine, lambda op: make(op, options))
        run(engine, "ALTER TABLE ck_pages DISABLE TRIGGER ALL")
        assert found(check(cls, engine)) == {("trigger-off", "ck_pages")}

    def test_one_that_somebody_has_changed(self, engine, options):
        cls = page(**options)
        cls.metadata.create_all(engine)
        migrate(engine, lambda op: make(op, options))
        with engine.connect() as connection:
            name = NAMES(connection)
        change(engine, name)
        assert found(check(cls, engine)) == {("other-trigger", "ck_pages")}


def test_a_guard_trigger_with_another_policy(engine):
    cls = page(**GUARD)
    cls.metadata.create_all(engine)
    migrate(
        engine,
        lambda op: op.create_guard_trigger("ck_pages", Counter(), "reject", ignore=["views"]),
    )
    assert found(check(cls, engine)) == {("other-trigger", "ck_pages")}


def test_a_guard_trigger_that_nobody_asked_for(engine):
    cls = page()
    cls.metadata.create_all(engine)
    migrate(engine, lambda op: op.create_guard_trigger("ck_pages", Counter(), "bump"))
    [finding] = [f for f in check(cls, engine) if f.subject != "connection"]
    assert finding.code == "unasked-trigger"
    assert finding.severity is Severity.WARNING


def test_a_version_trigger_that_nobody_asked_for(engine):
    old, cls = page(**VERSION), page()
    old.metadata.create_all(engine)
    [finding] = [f for f in check(cls, engine) if f.subject != "connection"]
    assert finding.code == "unasked-trigger"
    assert finding.severity is Severity.WARNING


def NAMES(connection):
    asked = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        "mysql": "SELECT trigger_name FROM information_schema.triggers"
        " WHERE trigger_schema = database()",
    }
    return connection.scalar(text(asked[connection.dialect.name]))


def change(engine, name):
    """The trigger keeps its name, and does nothing."""
    if engine.dialect.name == "postgresql":
        run(
            engine,
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RETURN NEW; END $$",
        )
        return
    run(engine, f"DROP TRIGGER {name}")
    does = "FOR EACH ROW SET @x = 1" if engine.dialect.name == "mysql" else "BEGIN SELECT 1; END"
    run(engine, f"CREATE TRIGGER {name} BEFORE UPDATE ON ck_pages {does}")


def test_of_a_view_only_the_rows_say_whether_they_have_versions(engine):
    cls = page(__tablename__="ck_shown")
    run(
        engine,
        "CREATE TABLE ck_pages (id INT PRIMARY KEY, body VARCHAR(9), views INT, version BIGINT)",
        "CREATE VIEW ck_shown AS SELECT * FROM ck_pages WHERE version > 0",
    )
    # A view that SQLite reads and cannot write, and is not asked about its rows' versions alone.
    written = {("read-only", "ck_shown")} if engine.dialect.name == "sqlite" else set()
    assert found(check(cls, engine)) == written
    run(
        engine,
        "DROP VIEW ck_shown",
        "CREATE VIEW ck_shown AS SELECT * FROM ck_pages",
        "INSERT INTO ck_pages VALUES (1, '', 0, NULL)",
    )
    assert found(check(cls, engine)) == {("null-versions", "ck_shown.version"), *written}
    run(engine, "DROP VIEW ck_shown")


# -- views -----------------------------------------------------------------------------------------

COLUMNS = "id INT PRIMARY KEY, body VARCHAR(9), views INT, version BIGINT NOT NULL"
TABLE = f"CREATE TABLE ck_pages ({COLUMNS})"
COUNTED = "SELECT id, body, views, count(*) AS version FROM ck_pages GROUP BY id, body, views"
DOUBLED = "SELECT * FROM ck_pages UNION ALL SELECT * FROM ck_pages"
COMPUTED = "SELECT id, body, views, version + 0 AS version FROM ck_pages"
READ_ONLY = {
    "of groups": (f"CREATE VIEW ck_shown AS {COUNTED}", "DROP VIEW ck_shown"),
    "of two": (f"CREATE VIEW ck_shown AS {DOUBLED}", "DROP VIEW ck_shown"),
}
OF_POSTGRESQL = {
    "materialized": (
        "CREATE MATERIALIZED VIEW ck_shown AS SELECT * FROM ck_pages",
        "DROP MATERIALIZED VIEW ck_shown",
    ),
    "of a computed version": (f"CREATE VIEW ck_shown AS {COMPUTED}", "DROP VIEW ck_shown"),
}


@pytest.fixture
def shown(engine, request):
    """A view of the pages, of the kind that the test names."""
    create, drop = {**READ_ONLY, **OF_POSTGRESQL}[request.param]
    run(engine, TABLE, create)
    yield request.param
    run(engine, drop)


def pairs(findings):
    return {(one.code, one.severity.value, one.subject) for one in findings}


@pytest.mark.parametrize("shown", READ_ONLY, indirect=True)
def test_a_class_of_a_view_that_nobody_can_write_is_told(engine, shown):
    """D8: an error where it has a version, and a note where it has none."""
    assert ("read-only", "error", "ck_shown") in pairs(
        check(page(__tablename__="ck_shown"), engine)
    )
    bare = page(__tablename__="ck_shown", __version_token__=None)
    [told] = [one for one in check(bare, engine) if one.code == "read-only"]
    assert told.severity.value == "note"
    assert "takes no UPDATE and no DELETE" in told.message


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("shown", OF_POSTGRESQL, indirect=True)
def test_views_of_postgresql_that_nobody_can_write_are_told(engine, shown):
    """D8: one that is refreshed as a whole, and one whose version is an expression."""
    assert ("read-only", "error", "ck_shown") in pairs(
        check(page(__tablename__="ck_shown"), engine)
    )


@pytest.mark.engines("postgresql", "mariadb")
def test_of_a_view_that_can_be_written_nothing_is_told(engine):
    """D8: a view of one table, as it stands."""
    run(engine, TABLE, "CREATE VIEW ck_shown AS SELECT * FROM ck_pages")
    assert "read-only" not in {one.code for one in check(page(__tablename__="ck_shown"), engine)}
    run(engine, "DROP VIEW ck_shown")


@pytest.mark.engines("postgresql")
def test_a_trigger_instead_of_the_view_counts(engine):
    """D8: PostgreSQL counts the rows that it writes."""
    run(
        engine,
        TABLE,
        f"CREATE VIEW ck_shown AS {COUNTED}",
        "CREATE FUNCTION ck_write() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RETURN COALESCE(NEW, OLD); END'",
        "CREATE TRIGGER ck_writes INSTEAD OF UPDATE OR DELETE ON ck_shown"
        " FOR EACH ROW EXECUTE FUNCTION ck_write()",
    )
    assert "read-only" not in {one.code for one in check(page(__tablename__="ck_shown"), engine)}
    run(engine, "DROP VIEW ck_shown", "DROP FUNCTION ck_write()")
