"""A sound application, and faults that can be planted in its database, each with what finds it.

``PLANTED`` is the table of them: a name, the engine, the SQL that plants the fault, what undoes it,
and the code and the subject of the finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Computed, Integer, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import Versioned
from optilock._versioned import expected_tables
from optilock.dialects import database_of
from optilock.tokens import Counter, Manual, RowVersion, Timestamp, Unique
from tests.support.migrating import migrate


class Base(DeclarativeBase):
    pass


def model(table: str, token: Any, guard: str | None = None, **more: Any) -> Any:
    body = {
        "__tablename__": table,
        "__version_token__": token,
        "__version_guard__": guard,
        "__version_ignore__": ("views",) if guard else (),
        "__annotations__": {"id": Mapped[int], "title": Mapped[str], "views": Mapped[int]},
        "id": mapped_column(primary_key=True, autoincrement=False),
        "title": mapped_column(String(20)),
        "views": mapped_column(default=0),
    }
    return type(table.title(), (Versioned, Base), {**body, **more})


Pages = model("ck_pages", Counter(), "bump")
Kept = model("ck_kept", Counter(), "reject")
Tickets = model("ck_tickets", Unique(), "bump")
Timed = model("ck_timed", Timestamp(), "reject")
Items = model("ck_items", RowVersion())
Texts = model("ck_texts", Manual(String(40)))
Plain = model("ck_plain", Counter())
Totals = model(
    "ck_totals",
    Counter(),
    "bump",
    doubled=mapped_column(Integer, Computed("views * 2", persisted=True)),
)
CLASSES = (Pages, Kept, Tickets, Timed, Items, Texts, Plain, Totals)


def create(engine: Any, *classes: Any) -> None:
    """The tables, their triggers, and two rows each."""
    classes = classes or CLASSES
    Base.metadata.create_all(engine, tables=[cls.__table__ for cls in classes])
    for cls in classes:
        guard(engine, cls)
    with Session(engine) as session:
        for cls in classes:
            for n in (1, 2):
                given = {"version": f"{n}"} if cls is Texts else {}
                session.add(cls(id=n, title="x", **given))
        session.commit()


def guard(engine: Any, cls: Any, policy: str | None = None) -> None:
    policy = policy or cls.__version_guard__
    if policy is not None:
        name, token = cls.__tablename__, cls.__version_token__
        ignore = list(cls.__version_ignore__)
        migrate(engine, lambda op: op.create_guard_trigger(name, token, policy, ignore=ignore))


def run(engine: Any, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))


Work = Callable[[Any], None]


@dataclass(frozen=True)
class Fault:
    name: str
    engine: str
    plant: str | tuple[str, ...] | Work
    undo: str | tuple[str, ...] | Work
    code: str
    subject: str
    #: A word that the message has to have.
    says: str = ""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def done(engine: Any, what: str | tuple[str, ...] | Work) -> None:
    if callable(what):
        what(engine)
    else:
        run(engine, *([what] if isinstance(what, str) else what))


def again(*classes: Any) -> Work:
    """Make the tables as they should be."""

    def work(engine: Any) -> None:
        for cls in classes:
            run(engine, f"DROP TABLE IF EXISTS {cls.__tablename__}")
        create(engine, *classes)

    return work


def guarded(cls: Any) -> Work:
    """Make the trigger as it should be, by the operation that the advice names."""
    return lambda engine: guard(engine, cls)


def versioned(cls: Any) -> Work:
    return lambda engine: migrate(
        engine, lambda op: op.create_version_trigger(cls.__tablename__, cls.__version_token__)
    )


def retimed(cls: Any, when: str) -> Work:
    """The guard trigger of MariaDB does the same at another moment."""
    name = f"optilock_guard_{cls.__tablename__}"

    def work(engine: Any) -> None:
        triggers = database_of(engine.dialect).guard_triggers(engine.dialect)
        wanted = expected_tables([cls.__table__])[cls.__table__].guard
        assert wanted is not None
        does = triggers.source(wanted)
        run(
            engine,
            f"DROP TRIGGER {name}",
            f"CREATE TRIGGER {name} {when} ON {cls.__tablename__} FOR EACH ROW {does}",
        )

    return work


def resaid(cls: Any, old: str, new: str) -> Work:
    """A trigger of SQLite with another text."""

    def work(engine: Any) -> None:
        asked = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :name"
        with engine.connect() as connection:
            [(name, sql)] = connection.execute(text(asked), {"name": cls.__tablename__}).all()
        assert old in sql
        run(engine, f"DROP TRIGGER {name}", sql.replace(old, new, 1))

    return work


def altered(table: str, change: str) -> str:
    return f"ALTER TABLE {table} {change}"


GUARD = "optilock_guard_ck_pages"
DROP = f"DROP TRIGGER {GUARD} ON ck_pages"
SAME = "WHEN (NEW.version = OLD.version)"
MOVES = "ck_items_version_moves"
#: In words that PostgreSQL and MariaDB have both, as of_every_server().
DEFAULT_GONE = (
    "default gone",
    altered("ck_items", "ALTER COLUMN version DROP DEFAULT"),
    altered("ck_items", "ALTER COLUMN version SET DEFAULT 1"),
    "no-default",
    "ck_items.version",
)


def guard_on(when: str, condition: str = SAME, each: str = "ROW") -> tuple[str, str]:
    return (
        DROP,
        f"CREATE TRIGGER {GUARD} {when} ON ck_pages FOR EACH {each} {condition}"
        f" EXECUTE FUNCTION {GUARD}()",
    )


def function(body: str, name: str = "ck_foreign") -> str:
    return (
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {body} END $$"
    )


def foreign(body: str, when: str = "BEFORE UPDATE") -> tuple[str, ...]:
    return (
        function(body),
        f"CREATE TRIGGER ck_z {when} ON ck_pages FOR EACH ROW EXECUTE FUNCTION ck_foreign()",
    )


NO_FOREIGN = ("DROP TRIGGER ck_z ON ck_pages", "DROP FUNCTION ck_foreign()")


def of_this_database(statement: str) -> str:
    """Without the name, others would have the setting who use the server at the same time."""
    return f"DO $$ BEGIN EXECUTE format('{statement}', current_database()); END $$"


def of_postgresql() -> list[tuple[Any, ...]]:
    pages, other, off = guarded(Pages), "other-trigger", "trigger-off"
    set_role, reset = "SET session_replication_role = replica", "RESET session_replication_role"
    only = "CREATE POLICY ck_some ON ck_pages USING (id = 1)"
    secured = altered("ck_pages", "ENABLE ROW LEVEL SECURITY")
    return [
        ("guard of one column", guard_on("BEFORE UPDATE OF id"), pages, other, "ck_pages", "OF id"),
        ("guard after", guard_on("AFTER UPDATE"), pages, other, "ck_pages", "AFTER"),
        (
            "guard never",
            guard_on("BEFORE UPDATE", "WHEN (false)"),
            pages,
            other,
            "ck_pages",
            "false",
        ),
        ("guard always", guard_on("BEFORE UPDATE", ""), pages, other, "ck_pages", "WHEN"),
        (
            "guard under a condition",
            guard_on("BEFORE UPDATE", "WHEN (NEW.version = OLD.version AND NEW.id > 5)"),
            pages,
            other,
            "ck_pages",
            "new.id>5",
        ),
        (
            "guard of statements",
            guard_on("BEFORE UPDATE", "", "STATEMENT"),
            pages,
            other,
            "ck_pages",
            "STATEMENT",
        ),
        ("guard of inserts", guard_on("BEFORE INSERT", ""), pages, other, "ck_pages", "INSERT"),
        ("guard that does nothing", function("RETURN NEW;", GUARD), pages, other, "ck_pages"),
        ("guard of another policy", lambda e: guard(e, Pages, "reject"), pages, other, "ck_pages"),
        ("guard gone", DROP, pages, "no-trigger", "ck_pages"),
        (
            "guard off",
            altered("ck_pages", f"DISABLE TRIGGER {GUARD}"),
            altered("ck_pages", f"ENABLE TRIGGER {GUARD}"),
            off,
            "ck_pages",
        ),
        (
            "guard for replicas",
            altered("ck_pages", f"ENABLE REPLICA TRIGGER {GUARD}"),
            altered("ck_pages", f"ENABLE TRIGGER {GUARD}"),
            off,
            "ck_pages",
            "replicas",
        ),
        (
            "guard that nobody asked for",
            lambda e: guard(e, Plain, "bump"),
            "DROP FUNCTION optilock_guard_ck_plain CASCADE",
            "unasked-trigger",
            "ck_plain.optilock_guard_ck_plain",
        ),
        (
            "version trigger of one column",
            (
                f"DROP TRIGGER {MOVES} ON ck_items",
                f"CREATE TRIGGER {MOVES} BEFORE UPDATE OF id ON ck_items FOR EACH ROW"
                f" EXECUTE FUNCTION {MOVES}()",
            ),
            versioned(Items),
            other,
            "ck_items",
            "OF id",
        ),
        (
            "version trigger off",
            altered("ck_items", f"DISABLE TRIGGER {MOVES}"),
            altered("ck_items", f"ENABLE TRIGGER {MOVES}"),
            off,
            "ck_items",
        ),
        (
            "version trigger gone",
            f"DROP TRIGGER {MOVES} ON ck_items",
            versioned(Items),
            "no-trigger",
            "ck_items",
        ),
        DEFAULT_GONE,
        (
            "time without a zone",
            (
                "DROP TRIGGER optilock_guard_ck_timed ON ck_timed",
                altered("ck_timed", "ALTER COLUMN version TYPE timestamp"),
            ),
            again(Timed),
            "time-zone",
            "ck_timed.version",
        ),
        (
            "time in seconds",
            (
                "DROP TRIGGER optilock_guard_ck_timed ON ck_timed",
                altered("ck_timed", "ALTER COLUMN version TYPE timestamptz(0)"),
            ),
            again(Timed),
            "resolution",
            "ck_timed.version",
        ),
        (
            "small number",
            altered("ck_plain", "ALTER COLUMN version TYPE smallint"),
            altered("ck_plain", "ALTER COLUMN version TYPE bigint"),
            "too-small",
            "ck_plain.version",
            "32,767",
        ),
        (
            "short text",
            altered("ck_texts", "ALTER COLUMN version TYPE varchar(8)"),
            altered("ck_texts", "ALTER COLUMN version TYPE varchar(40)"),
            "too-small",
            "ck_texts.version",
        ),
        (
            "text in any case",
            (
                # By the name that the extension's type has.
                "CREATE DOMAIN citext AS varchar(40)",
                altered("ck_texts", "ALTER COLUMN version TYPE citext"),
            ),
            (
                altered("ck_texts", "ALTER COLUMN version TYPE varchar(40)"),
                "DROP DOMAIN citext",
            ),
            "collation",
            "ck_texts.version",
        ),
        (
            "foreign trigger that puts the version back",
            foreign("NEW.version := OLD.version; RETURN NEW;"),
            NO_FOREIGN,
            "foreign-trigger",
            "ck_pages.ck_z",
        ),
        (
            "foreign trigger that begins again",
            foreign("IF NEW.title = 'x' THEN NEW.version = 1; END IF; RETURN NEW;"),
            NO_FOREIGN,
            "foreign-trigger",
            "ck_pages.ck_z",
        ),
        (
            "foreign trigger that takes the row back",
            foreign("RETURN OLD;"),
            NO_FOREIGN,
            "foreign-trigger",
            "ck_pages.ck_z",
        ),
        (
            "foreign trigger that updates the row again",
            foreign(
                "UPDATE ck_pages SET title = 'y', version = 1 WHERE id = NEW.id; RETURN NULL;",
                "AFTER UPDATE",
            ),
            NO_FOREIGN,
            "foreign-trigger",
            "ck_pages.ck_z",
        ),
        (
            "rule instead of updates",
            "CREATE RULE ck_r AS ON UPDATE TO ck_pages DO INSTEAD NOTHING",
            "DROP RULE ck_r ON ck_pages",
            "rule",
            "ck_pages",
            "UPDATE",
        ),
        (
            "rule instead of deletes",
            "CREATE RULE ck_r AS ON DELETE TO ck_pages WHERE OLD.id = 1 DO INSTEAD NOTHING",
            "DROP RULE ck_r ON ck_pages",
            "rule",
            "ck_pages",
            "DELETE",
        ),
        (
            "replica by its role",
            of_this_database(f"ALTER ROLE CURRENT_USER IN DATABASE %I {set_role}"),
            of_this_database(f"ALTER ROLE CURRENT_USER IN DATABASE %I {reset}"),
            "replica-role",
            "connection",
            "ROLE",
        ),
        (
            "replica by its database",
            of_this_database(f"ALTER DATABASE %I {set_role}"),
            of_this_database(f"ALTER DATABASE %I {reset}"),
            "replica-role",
            "connection",
            "DATABASE",
        ),
        (
            "no bump for a role",
            of_this_database("ALTER ROLE CURRENT_USER IN DATABASE %I SET optilock.no_bump = on"),
            of_this_database("ALTER ROLE CURRENT_USER IN DATABASE %I RESET optilock.no_bump"),
            "no-bump",
            "connection",
        ),
        (
            "guard that never bumps",
            f"ALTER FUNCTION {GUARD}() SET optilock.no_bump = 'on'",
            f"ALTER FUNCTION {GUARD}() RESET ALL",
            other,
            "ck_pages",
            "no_bump",
        ),
        (
            "hidden rows",
            (only, secured),
            (altered("ck_pages", "DISABLE ROW LEVEL SECURITY"), "DROP POLICY ck_some ON ck_pages"),
            "row-security",
            "ck_pages",
        ),
        (
            "another type",
            altered("ck_pages", "ALTER COLUMN title TYPE integer USING 0"),
            altered("ck_pages", "ALTER COLUMN title TYPE varchar(20)"),
            "type",
            "ck_pages.title",
        ),
        (
            "no key",
            altered("ck_plain", "DROP CONSTRAINT ck_plain_pkey"),
            altered("ck_plain", "ADD PRIMARY KEY (id)"),
            "key",
            "ck_plain",
        ),
        *of_every_server(),
    ]


def of_every_server() -> list[tuple[Any, ...]]:
    """In words that PostgreSQL and MariaDB have both."""
    return [
        ("no table", "DROP TABLE ck_plain", again(Plain), "no-table", "ck_plain"),
        (
            "no version",
            altered("ck_plain", "DROP COLUMN version"),
            again(Plain),
            "no-column",
            "ck_plain.version",
        ),
        (
            "unknown column",
            (
                "DELETE FROM ck_plain",
                altered("ck_plain", "ADD COLUMN owner INTEGER NOT NULL"),
            ),
            altered("ck_plain", "DROP COLUMN owner"),
            "unknown-column",
            "ck_plain.owner",
        ),
        (
            "versions that repeat",
            "INSERT INTO ck_tickets SELECT 3, title, views, version FROM ck_tickets WHERE id = 1",
            "DELETE FROM ck_tickets WHERE id = 3",
            "repeated-versions",
            "ck_tickets.version",
        ),
    ]


def of_mariadb() -> list[tuple[Any, ...]]:
    trigger = "CREATE TRIGGER ck_z BEFORE UPDATE ON ck_pages FOR EACH ROW"
    changed, kind = "ck_timed", "MODIFY version DATETIME(6) NOT NULL"
    binary = "VARCHAR(40) COLLATE utf8mb4_bin NOT NULL"
    return [
        (
            "guard after",
            retimed(Kept, "AFTER UPDATE"),
            guarded(Kept),
            "other-trigger",
            "ck_kept",
            "AFTER",
        ),
        (
            "guard that does nothing",
            (
                f"CREATE OR REPLACE TRIGGER {GUARD} BEFORE UPDATE ON ck_pages"
                " FOR EACH ROW SET @x = 1",
            ),
            guarded(Pages),
            "other-trigger",
            "ck_pages",
        ),
        ("guard gone", f"DROP TRIGGER {GUARD}", guarded(Pages), "no-trigger", "ck_pages"),
        (
            "version trigger gone",
            f"DROP TRIGGER {MOVES}",
            versioned(Items),
            "no-trigger",
            "ck_items",
        ),
        DEFAULT_GONE,
        *(
            (
                f"{kind} number".lower(),
                altered("ck_plain", f"MODIFY version {kind} NOT NULL"),
                altered("ck_plain", "MODIFY version BIGINT NOT NULL"),
                "too-small",
                "ck_plain.version",
            )
            for kind in ("TINYINT", "SMALLINT", "MEDIUMINT")
        ),
        (
            "time in seconds",
            altered(changed, "MODIFY version DATETIME NOT NULL"),
            altered(changed, kind),
            "resolution",
            "ck_timed.version",
        ),
        (
            "time of the session",
            altered(changed, "MODIFY version TIMESTAMP(6) NOT NULL DEFAULT '2020-01-01'"),
            altered(changed, kind),
            "time-zone",
            "ck_timed.version",
        ),
        (
            "version on update",
            altered(changed, f"{kind} ON UPDATE CURRENT_TIMESTAMP(6)"),
            altered(changed, kind),
            "version-on-update",
            "ck_timed.version",
        ),
        (
            "text in any case",
            altered("ck_texts", "MODIFY version VARCHAR(40) COLLATE utf8mb4_general_ci NOT NULL"),
            altered("ck_texts", f"MODIFY version {binary}"),
            "collation",
            "ck_texts.version",
        ),
        (
            "short text",
            altered("ck_texts", "MODIFY version VARCHAR(8) COLLATE utf8mb4_bin NOT NULL"),
            altered("ck_texts", f"MODIFY version {binary}"),
            "too-small",
            "ck_texts.version",
        ),
        (
            "foreign trigger that puts the version back",
            f"{trigger} SET NEW.title = 'y', NEW.version = OLD.version",
            "DROP TRIGGER ck_z",
            "foreign-trigger",
            "ck_pages.ck_z",
        ),
        (
            "foreign trigger that begins again",
            f"{trigger} BEGIN IF NEW.title = 'x' THEN SET NEW.version = 1; END IF; END",
            "DROP TRIGGER ck_z",
            "foreign-trigger",
            "ck_pages.ck_z",
        ),
        (
            "version that may be NULL",
            altered("ck_plain", "MODIFY version BIGINT NULL"),
            altered("ck_plain", "MODIFY version BIGINT NOT NULL"),
            "nullable",
            "ck_plain.version",
        ),
        (
            "another type",
            altered("ck_plain", "MODIFY title BLOB NOT NULL"),
            altered("ck_plain", "MODIFY title VARCHAR(20) NOT NULL"),
            "type",
            "ck_plain.title",
        ),
        (
            "no transactions",
            altered("ck_plain", "ENGINE = Aria"),
            altered("ck_plain", "ENGINE = InnoDB"),
            "no-transactions",
            "ck_plain",
        ),
        (
            "no key",
            altered("ck_plain", "DROP PRIMARY KEY"),
            altered("ck_plain", "ADD PRIMARY KEY (id)"),
            "key",
            "ck_plain",
        ),
        *of_every_server(),
    ]


def of_sqlite() -> list[tuple[Any, ...]]:
    def remade(cls: Any, version: str) -> tuple[str, str]:
        name = cls.__tablename__
        columns = "id INTEGER NOT NULL, title VARCHAR(20) NOT NULL, views INTEGER NOT NULL"
        return (
            f"DROP TABLE {name}",
            f"CREATE TABLE {name} ({columns}, {version}, PRIMARY KEY (id))",
        )

    other, pages = "other-trigger", guarded(Pages)
    return [
        (
            "guard of one column",
            resaid(Pages, "AFTER UPDATE ON", "AFTER UPDATE OF id ON"),
            pages,
            other,
            "ck_pages",
        ),
        (
            "guard before",
            resaid(Pages, "AFTER UPDATE", "BEFORE UPDATE"),
            pages,
            other,
            "ck_pages",
        ),
        ("guard never", resaid(Pages, "WHEN ", "WHEN 0 AND "), pages, other, "ck_pages"),
        (
            "guard that does nothing",
            resaid(Pages, "SET version", "SET views"),
            pages,
            other,
            "ck_pages",
        ),
        ("guard gone", f"DROP TRIGGER {GUARD}", pages, "no-trigger", "ck_pages"),
        (
            "version trigger gone",
            f"DROP TRIGGER {MOVES}",
            versioned(Items),
            "no-trigger",
            "ck_items",
        ),
        (
            "default gone",
            remade(Items, "version BIGINT NOT NULL"),
            again(Items),
            "no-default",
            "ck_items.version",
        ),
        (
            "text in any case",
            remade(Texts, 'version VARCHAR(40) COLLATE "NoCase" NOT NULL'),
            again(Texts),
            "collation",
            "ck_texts.version",
        ),
        (
            "text whose blanks do not count",
            remade(Texts, "[version] VARCHAR(40) NOT NULL COLLATE rtrim"),
            again(Texts),
            "collation",
            "ck_texts.version",
        ),
        (
            "foreign trigger that begins again",
            "CREATE TRIGGER ck_z AFTER UPDATE OF title ON ck_pages BEGIN"
            " UPDATE ck_pages SET views = 0, version = 1 WHERE id = NEW.id; END",
            "DROP TRIGGER ck_z",
            "foreign-trigger",
            "ck_pages.ck_z",
        ),
        (
            "version that may be NULL",
            remade(Plain, "version BIGINT"),
            again(Plain),
            "nullable",
            "ck_plain.version",
        ),
        (
            "another type",
            remade(Plain, "version VARCHAR(20) NOT NULL"),
            again(Plain),
            "type",
            "ck_plain.version",
        ),
        (
            "no key",
            (
                "DROP TABLE ck_plain",
                "CREATE TABLE ck_plain (id INTEGER, title TEXT, views INTEGER,"
                " version BIGINT NOT NULL)",
            ),
            again(Plain),
            "key",
            "ck_plain",
        ),
        (
            "time that is a day",
            remade(Timed, "version DATE NOT NULL"),
            again(Timed),
            "type",
            "ck_timed.version",
        ),
        *of_every_server()[:2],
        *of_every_server()[3:],
    ]


def table(engine: str, faults: list[tuple[Any, ...]]) -> list[Fault]:
    return [Fault(name, engine, *rest) for name, *rest in faults]


PLANTED = [
    *table("postgresql", of_postgresql()),
    *table("mariadb", of_mariadb()),
    *table("sqlite", of_sqlite()),
]
