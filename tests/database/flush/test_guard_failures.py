"""Where nobody could tell, or the database refuses: an error, never silence."""

from __future__ import annotations

import pytest
from sqlalchemy import event, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    client_wins,
    is_transient,
    store_wins,
    watch,
)
from optilock.errors import NotWritten
from tests.support.models import Account, Note, Ranked, Stamped

pytestmark = pytest.mark.modes(full=True)

rows = pytest.mark.parametrize("count", [1, 3])


# -- a row that is matched, and not written -------------------------------------------------------


def keep_row_2_from(engine, what):
    """A trigger that lets every write of row 2 fall under the table."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(
                text(
                    "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                    " IF OLD.id = 2 THEN RETURN NULL; END IF;"
                    " IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$"
                )
            )
            connection.execute(
                text(
                    f"CREATE TRIGGER keep BEFORE {what} ON accounts"
                    " FOR EACH ROW EXECUTE FUNCTION keep()"
                )
            )
        else:
            connection.execute(
                text(
                    f"CREATE TRIGGER keep BEFORE {what} ON accounts WHEN OLD.id = 2"
                    " BEGIN SELECT RAISE(IGNORE); END"
                )
            )


@pytest.fixture
def kept(engine):
    yield lambda what: keep_row_2_from(engine, what)
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.execute(text("DROP FUNCTION keep() CASCADE"))


@pytest.mark.engines("postgresql", "sqlite")
@pytest.mark.parametrize("resolver", [None, client_wins, store_wins])
@pytest.mark.parametrize("ids", [(2,), (1, 2, 3)])
@pytest.mark.parametrize("write", ["UPDATE", "DELETE"])
def test_a_write_that_a_trigger_swallows_is_an_error(
    store, watched, stored, kept, write, ids, resolver
):
    store(*(Account(id=n, owner="a") for n in ids))
    kept(write)
    session = watched(resolver)
    for row in session.scalars(select(Account)):
        if write == "DELETE":
            session.delete(row)
        else:
            row.owner = "ours"
    with pytest.raises(NotWritten, match="this is no conflict") as caught:
        session.commit()
    assert not is_transient(caught.value)
    session.rollback()

    assert [stored(Account, n)["owner"] for n in ids] == ["a"] * len(ids)


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("ids", [(2,), (1, 2, 3)])
def test_rows_that_a_policy_hides_are_told_as_gone(store, engine, watched_on, database, ids):
    """Row security: we may read the row, and may not write it."""
    store(*(Account(id=n, owner="a") for n in ids))
    with engine.begin() as connection:
        schema = connection.scalar(text("SELECT quote_ident(current_schema())"))
        for sql in (
            "DROP ROLE IF EXISTS reader",
            "CREATE ROLE reader",
            "GRANT ALL ON accounts TO reader",
            f"GRANT USAGE ON SCHEMA {schema} TO reader",
            "ALTER TABLE accounts ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY see ON accounts FOR SELECT USING (true)",
            "CREATE POLICY change ON accounts FOR UPDATE USING (id <> 2)",
        ):
            connection.execute(text(sql))
    try:
        session = watched_on(engine)
        session.execute(text("SET LOCAL ROLE reader"))
        for row in session.scalars(select(Account)):
            row.owner = "ours"
        with pytest.raises(StaleDataError):
            session.flush()
        session.rollback()
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY reader"))
            connection.execute(text("DROP ROLE reader"))


# -- versions that cannot be compared -------------------------------------------------------------


@pytest.fixture
def no_version(engine):
    """Rows that are older than the version column."""

    def no_version(*ids):
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS accounts"))
            connection.execute(
                text(
                    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner VARCHAR(60),"
                    " balance INTEGER, note VARCHAR(60), version BIGINT)"
                )
            )
            for n in ids:
                connection.execute(
                    text(f"INSERT INTO accounts VALUES ({n}, 'a', 1, NULL, {version_of(n)})")
                )

    return no_version


def version_of(n):
    return "NULL" if n == 2 else "1"


@pytest.mark.parametrize("ids", [(2,), (1, 2, 3)])
@pytest.mark.parametrize("resolver", [None, client_wins])
def test_a_row_without_a_version_cannot_be_checked_and_keeps_its_edits(
    no_version, watched, ids, resolver
):
    """RL-18, RL-20, RL-21, trap 11, EX-15"""
    no_version(*ids)
    session = watched(resolver)
    for row in session.scalars(select(Account)):
        row.owner = "ours"
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"accounts\.version is NULL") as caught:
            session.flush()

    assert "Account (2,)" in str(caught.value)
    assert "UPDATE accounts SET version = 1 WHERE version IS NULL" in str(caught.value)
    assert session.is_active
    assert [(row.id, row.owner) for row in session.dirty] == [(2, "ours")]
    session.rollback()


@pytest.mark.parametrize("ids", [(2,), (1, 2, 3)])
def test_a_row_without_a_version_is_not_deleted(no_version, watched, stored, ids):
    """RL-18, RL-21, EC-03, trap 11"""
    no_version(*ids)
    session = watched()
    for row in session.scalars(select(Account)):
        session.delete(row)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="SET version = 1 WHERE version IS NULL"):
            session.flush()
    assert session.is_active
    assert 2 in [row.id for row in session.deleted]
    session.rollback()

    assert (stored(Account, 2)["owner"], stored(Account, 2)["version"]) == ("a", None)


def test_a_repaired_table_goes_on(no_version, watched, stored, engine):
    """EX-15"""
    no_version(1, 2)
    session = watched()
    session.execute(text("UPDATE accounts SET version = 1 WHERE version IS NULL"))
    for row in session.scalars(select(Account)):
        row.owner = "ours"
    session.commit()

    assert [stored(Account, n)["version"] for n in (1, 2)] == [2, 2]


# -- drivers that cannot count --------------------------------------------------------------------


def test_a_driver_that_cannot_count_is_refused_when_it_is_watched(engine, monkeypatch):
    """SA-13"""
    monkeypatch.setattr(engine.dialect, "supports_sane_rowcount", False)

    with pytest.raises(ConfigurationError, match="how many rows"):
        watch(sessionmaker(engine))


@rows
@pytest.mark.parametrize("delete", [False, True])
def test_a_driver_that_cannot_count_is_refused_when_it_writes(
    store, watched_on, engine, stored, monkeypatch, count, delete
):
    """SA-13: the session is bound late, so ``watch`` cannot know."""
    store(*(Account(id=n, owner="a") for n in range(count)))
    session = watched_on(None)
    session.bind = engine
    for row in session.scalars(select(Account)):
        if delete:
            session.delete(row)
        else:
            row.owner = "ours"
    monkeypatch.setattr(engine.dialect, "supports_sane_rowcount", False)
    with pytest.raises(ConfigurationError, match="how many rows"):
        session.flush()
    session.rollback()

    assert stored(Account, 0)["owner"] == "a"


@rows
@pytest.mark.parametrize("delete", [False, True])
def test_a_driver_that_cannot_add_up_is_counted_row_by_row(
    store, watched, other, refused, stored, engine, monkeypatch, count, delete
):
    """SA-12, SA-53: asyncpg, some drivers of MariaDB: ``executemany`` has no row count there."""
    monkeypatch.setattr(engine.dialect, "supports_sane_multi_rowcount", False)
    store(*(Note(id=n, text="a") for n in range(count)))
    session = watched()
    for row in session.scalars(select(Note)):
        if delete:
            session.delete(row)
        else:
            row.text = "ours"
    other(Note, 0, text="theirs")
    error = refused(session)
    session.rollback()

    assert [e.identity for e in error.entries] == [(0,)]
    assert stored(Note, 0)["text"] == "theirs"


# -- errors of the database -----------------------------------------------------------------------


@rows
def test_a_violated_constraint_rolls_back_as_without_the_guard(store, watched, stored, count):
    store(*(Ranked(id=n, rank=n) for n in range(count)), Ranked(id=9, rank=100))
    session = watched()
    for row in session.scalars(select(Ranked).where(Ranked.id < 9)):
        row.rank = 100
    with pytest.raises(IntegrityError) as caught:
        session.flush()

    assert not isinstance(caught.value, ConcurrencyError)
    assert not session.is_active
    session.rollback()
    assert session.is_active
    assert [stored(Ranked, n)["rank"] for n in range(count)] == list(range(count))


def test_a_violated_constraint_in_a_savepoint_takes_back_no_more_than_the_savepoint(
    store, watched, stored
):
    store(Account(id=1, owner="a"))
    session = watched()
    session.get(Account, 1).owner = "written before the savepoint"
    savepoint = session.begin_nested()
    session.execute(insert(Account).values(id=2, owner="b", version=1))
    session.add(Account(id=2, owner="c"))
    with pytest.raises(IntegrityError):
        session.commit()
    savepoint.rollback()
    session.commit()

    assert stored(Account, 1)["owner"] == "written before the savepoint"
    assert stored(Account, 2) is None


def test_an_error_of_a_python_onupdate_is_the_error(store, watched, stored, monkeypatch):
    store(Stamped(id=1, name="a"), Stamped(id=2, name="a"))
    monkeypatch.setattr(Stamped.__table__.c.called.onupdate, "arg", broken)
    session = watched()
    for row in session.scalars(select(Stamped)):
        row.name = "b"
    with pytest.raises(Exception, match="mine"):
        session.flush()
    session.rollback()

    assert stored(Stamped, 1)["name"] == "a"


def broken(context):
    raise KeyError("mine")


def test_an_error_of_a_listener_leaves_a_session_that_can_be_rolled_back(store, watched, stored):
    store(Account(id=1, owner="a"), Account(id=2, owner="a"))
    session = watched()
    for row in session.scalars(select(Account)):
        row.owner = "b"

    @event.listens_for(session, "after_flush")
    def after_flush(session, uow):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        session.flush()
    session.rollback()
    event.remove(session, "after_flush", after_flush)

    connection = session.connection()
    assert connection.scalar(select(Account.owner).where(Account.id == 1)) == "a"
    session.get_one(Account, 1).owner = "c"
    session.commit()
    assert stored(Account, 1)["owner"] == "c"


def test_a_connection_that_is_gone_is_its_own_error(store, watched, engine):
    if engine.dialect.name == "sqlite":
        pytest.skip("a file has no server to lose")
    store(Account(id=1, owner="a"), Account(id=2, owner="a"))
    session = watched()
    for row in session.scalars(select(Account)):
        row.owner = "b"
    session.connection().connection.dbapi_connection.close()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        session.flush()
    session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)
    with Session(engine) as reader:
        assert reader.get_one(Account, 1).owner == "a"


@pytest.mark.engines("postgresql")
def test_a_row_that_could_not_be_read_is_not_told_as_deleted(store, watched, other, engine):
    """Somebody holds a lock on the row that missed: what is stored is not known."""
    store(Account(id=1, owner="Ada"))
    session = watched()
    session.execute(text("SET LOCAL lock_timeout = '50ms'"))
    session.get_one(Account, 1).owner = "mine"
    other(Account, 1, owner="theirs")
    with engine.connect() as somebody:
        somebody.execute(text("SELECT 1 FROM accounts WHERE id = 1 FOR UPDATE"))
        with pytest.raises(OperationalError, match="lock timeout"):
            session.flush()
