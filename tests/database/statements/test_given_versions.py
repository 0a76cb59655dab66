"""A version that a program gives to stored rows is no move: they may have it already."""

from __future__ import annotations

import contextlib
import warnings

import pytest
from sqlalchemy import (
    String,
    bindparam,
    case,
    delete,
    event,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, sessionmaker

from optilock import ConcurrencyError, Versioned, watch
from optilock.errors import ConfigurationError, UnguardedStatement, UnguardedStatementWarning
from optilock.statements import guard_statements
from optilock.tokens import Manual
from optilock.tokens.timestamp import NextServerTime
from tests.support.models import Account, Base, Note, Tag, Timed, key

TABLE, TAGS = Account.__table__, Tag.__table__
ALIAS = TABLE.alias()
OF_TAG = select(TAGS.c.id).where(TAGS.c.id == 1).scalar_subquery()


def of_class(*params, **values):
    return lambda session: session.execute(update(Account).values(owner="x", **values), *params)


def of_table(*params, **values):
    return lambda session: session.execute(update(TABLE).values(**values), *params)


def on_connection(*params, **values):
    made = update(TABLE).values(**values)
    return lambda session: session.connection().execute(made, *params)


def in_flush(session):
    """A listener of the flush sends it."""

    def after_insert(mapper, connection, tag):
        connection.execute(update(TABLE).values(owner="x", version=1))

    event.listen(Tag, "after_insert", after_insert)
    try:
        session.add(Tag(id=2))
        session.flush()
    finally:
        event.remove(Tag, "after_insert", after_insert)


ROWS = update(TABLE).where(TABLE.c.id == bindparam("of"))
ORDERED = update(Account).ordered_values((Account.owner, "x"), (Account.version, 1))
UPDATES = {
    "literal": of_class(version=1),
    "bound": of_class({"given": 1}, version=bindparam("given")),
    "parameter": of_class({"version": 1}),
    "own": of_class(version=Account.version),
    "own plus 0": of_class(version=Account.version + 0),
    "other column": of_class(version=OF_TAG),
    "other column plus 0": of_class(version=OF_TAG + 0),
    "case": of_class(version=case((Account.id == 2, Account.version + 1), else_=Account.version)),
    "function": of_class(version=func.abs(Account.version)),
    "column text": of_class(version=literal_column("1")),
    "sql text": of_class(version=text("version")),
    "ordered": lambda session: session.execute(ORDERED),
    "query": lambda session: session.query(Account).update({"owner": "x", "version": 1}),
    "table": of_table(owner="x", version=1),
    "table, parameters": of_table({"owner": "x", "version": 1}),
    "table, rows": lambda one: one.execute(ROWS, [{"of": 1, "owner": "x", "version": 1}]),
    "alias": lambda session: session.execute(update(ALIAS).values(owner="x", version=1)),
    "connection": on_connection(owner="x", version=1),
    "connection, parameters": on_connection({"owner": "x", "version": 1}),
    "listener": in_flush,
}


def upsert(engine, **values):
    if engine.dialect.name in ("mysql", "mariadb"):
        made = mysql.insert(TABLE).values(id=1, balance=0, version=1)
        return made.on_duplicate_key_update(owner="x", **values)
    insert = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
    made = insert(TABLE).values(id=1, balance=0, version=1)
    return made.on_conflict_do_update(index_elements=["id"], set_={"owner": "x", **values})


EACH = [pytest.param(n, marks=pytest.mark.engines(n)) for n in ("sqlite", "postgresql", "mariadb")]


@pytest.mark.parametrize("on", EACH)
def test_an_update_makes_the_next_version_instead_of_a_given_one(store, engine, stored, on):
    """A reader of the row conflicts."""
    store(Account(id=1), Tag(id=1))
    for name, send in UPDATES.items():
        sessions = watch(sessionmaker(engine, expire_on_commit=False))
        with sessions() as session, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UnguardedStatementWarning)
            reader = session.get_one(Account, 1)
            session.commit()
            with sessions.begin() as other:
                send(other)
            assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("x", 2), name
            reader.owner = "reader"
            with pytest.raises(ConcurrencyError):
                session.commit()
        assert UnguardedStatementWarning in [one.category for one in warned], name
        with engine.begin() as connection:
            connection.execute(update(TABLE).values(owner=None, version=1))
            connection.execute(delete(TAGS).where(TAGS.c.id == 2))


