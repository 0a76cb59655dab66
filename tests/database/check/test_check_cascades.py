"""A foreign key changes rows by itself: does the version move, and is it told where it does not?"""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.check import check
from optilock.tokens import Counter, RowVersion
from tests.support.migrating import migrate

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def stamps(guard, token, **rules):
    class Base(DeclarativeBase):
        pass

    class Parcel(Base):
        __tablename__ = "cc_parcels"
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        __version_token__ = None

    class Stamp(Versioned, Base):
        __tablename__ = "cc_stamps"
        __version_token__ = token
        __version_guard__ = guard
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        parcel: Mapped[int | None] = mapped_column(ForeignKey("cc_parcels.id", **rules))

    return Stamp


RULES = {
    "update": ({"onupdate": "CASCADE"}, "UPDATE cc_parcels SET id = 2", "ON UPDATE CASCADE"),
    "null": ({"ondelete": "SET NULL"}, "DELETE FROM cc_parcels", "ON DELETE SET NULL"),
}
KINDS = {"guard": ("bump", Counter()), "trigger": (None, RowVersion())}


@pytest.mark.parametrize(("rules", "statement", "does"), RULES.values(), ids=RULES)
@pytest.mark.parametrize(("guard", "token"), KINDS.values(), ids=KINDS)
def test_what_moves_no_version_is_found(engine, guard, token, rules, statement, does):
    cls = stamps(guard, token, **rules)
    cls.metadata.create_all(engine)
    if guard:
        migrate(engine, lambda op: op.create_guard_trigger("cc_stamps", token, guard))
    try:
        moves = changes_version(engine, statement)
        found = [one for one in check(cls, engine) if one.code == "silent-cascade"]
        if moves:
            assert found == []
        else:
            [told] = found
            assert (told.severity, told.subject) == ("warning", "cc_stamps.parcel")
            assert does in told.message
        assert moves is (engine.dialect.name != "mysql")
    finally:
        cls.metadata.drop_all(engine)


def changes_version(engine, statement):
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON"))
        engine.dispose()
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO cc_parcels (id) VALUES (1)"))
        connection.execute(text("INSERT INTO cc_stamps (id, parcel, version) VALUES (1, 1, 1)"))
    with engine.begin() as connection:
        connection.execute(text(statement))
        row = connection.execute(text("SELECT parcel, version FROM cc_stamps")).one()
    assert row.parcel in (2, None)
    return row.version == 2


def test_keys_that_change_nothing_and_tables_without_a_trigger_are_left_alone(engine):
    for cls in (stamps(None, Counter(), onupdate="CASCADE"), stamps("bump", Counter())):
        cls.metadata.create_all(engine)
        found = {one.code for one in check(cls, engine)}
        cls.metadata.drop_all(engine)
        assert "silent-cascade" not in found
