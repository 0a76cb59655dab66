"""Statements of every kind and class: ``unchanged``, rows in bulk, upserts."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, insert, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Session

from optilock import ConfigurationError, unchanged
from optilock.testing import count_statements
from tests.models import Account, Manager, Native, Note


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


def upsert(engine, **values):
    new = {"id": 1, "owner": "mine"}
    if engine.dialect.name in ("mysql", "mariadb"):
        return mysql.insert(Account).values(new).on_duplicate_key_update(**values)
    made = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert(Account).values(new)
    return made.on_conflict_do_update(index_elements=["id"], set_=values)


def test_an_upsert_that_leaves_the_version_is_refused(store, watched, engine):
    store(Account(id=1))
    session = watched()
    with pytest.raises(ConfigurationError, match="upsert"):
        session.execute(upsert(engine, owner="mine"))
    session.execute(upsert(engine, owner="mine", version=Account.version + 1))
    session.commit()
    assert versions(engine) == [2]