def test_a_strict_session_and_a_guarded_engine_refuse_them_all(store, engine, stored):
    store(Account(id=1), Tag(id=1))
    strict = watch(sessionmaker(engine), strict=True)
    for name, send in UPDATES.items():
        with strict() as session, pytest.raises(UnguardedStatement):
            send(session)
        assert stored(Account, 1)["owner"] is None, name
    guard_statements(engine, "forbid")
    for send in UPDATES.values():
        with Session(engine) as session, pytest.raises(UnguardedStatement):
            send(session)


@pytest.mark.parametrize("on", EACH)
def test_an_equal_form_that_was_compiled_before_does_not_speak_for_another(store, engine, on):
    """SQLAlchemy compiles a form once, and keeps the first statement with its values."""
    store(Account(id=1))
    guard_statements(engine, "forbid")
    mine = update(TABLE).where(TABLE.c.id == 1)
    moved = mine.values(owner="x", version=TABLE.c.version + 1)
    left = mine.values(owner="y", version=TABLE.c.version + 0)
    for of_session in (True, False):
        for statement, refused in ((moved, False), (left, True), (moved, False), (left, True)):
            with Session(engine) as session:
                send = session if of_session else session.connection()
                with pytest.raises(UnguardedStatement) if refused else contextlib.nullcontext():
                    send.execute(statement)
    if on == "postgresql":
        for change, refused in ((moved, False), (left, True)):
            inner = change.returning(TABLE.c.id).cte()
            told = pytest.raises(UnguardedStatement) if refused else contextlib.nullcontext()
            with Session(engine) as session, told:
                session.execute(select(inner.c.id))


def test_a_statement_that_compares_the_version_may_give_the_next_one(store, engine, stored):
    """An upsert of the table on a connection of the session is as one of the session."""
    store(Account(id=1))
    mine = update(Account).where(Account.id == 1)
    with watch(sessionmaker(engine), strict=True)() as session:
        session.execute(mine.where(Account.version == 1).values(owner="a", version=2))
        session.execute(mine.where(Account.version == 2).values(owner="b", version=2))
        session.execute(mine.values(owner="c", version=func.coalesce(Account.version, 0) + 1))
        for given in (1, OF_TAG, TABLE.c.version + 0, TABLE.c.version + 1):
            session.connection().execute(upsert(engine, version=given))
        with pytest.raises(ConfigurationError, match="upsert"):
            session.connection().execute(upsert(engine))
        session.commit()
    assert stored(Account, 1)["version"] == 8


def test_random_versions_and_times_are_made_by_their_token(store, engine, stored):
    store(Note(id=1), Timed(id=1))
    before = stored(Note, 1)["version"], stored(Timed, 1)["version"]
    with watch(sessionmaker(engine), strict=False)() as session:
        session.execute(update(Note).values(text="x", version=before[0]))
        session.execute(update(Timed).values(owner="x", version=before[1]))
        session.commit()
        assert stored(Note, 1)["version"] != before[0]
        moved = stored(Timed, 1)["version"]
        assert moved > before[1]
        following = NextServerTime(Timed.version)
        session.execute(update(Timed).values(owner="x", version=following))
        session.commit()
    assert stored(Timed, 1)["version"] > moved


class Assigned(Versioned, Base):
    """The program makes the versions."""

    __tablename__ = "given_assigned"
    __version_token__ = Manual(String(20))
    id: Mapped[int] = key()
    text: Mapped[str | None]


def test_versions_that_the_program_makes_are_as_it_says(store, engine, stored):
    store(Assigned(id=1, version="a"))
    with watch(sessionmaker(engine), strict=True)() as session:
        session.execute(update(Assigned).values(text="x", version="b"))
        session.execute(text("UPDATE given_assigned SET text = 'y', version = :c"), {"c": "c"})
        session.commit()
    assert stored(Assigned, 1)["version"] == "c"


