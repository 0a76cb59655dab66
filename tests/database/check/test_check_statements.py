"""``optilock check`` asks the catalogue a few times for each schema, not for each table."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from sqlalchemy import String, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.check import check
from optilock.tokens import Counter, Unique
from tests.support.migrating import migrate

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@contextmanager
def statements(engine):
    sent = []

    def note(connection, cursor, statement, *_):
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def guarded(number, token, engine):
    """That many tables, each with a guard trigger, as migrations make them."""

    class Base(DeclarativeBase):
        pass

    def model(n):
        body = {
            "__tablename__": f"ck_many_{n}",
            "__version_token__": token,
            "__version_guard__": "bump",
            "__version_ignore__": ("views",),
            "__annotations__": {"id": Mapped[int], "title": Mapped[str], "views": Mapped[int]},
            "id": mapped_column(primary_key=True),
            "title": mapped_column(String(20)),
        }
        return type(f"Many{n}", (Versioned, Base), body)

    Base.kept = [model(n) for n in range(number)]
    Base.metadata.create_all(engine)

    def guard(op):
        for cls in Base.kept:
            name = cls.__tablename__
            op.create_guard_trigger(name, token, "bump", ignore=["views"], columns=["title", "id"])

    migrate(engine, guard)
    return Base


@pytest.mark.usually("sqlite-wal")
@pytest.mark.parametrize("token", [Counter(), Unique()], ids=["counter", "unique"])
@pytest.mark.full
def test_two_hundred_guarded_tables_take_fewer_than_twenty_statements(engine, token):
    base = guarded(200, token, engine)
    try:
        check(base.kept[:1], engine)  # what SQLAlchemy asks once of a new engine
        with statements(engine) as sent:
            findings = check(base, engine)
        assert {f.code for f in findings} <= {"no-snapshot-isolation"}
        assert len(sent) < 20, sent
    finally:
        base.metadata.drop_all(engine)


def test_one_table_takes_as_many_as_ten(engine):
    base = guarded(10, Counter(), engine)
    counts = []
    for models in (base.kept[:1], base):
        with statements(engine) as sent:
            check(models, engine)
        counts.append(len(sent))
    assert counts[0] == counts[1]
