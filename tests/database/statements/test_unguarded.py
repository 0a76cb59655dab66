"""``guard_statements``: what goes around the version is told, or forbidden."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from sqlalchemy import DDL, column, delete, event, insert, lambda_stmt, or_, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, aliased, sessionmaker

from optilock import ConfigurationError, UnitOfWork, bulk_delete, bulk_update, client_wins, watch
from optilock.errors import UnguardedStatement, UnguardedStatementWarning
from optilock.statements import guard_statements, no_bump, unchanged
from tests.support.models import Account, Dog, Note, Page, Post, Ranked, Tag

ACCOUNTS, DOGS = Account.__table__, Dog.__table__
ALIAS, OTHER = ACCOUNTS.alias(), aliased(Account)

AROUND = [
    update(ACCOUNTS).values(owner="x"),
    update(ACCOUNTS).where(ACCOUNTS.c.id == 1).values(owner="x"),
    delete(ACCOUNTS).where(ACCOUNTS.c.id == 1),
    update(ALIAS).values(owner="x"),
    update(OTHER).values(owner="x"),
    delete(ALIAS).where(ALIAS.c.id == 1),
    update(DOGS).values(tricks="version"),
    insert(ACCOUNTS).prefix_with("OR REPLACE").values(id=1, balance=0),
    text("UPDATE dogs SET tricks = 'x'"),
    text("UPDATE accounts SET owner = 'x'"),
    text("update ACCOUNTS set owner = 'version' -- version"),
    text("/* version */ DELETE FROM accounts"),
    DDL("UPDATE accounts SET owner = 'x'"),
    update(Account).values(owner="x"),
    update(Account).values(balance=Account.balance * 2),
    update(Account).values(balance=Account.id + 2),
    update(Account).values(owner="x", balance=Account.balance + 2),
    delete(Account).where(Account.id == 1),
    update(Account).where(or_(Account.id == 1, Account.version == 1)).values(owner="x"),
    delete(ACCOUNTS).where(ACCOUNTS.c.version > 0),
    update(Dog).where(Dog.id == 1).values(tricks="x"),
    lambda_stmt(lambda: update(Account).values(owner="x")),
    select(Account).from_statement(delete(Account).where(Account.id == 1).returning(Account)),
]
PASSING = [
    update(ACCOUNTS).where(ACCOUNTS.c.version == 1).values(owner="x"),
    delete(ACCOUNTS).where(ACCOUNTS.c.version == 7),
    update(ACCOUNTS).values(owner="x", version=1 + ACCOUNTS.c.version),
    update(Account).where(Account.version == 1).values(owner="x"),
    update(Account).values(owner="x", version=Account.version + 1),
    update(Account).values(balance=Account.balance + 5),
    update(ACCOUNTS).values(balance=ACCOUNTS.c.balance - 5),
    update(Page).values(views=Page.views * 2),
    delete(Account).where(Account.id == 5, Account.version == 1),
    insert(ACCOUNTS).values(id=8),
    update(Tag.__table__).values(name="x"),
    text("UPDATE accounts SET owner = 'x', version = version + 1"),
    text("SELECT 'UPDATE accounts SET owner = 1'"),
    text("EXPLAIN UPDATE accounts SET owner = 'x'"),
    text("INSERT INTO accounts (id, balance, version) VALUES (9, 0, 1)"),
    select(Account),
]


@pytest.fixture
def rows(store):
    store(Account(id=1), Account(id=2), Tag(id=1), Dog(id=1), Page(id=1))


@pytest.mark.parametrize("statement", AROUND, ids=range(len(AROUND)))
def test_what_goes_around_the_version_is_forbidden(rows, engine, statement):
    """B1: forbid means forbid: of the class as of its table, and by Query."""
    guard_statements(engine, "forbid")
    with engine.connect() as connection, pytest.raises(UnguardedStatement, match="version"):
        connection.execute(statement)
    with Session(engine) as session, pytest.raises(UnguardedStatement):
        session.execute(statement)
    with engine.connect() as connection:
        assert set(connection.scalars(select(ACCOUNTS.c.owner))) == {None}


@pytest.mark.engines("postgresql")  # the others have no changes inside of a CTE
def test_what_is_inside_of_a_cte_is_seen(rows, engine):
    guard_statements(engine, "forbid")
    around = [
        update(ACCOUNTS).values(owner="x").returning(ACCOUNTS.c.id),
        update(DOGS).values(tricks="x").returning(DOGS.c.id),
        update(Dog).values(tricks="x").returning(Dog.id),
        update(Account).values(owner="x").returning(Account.version),
    ]
    with Session(engine) as session:
        for statement in around:
            with pytest.raises(UnguardedStatement, match="version"):
                session.execute(select(statement.cte()))
        seen = update(Account).where(Account.version == 1).values(owner="x")
        assert set(session.scalars(select(seen.returning(Account.version).cte()))) == {2}


@pytest.mark.parametrize("statement", PASSING, ids=range(len(PASSING)))
def test_what_compares_or_moves_it_passes(rows, engine, statement):
    guard_statements(engine, "forbid")
    with Session(engine) as session:
        session.execute(statement)
        session.commit()


#: It has to name the version of a new row, which says nothing of the version of a stored one.
UPSERT = "INSERT INTO accounts (id, balance, version) VALUES (1, 0, 1)"
READ_BY = {
    "sqlite": [
        r"UPDATE accounts SET owner = '\' WHERE note IS NULL OR note <> ' version '",
        "UPDATE 'accounts' SET owner = 'x'",
        "INSERT OR REPLACE INTO accounts (id, owner, balance, version) VALUES (1, 'x', 0, 1)",
        f"{UPSERT} ON CONFLICT (id) DO UPDATE SET owner = 'x'",
    ],
    "postgresql": [
        r"UPDATE accounts SET owner = E'\'' WHERE note IS NULL OR note <> ' version '",
        "UPDATE accounts SET owner = $$'$$ WHERE note IS NULL OR note <> ' version '",
        "/* /* */ version */ UPDATE accounts SET owner = 'x'",
        "DO $$ BEGIN UPDATE accounts SET owner = 'x'; END $$",
        f"{UPSERT} ON CONFLICT (id) DO UPDATE SET owner = 'x'",
        "UPDATE accounts SET owner = 'x' RETURNING version",
    ],
    "mariadb": [
        r"UPDATE accounts SET owner = '\'' WHERE note IS NULL OR note <> ' version '",
        "/*!50000 UPDATE accounts SET owner = 'x' */",
        "UPDATE accounts SET owner = 'x' # version",
        'UPDATE accounts SET owner = "version"',
        "SET STATEMENT max_statement_time = 9 FOR UPDATE accounts SET owner = 'x'",
        "EXECUTE IMMEDIATE 'UPDATE accounts SET owner = 1'",
        f"{UPSERT} ON DUPLICATE KEY UPDATE owner = 'x'",
        "REPLACE INTO accounts (id, owner, balance, version) VALUES (1, 'x', 0, 1)",
    ],
}


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(sql, marks=pytest.mark.engines(name))
        for name, texts in READ_BY.items()
        for sql in texts
    ],
)
def test_a_text_is_read_as_the_database_reads_it(rows, engine, sql):
    """Each of these does change the rows."""
    with engine.connect() as connection:
        connection.exec_driver_sql(sql)
        assert set(connection.scalars(select(ACCOUNTS.c.owner))) != {None}
    with watch(sessionmaker(engine), strict=True)() as strict:
        for send in (lambda: strict.execute(text(sql)), lambda: strict.scalar(text(sql))):
            with pytest.raises(UnguardedStatement):
                send()
        with pytest.raises(UnguardedStatement):
            strict.connection().exec_driver_sql(sql)
    guard_statements(engine, "forbid")
    with engine.connect() as connection, pytest.raises(UnguardedStatement):
        connection.exec_driver_sql(sql)


@pytest.mark.usually("sqlite-wal")
def test_what_is_stored_for_later_passes(rows, engine):
    """DDL writes no row, whatever its text has: it is the trigger that a write is then seen by."""
    name = engine.dialect.name
    body = {
        "sqlite": "BEGIN UPDATE accounts SET owner = 'x'; END",
        "mysql": "FOR EACH ROW BEGIN UPDATE accounts SET owner = 'x'; END",
    }
    guard_statements(engine, "forbid")
    with engine.begin() as connection:
        if name in body:
            connection.exec_driver_sql(f"CREATE TRIGGER t AFTER INSERT ON tags {body[name]}")
            connection.execute(text("DROP TRIGGER t"))
        quote = engine.dialect.identifier_preparer.quote_identifier
        connection.exec_driver_sql(
            f"CREATE VIEW v AS SELECT owner AS {quote('update accounts')} FROM accounts"
        )
        connection.exec_driver_sql("DROP VIEW v")


def test_a_warning_points_to_the_line(rows, engine):
    guard_statements(engine, "warn")
    with engine.begin() as connection, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        connection.execute(update(ACCOUNTS).values(owner="x"))
        connection.exec_driver_sql("DELETE FROM accounts")
    assert [one.category for one in told] == [UnguardedStatementWarning] * 2
    assert {one.filename for one in told} == {__file__}


def test_a_version_that_the_session_adds_is_none_that_the_program_names(rows, watched, engine):
    """B1: a watched session names the version in such a statement itself, which checks nothing."""
    guard_statements(engine, "forbid")
    session = watched()
    with pytest.raises(UnguardedStatement, match="Ranked"):
        session.execute(update(Ranked).values(rank=7))
    with pytest.raises(UnguardedStatement), no_bump(session):
        session.execute(update(Account).values(owner="x"))
    session.query(Account).filter_by(version=1).update({"owner": "x"})
    with pytest.raises(UnguardedStatement):
        session.query(Account).update({"owner": "x"})


@pytest.mark.parametrize("many", [1, 3])
def test_no_flush_of_ours_is_taken_for_one(store, watched, other, engine, many):
    store(*(Account(id=n) for n in range(many)), *(Note(id=n) for n in range(many)))
    store(Dog(id=1, name="a"), Page(id=1), Ranked(id=1, rank=1), Post(id=1, title="a"))
    other(Note, 0, text="theirs")
    guard_statements(engine, "forbid")
    session = watched(client_wins)
    for row in (*session.scalars(select(Account)), session.get_one(Ranked, 1)):
        setattr(row, "rank" if type(row) is Ranked else "balance", 7)
    for note in session.scalars(select(Note)):
        note.text = "mine"
    session.get_one(Dog, 1).tricks = "sit"
    session.get_one(Page, 1).views = 7
    session.commit()
    for row in (*session.scalars(select(Account)), session.get_one(Post, 1)):
        session.delete(row)
    session.commit()


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("many", [1, 3])
def test_no_correction_of_ours_is_taken_for_one(store, watched, other, engine, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched(client_wins)
    for row in session.scalars(select(Account)):
        row.owner = "mine"
    other(Account, 0, owner="theirs")
    guard_statements(engine, "forbid")
    session.commit()


def test_bulk_calls_and_unchanged_pass(rows, watched, engine):
    guard_statements(engine, "forbid")
    session = watched()
    account = session.get_one(Account, 1)
    session.execute(update(ACCOUNTS).where(unchanged(account)).values(owner="x", version=2))
    given = [{"id": n, "version": 3 - n, "owner": "y"} for n in (1, 2)]
    assert bulk_update(session, Account, given).conflicts == ()
    assert bulk_delete(session, Account, [{"id": 1, "version": 3}]).conflicts == ()


def test_bad_input_is_refused(engine):
    with pytest.raises(ConfigurationError, match="mode"):
        guard_statements(engine, "maybe")
    with pytest.raises(ConfigurationError, match="Engine"):
        guard_statements("sqlite://")


@pytest.mark.engines("sqlite", "postgresql")
def test_upserts_that_leave_the_version_or_set_the_first_one_are_found(rows, engine):
    insert = (postgresql if engine.dialect.name == "postgresql" else sqlite).insert

    def upsert(subject, *names, **values):
        made = insert(subject)
        new = {name: made.excluded[name] for name in names} | values
        return made.on_conflict_do_update(index_elements=["id"], set_=new)

    row = {"id": 1, "owner": "x", "balance": 0}
    guard_statements(engine, "forbid")
    with Session(engine) as session:
        for subject in (Account, ACCOUNTS):
            for around in (upsert(subject, "owner"), upsert(subject, "owner", "version")):
                for params in ({}, [row, {**row, "id": 2}]):
                    with pytest.raises(UnguardedStatement, match="upsert"):
                        session.connection().execute(around, params or row)
                with pytest.raises(UnguardedStatement, match="upsert"):
                    Session.execute(session, around.values(row))
            session.execute(upsert(subject, "owner", version=ACCOUNTS.c.version + 1).values(row))
            with pytest.raises(UnguardedStatement, match="upsert"):  # the row may have it already
                session.execute(upsert(subject, "version").values({**row, "version": 3}))
        with pytest.raises(UnguardedStatement, match="upsert"):
            session.connection().execute(upsert(ACCOUNTS, "version"), [{**row, "version": 3}])


@pytest.mark.engines("mariadb")
def test_an_update_of_several_tables_is_found_for_each_of_them(rows, engine):
    guard_statements(engine, "forbid")
    tags = Tag.__table__
    several = update(tags).where(tags.c.id == ACCOUNTS.c.id)
    with engine.connect() as connection:
        with pytest.raises(UnguardedStatement, match="UPDATE of accounts"):
            connection.execute(several.values({tags.c.name: "x", ACCOUNTS.c.owner: "x"}))
        connection.execute(several.values({tags.c.name: ACCOUNTS.c.owner}))


def test_a_column_without_a_table_is_one_of_the_statements_table(rows, engine):
    """So SQLAlchemy takes ``column("owner")``, and a text."""
    sessions = watch(sessionmaker(engine), strict=True)
    unseen = update(Account).values({column("owner"): "x"})
    with sessions() as session:
        for statement in (unseen, update(ACCOUNTS).values({column("owner"): "x"})):
            with pytest.raises(UnguardedStatement):
                session.execute(statement)
        session.execute(unseen.where(Account.id == 1, Account.version == 1))
        session.commit()
        assert session.scalars(select(Account.owner).order_by(Account.id)).all() == ["x", None]


def test_an_option_of_the_programs_own_switches_nothing_off(store, engine):
    store(Account(id=1))
    guard_statements(engine, "forbid")
    statement = update(Account.__table__).values(owner="mine")
    for cache in (None, {}):
        with engine.connect() as connection, pytest.raises(UnguardedStatement):
            connection.execution_options(compiled_cache=cache).execute(statement)


# -- watched sessions that were not told -----------------------------------------------------------


def warned(watched: Any, send: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with watched() as session:
            send(session)
            session.rollback()
    assert {one.category for one in found} <= {UnguardedStatementWarning}
    assert {one.filename for one in found} <= {__file__}
    return [str(one.message) for one in found]


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_a_session_that_was_not_told_warns_once_for_each_class_and_kind(engine, account):
    """With strict=False it is silent, and what compares the version warns of nothing."""
    table = account.__table__
    by_all = {
        "UPDATE": lambda session: session.execute(update(account).values(owner="x")),
        "DELETE": lambda session: session.execute(delete(account)),
        "table": lambda session: session.execute(update(table).values(owner="x")),
        "text": lambda session: session.execute(text("UPDATE accounts SET owner = 'x'")),
        "driver": lambda session: session.connection().exec_driver_sql("DELETE FROM accounts"),
    }
    sessions = watch(sessionmaker(engine))
    told = [warned(sessions, send) for send in by_all.values()]
    assert [len(one) for one in told] == [1] * 5
    assert "strict=True" in told[0][0]
    assert [warned(sessions, send) for send in by_all.values()] == [[]] * 5

    silent = watch(sessionmaker(engine), strict=False)
    assert [warned(silent, send) for send in by_all.values()] == [[]] * 5
    again = watch(sessionmaker(engine, class_=silent.class_))
    assert warned(again, by_all["UPDATE"]) == []

    def compares(session: Session) -> None:
        found = session.get_one(account, 1)
        session.execute(update(account).where(unchanged(found)).values(owner="x"))
        session.execute(update(account).values(balance=account.balance + 1))
        session.execute(text("SELECT 1"))
        session.get_one(account, 2).owner = "y"
        session.flush()

    assert warned(watch(sessionmaker(engine)), compares) == []


@pytest.mark.engines("sqlite-wal")
def test_listeners_of_a_flush_and_units_warn_as_well(engine, account):
    sessions = watch(sessionmaker(engine))

    @event.listens_for(sessions, "after_flush")
    def after_flush(session: Session, context: Any) -> None:
        session.connection().execute(update(account.__table__).values(note="x"))

    def edits(session: Session) -> None:
        session.get_one(account, 1).owner = "x"
        session.flush()

    assert len(warned(sessions, edits)) == 1

    def in_a_unit(session: Session) -> None:
        with UnitOfWork(sessions, strict=False, propagation="independent") as ours:
            ours.execute(delete(account))
        with UnitOfWork(sessions, propagation="independent") as ours:
            ours.execute(delete(account))

    assert len(warned(sessions, in_a_unit)) == 1


@pytest.mark.engines("sqlite-wal")
def test_a_warning_that_is_an_error_comes_before_the_statement(engine, account, stored):
    sessions = watch(sessionmaker(engine))
    for _ in range(2):
        with warnings.catch_warnings(), sessions() as session:
            warnings.simplefilter("error")
            with pytest.raises(UnguardedStatementWarning):
                session.execute(delete(account))
            session.commit()
    assert stored(account, 1)["owner"] == "Ada"
