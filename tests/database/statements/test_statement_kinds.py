"""Statements of every kind and class: ``unchanged``, rows in bulk, upserts."""

from __future__ import annotations

import pytest
import sqlalchemy
from sqlalchemy import (
    Integer,
    bindparam,
    delete,
    event,
    insert,
    lambda_stmt,
    select,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import (
    Mapped,
    Session,
    aliased,
    mapped_column,
    sessionmaker,
    with_loader_criteria,
)

from optilock import ConcurrencyError, ConfigurationError, Versioned, watch
from optilock.statements import no_bump, unchanged
from optilock.testing import count_statements
from optilock.tokens import Timestamp
from optilock.tokens.timestamp import NextServerTime
from tests.support.models import (
    Account,
    Animal,
    Base,
    Car,
    Dog,
    Manager,
    Native,
    Note,
    Page,
    Vehicle,
    key,
)


class Worded(Base):
    """A native version that only Python can move."""

    __tablename__ = "kinds_worded"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    revision: Mapped[str] = mapped_column()
    __mapper_args__ = {
        "version_id_col": revision,
        "version_id_generator": lambda before: f"{before or ''}x",
    }


class Timed(Versioned, Base):
    __tablename__ = "kinds_timed"
    __version_token__ = Timestamp(name="changed_at")
    id: Mapped[int] = key()
    text: Mapped[str | None]


def versions(engine, model=Account):
    key = model.__mapper__.version_id_col
    with Session(engine) as session:
        return list(session.scalars(select(key).order_by(model.id)))


@pytest.mark.parametrize("strategy", ["auto", "evaluate", "fetch"])
@pytest.mark.parametrize("model", [Account, Note, Native, Manager])
def test_objects_in_the_session_are_kept_right(store, watched, engine, model, strategy):
    name = "text" if model in (Note, Native) else "name" if model is Manager else "owner"
    store(model(id=1))
    session = watched()
    obj = session.get_one(model, 1)
    if strategy == "fetch" and engine.dialect.name == "mysql":
        strategy = "auto"
    statement = update(model).where(model.id == 1).values({name: "mine"})
    session.execute(statement, execution_options={"synchronize_session": strategy})
    [stored] = session.scalars(select(model.__mapper__.version_id_col))
    key = "revision" if model is Native else "version"

    assert getattr(obj, key) == stored
    setattr(obj, name, "again")
    session.commit()  # no conflict with itself
    assert getattr(obj, name) == "again"


def test_a_select_is_left_alone(store, watched, engine):
    store(Account(id=1))
    session = watched()
    with count_statements(engine) as sent:
        assert session.scalar(select(Account.owner)) is None
        assert session.scalars(select(Account)).one().id == 1
        assert session.execute(select(Account.id)).all() == [(1,)]
    assert sent.count == 3


def test_unchanged_holds_while_the_row_is_as_it_was_loaded(store, watched, other, engine):
    store(*(Account(id=n) for n in range(3)))
    session = watched()
    accounts = session.scalars(select(Account).order_by(Account.id)).all()
    session.execute(delete(Account).where(unchanged(accounts[2])))
    session.commit()
    for account in accounts[:2]:
        session.refresh(account)
    condition = unchanged(*accounts[:2])
    session.commit()
    other(Account, 1, note="theirs")
    session.execute(update(Account).where(condition).values(owner="mine"))
    session.commit()
    assert versions(engine) == [2, 2]
    assert session.scalars(select(Account.owner).order_by(Account.id)).all() == ["mine", None]


def test_unchanged_needs_loaded_objects(store, watched):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    for wrong in ((), (Account(id=5),), (object(),)):
        with pytest.raises(ConfigurationError, match="unchanged"):
            unchanged(*wrong)
    session.commit()
    with pytest.raises(ConfigurationError, match="not loaded"):
        unchanged(account)


def test_rows_in_bulk_get_their_first_version(watched, tables, engine):
    """SA-06, SA-54"""
    tables(Account)
    session = watched()
    session.execute(insert(Account), [{"id": 1}, {"id": 2}])
    session.bulk_insert_mappings(Account, [{"id": 3}])
    session.bulk_save_objects([Account(id=4)])
    session.commit()
    assert versions(engine) == [1, 1, 1, 1]


def test_an_object_saved_in_bulk_can_be_saved_again(store, watched, engine):
    store(Account(id=1), Note(id=1))
    session = watched()
    account, note = session.get_one(Account, 1), session.get_one(Note, 1)
    account.owner = note.text = "mine"
    session.bulk_save_objects([account, note])
    account.owner = note.text = "again"
    session.commit()
    assert versions(engine) == [3]


def upsert(engine, model=Account, given=None, name="owner", **values):
    """``given`` are values of the new row; ``"excluded"`` is the new row's value of a column."""
    new = {"id": 1, name: "mine", **(given or {})} if name else {}
    if engine.dialect.name in ("mysql", "mariadb"):
        made = mysql.insert(model).values(new)
        return made.on_duplicate_key_update(**_of_new_row(values, made.inserted))
    made = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert(model).values(new)
    values = _of_new_row(values, made.excluded)
    return made.on_conflict_do_update(index_elements=["id"], set_=values)


def _of_new_row(values, row):
    return {n: row[n] if type(v) is str and v == "excluded" else v for n, v in values.items()}


def test_an_upsert_that_leaves_the_version_is_refused(store, watched, engine):
    store(Account(id=1))
    session = watched()
    with pytest.raises(ConfigurationError, match="upsert"):
        session.execute(upsert(engine, owner="mine"))
    session.execute(upsert(engine, owner="mine", version=Account.version + 1))
    session.commit()
    assert versions(engine) == [2]


@pytest.mark.parametrize(("model", "name"), [(Account, "owner"), (Timed, "text")])
def test_an_upsert_to_the_first_version_of_a_new_row_is_refused(
    store, watched, engine, stored, model, name
):
    """``excluded.version`` is 1: a row in version 1 would be changed and stay in it."""
    store(model(id=1))
    version = model.__mapper__.version_id_col.key
    statement = upsert(engine, model, name=name, **{name: "excluded", version: "excluded"})
    with pytest.raises(ConfigurationError, match="not to that of the new row"):
        watched().execute(statement)
    if model is Account:  # SQLAlchemy stores the first version, whatever rows say
        rows = [{"id": 1, "owner": "mine", "version": 1}]
        statement = upsert(engine, model, {}, None, owner="excluded", version="excluded")
        with pytest.raises(ConfigurationError, match="not to that of the new row"):
            watched().execute(statement, rows)
    assert stored(model, 1)[name] is None


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("target", [Account, Account.__table__], ids=["class", "table"])
def test_an_upsert_of_a_version_that_the_program_gives_moves_to_the_next_one(
    store, engine, stored, strict, target
):
    """A row that was exported comes back in the version that it has."""
    store(Account(id=1))
    sessions = watch(sessionmaker(engine), strict=strict)
    given = [
        upsert(engine, target, {"version": 1}, owner="x", version="excluded"),
        upsert(engine, target, owner="x", version=2),
        upsert(engine, target, owner="x", version=bindparam(None, 3, Integer)),
        upsert(engine, target, owner="x", version=Account.__table__.c.version),
    ]
    for version, statement in enumerate(given, 1):
        with sessions(expire_on_commit=False) as session:
            reader = session.get_one(Account, 1)
            session.commit()
            with sessions.begin() as other:
                other.execute(statement)
            assert stored(Account, 1)["version"] == version + 1
            reader.note = "mine"
            with pytest.raises(ConcurrencyError):
                session.commit()
    with sessions() as session:
        session.connection().execute(given[1])
        session.commit()
    assert versions(engine) == [6]


def test_an_upsert_to_a_random_version_passes(store, watched, engine, stored):
    store(Note(id=1))
    before = stored(Note, 1)["version"]
    session = watched()
    session.execute(upsert(engine, Note, name="text", text="excluded", version="excluded"))
    session.commit()
    after = stored(Note, 1)["version"]
    assert after != before
    session.execute(upsert(engine, Note, {"version": after}, name="text", version="excluded"))
    session.commit()
    assert stored(Note, 1)["version"] not in (before, after)


def test_an_upsert_of_a_time_is_told_how_to_move_it(store, watched, engine, stored):
    store(Timed(id=1))
    before = stored(Timed, 1)["changed_at"]
    session = watched()
    with pytest.raises(ConfigurationError, match=r"NextServerTime\(Timed.changed_at\)"):
        session.execute(upsert(engine, Timed, name="text", text="excluded"))
    following = NextServerTime(Timed.changed_at)
    statement = upsert(engine, Timed, name="text", text="excluded", changed_at=following)
    session.execute(statement)
    session.commit()
    assert stored(Timed, 1)["changed_at"] > before


@pytest.mark.engines("sqlite", "postgresql")
def test_a_change_inside_of_from_statement_is_refused(store, watched, engine, stored):
    """SQLAlchemy brings no object up to date after it, and refuses nothing."""
    store(Account(id=1))
    session = watched()
    for statement in (update(Account).values(owner="x"), upsert(engine, owner="x")):
        inside = select(Account).from_statement(statement.returning(Account))
        with pytest.raises(ConfigurationError, match="Nothing was sent"):
            session.scalars(inside)
    assert stored(Account, 1)["owner"] is None
    good = upsert(engine, owner="x", version=Account.version + 1).returning(Account)
    assert session.scalars(select(Account).from_statement(good)).one().owner == "x"


@pytest.mark.skipif(
    sqlalchemy.__version__.startswith("2.0."), reason="SQLAlchemy 2.0 makes no lambda of it"
)
@pytest.mark.engines("sqlite", "postgresql")
def test_a_change_inside_of_a_lambda_of_from_statement_is_refused(store, watched):
    store(Account(id=1))
    inside = select(Account).from_statement(update(Account).values(owner="x").returning(Account))
    with pytest.raises(ConfigurationError, match="Nothing was sent"):
        watched().execute(lambda_stmt(lambda: inside))


def test_a_native_version_moves_with_a_statement(store, watched, stored, other):
    """SQLAlchemy leaves it: its column has no ``onupdate``."""
    store(Native(id=1, text="a"))
    session = watched()
    session.execute(update(Native).values(text="mine"))
    session.execute(update(Native).values(revision=9))  # a given one is none
    with no_bump(session):
        session.execute(update(Native).values(text="again"))
    session.commit()
    assert stored(Native, 1)["revision"] == 3
    session.execute(update(Native).values({Native.text: "mine"}))
    session.commit()
    assert stored(Native, 1)["revision"] == 4


def test_a_native_version_that_a_statement_cannot_move_is_refused(store, watched, engine):
    store(Worded(id=1), Native(id=1))
    session = watched()
    ordered = update(Native).ordered_values((Native.text, "mine"))
    with count_statements(engine) as sent:
        for statement in (update(Worded).values(text="mine"), ordered):
            with pytest.raises(ConfigurationError, match=r"'revision'.*Nothing was sent"):
                session.execute(statement)
    assert sent.count == 0
    session.execute(update(Worded).values(text="mine", revision="xx"))
    session.execute(update(Native).ordered_values((Native.text, "mine"), (Native.revision, 2)))


def test_ordered_values_move_the_version_also_of_ignored_columns(store, watched, stored):
    """Nothing can be added to such a statement, and the version moves rather than not."""
    store(Page(id=1))
    session = watched()
    session.execute(update(Page).ordered_values((Page.views, 5)))
    with no_bump(session):
        session.execute(update(Page).ordered_values((Page.body, "mine")))
    session.commit()
    assert stored(Page, 1)["version"] == 3


def alias_of(model):
    table = model.__table__.alias()
    return [update(aliased(model)).values(owner="mine"), update(table).values(owner="mine")]


def test_an_update_of_an_alias_is_refused(store, watched, engine):
    store(Account(id=1))
    session = watched()
    with count_statements(engine) as sent:
        for statement in alias_of(Account):
            with pytest.raises(ConfigurationError, match="alias of accounts"):
                session.execute(statement)
        with pytest.raises(ConfigurationError, match="alias of accounts"):
            session.query(aliased(Account)).update({"owner": "mine"})
    assert sent.count == 0


def test_an_update_of_a_childs_table_is_refused(store, watched, engine):
    """Its version is in the parent's table."""
    store(Dog(id=1), Car(id=1))
    session = watched()
    dogs, vehicles = Dog.__table__, Vehicle.__table__
    with count_statements(engine) as sent:
        for statement in (update(dogs).values(tricks="x"), update(dogs.alias()).values(tricks="x")):
            with pytest.raises(ConfigurationError, match=r"update\(Dog\)"):
                session.execute(statement)
        with pytest.raises(ConfigurationError, match=r"update\(Vehicle\)"):
            session.execute(update(vehicles).values(name="x"))
    assert sent.count == 0


def test_a_parents_columns_move_the_version_in_the_childs_table(store, watched, stored, refused):
    store(Vehicle(id=1), Car(id=2), Car(id=3))
    session, late = watched(), watched()
    first, last = session.get_one(Car, 2), late.get_one(Car, 2)
    late.commit()
    session.execute(update(Vehicle).where(Vehicle.id < 3).values(name="mine"))
    assert first.version == 2
    first.doors = 5
    session.commit()
    assert [stored(Car, n)["version"] for n in (2, 3)] == [3, 1]
    last.doors = 3
    refused(late)


def test_a_statement_in_a_lambda_leaves_older_objects_to_conflict(store, watched, other, refused):
    store(Account(id=1, owner="Ada"))
    session = watched()
    account = session.get_one(Account, 1)
    session.expunge(account)
    session.rollback()
    other(Account, 1, owner="theirs")
    session.add(account)
    session.execute(lambda_stmt(lambda: update(Account).values(balance=5)))
    account.owner = "mine"
    refused(session)


def test_an_insert_that_replaces_rows_is_refused(store, watched, engine):
    store(Account(id=1))
    session = watched()
    for target in (Account, Account.__table__):
        with pytest.raises(ConfigurationError, match="first version"):
            session.execute(insert(target).prefix_with("OR REPLACE").values(id=1))


def test_an_upsert_of_the_table_is_refused_as_well(store, watched, engine):
    store(Account(id=1))
    session = watched()
    new, table = {"id": 1, "owner": "mine"}, Account.__table__
    if engine.dialect.name in ("mysql", "mariadb"):
        statement = mysql.insert(table).values(new).on_duplicate_key_update(owner="mine")
    else:
        made = sqlite if engine.dialect.name == "sqlite" else postgresql
        statement = made.insert(table).values(new)
        statement = statement.on_conflict_do_update(index_elements=["id"], set_={"owner": "mine"})
    with pytest.raises(ConfigurationError, match=r"accounts\.version"):
        session.execute(statement)


def test_all_columns_of_a_joined_child_move_the_version_once(store, watched, stored, engine):
    """Only MariaDB updates two tables with one statement."""
    if engine.dialect.name not in ("mysql", "mariadb"):
        pytest.skip("the database updates one table at a time")
    store(Dog(id=1), Dog(id=2))
    session = watched()
    dog = session.get_one(Dog, 1)
    session.execute(update(Dog).where(Dog.id == Animal.id).values(name="mine", tricks="mine"))
    dog.tricks = "again"
    session.commit()
    assert (stored(Dog, 1)["version"], stored(Dog, 2)["version"]) == (3, 2)


@pytest.mark.parametrize("how", ["option", "listener", "limit"])
def test_a_row_that_the_statement_left_alone_keeps_its_version(
    store, watched, other, refused, engine, how
):
    """An object that took over a version which was not made would miss who makes it."""
    store(Account(id=1, owner="Ada"), Account(id=2))
    session = watched(expire_on_commit=False)
    accounts = session.scalars(select(Account).order_by(Account.id.desc())).all()
    statement = update(Account).values(balance=5)
    none = with_loader_criteria(Account, Account.id == 2)
    if how == "option":
        statement = statement.options(none)
    elif how == "limit":
        if engine.dialect.name not in ("mysql", "mariadb"):
            pytest.skip("only MariaDB limits an UPDATE")
        statement = statement.with_dialect_options(mysql_limit=1, mariadb_limit=1)
        accounts.reverse()
    else:
        event.listen(
            session,
            "do_orm_execute",
            lambda now: setattr(now, "statement", now.statement.options(none)),
        )
    session.execute(statement)
    written, left = accounts
    session.commit()
    assert (written.version, left.version) == (2, 1)
    other(Account, left.id, owner="theirs")
    left.owner = "mine"
    refused(session)