NEW = "INSERT INTO accounts (id, owner, balance, version) VALUES (1, 'x', 0, 1)"
CONFLICT = f"{NEW} ON CONFLICT (id) DO UPDATE SET owner = 'x'"
DUPLICATE = f"{NEW} ON DUPLICATE KEY UPDATE owner = 'x'"
MERGED = (
    "MERGE INTO accounts a USING tags t ON a.id = t.id WHEN MATCHED THEN UPDATE SET owner = 'x'"
)
TEXTS = {
    "sqlite postgresql mariadb": [
        "UPDATE accounts SET owner = 'x', version = 1 WHERE id = 1",
        "UPDATE accounts SET version = :given, owner = 'x'",
        "UPDATE accounts SET owner = 'x', version = version",
        "UPDATE accounts SET owner = 'x', version = (1)",
        "UPDATE accounts SET owner = 'x', version = version + 0",
        "UPDATE accounts SET owner = 'x', version = (SELECT version FROM pages)",
        "UPDATE accounts SET owner = 'x', version = CASE WHEN id = 1 THEN 1 ELSE version END",
    ],
    "sqlite postgresql": [
        "UPDATE accounts SET owner = 'x', \"version\" = 1",
        "UPDATE accounts SET (owner, version) = ('x', 1)",
        "UPDATE accounts SET owner = 'x', version = p.version + 1 FROM pages p",
        f"{CONFLICT}, version = 3",
        f"{CONFLICT}, version = :given",
        f"{CONFLICT}, version = excluded.version",
        f'{CONFLICT}, "version" = excluded."version"',
        f"{CONFLICT}, version = excluded.version + 1",
        f"{CONFLICT}, version = coalesce(excluded.version, accounts.version)",
    ],
    "postgresql": [
        f"{MERGED}, version = t.id",
        f"{MERGED}, version = t.id + 1 WHEN NOT MATCHED THEN INSERT (id, version) VALUES (t.id, 1)",
    ],
    "mariadb": [
        f"{DUPLICATE}, version = VALUES(version)",
        f"{DUPLICATE}, `version` = VALUE(`version`)",
        f"{DUPLICATE}, accounts.version = 1",
        "UPDATE accounts a JOIN tags t ON t.id = a.id SET a.owner = 'x', a.version = t.id",
    ],
}
MOVING = {
    "sqlite postgresql mariadb": [
        "UPDATE accounts SET owner = 'x', version = accounts.version + 1",
        "UPDATE accounts SET version = (version + 1), owner = 'x' WHERE id = 1",
        "UPDATE accounts SET owner = 'x', version = coalesce(version, 0) + 1",
        "UPDATE accounts SET owner = 'x', version = 4 WHERE version = 3",
        "UPDATE accounts SET version = 1 WHERE version IS NULL",
    ],
    "sqlite postgresql": [
        f"{CONFLICT}, version = accounts.version + 1",
        f"{CONFLICT}, version = 3 WHERE accounts.version = 2",
        'UPDATE "accounts" AS a SET owner = \'x\', "version" = a."version" + 1',
    ],
    "postgresql": [f"{MERGED}, version = a.version + 1"],
    "mariadb": [
        f"{DUPLICATE}, version = version + 1",
        "UPDATE accounts a JOIN tags t ON t.id = a.id SET a.owner = 'x', a.version = a.version + 1",
    ],
}


def texts_for(on, texts):
    return [sql for names, some in texts.items() if on in names.split() for sql in some]


@pytest.mark.parametrize("on", EACH)
def test_a_text_cannot_be_changed_and_is_refused(store, engine, on):
    store(Account(id=1), Tag(id=1))
    with watch(sessionmaker(engine), strict=True)() as session:
        for sql in texts_for(on, TEXTS):
            given = {"given": 1} if ":given" in sql else {}
            with pytest.raises(UnguardedStatement):
                session.execute(text(sql), given)
            with pytest.raises(UnguardedStatement):
                session.connection().exec_driver_sql(sql.replace(":given", "1"))
        for sql in texts_for(on, MOVING):
            session.execute(text(sql))
        session.commit()
