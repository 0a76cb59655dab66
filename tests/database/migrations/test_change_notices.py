"""The triggers that notify of changed rows: made, replaced and dropped by migrations."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from tests.support.migrating import as_text, revise, run, send, triggers


def base_with(**options):
    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)

        locals().update(options)

    return Base


NOTIFIES = {"__version_notify__": True}


@pytest.mark.engines("postgresql")
def test_autogenerate_adds_replaces_and_drops_them(engine):
    plain, notified = base_with(), base_with(**NOTIFIES)
    plain.metadata.create_all(engine)
    revision = revise(engine, notified.metadata)
    assert revision.lines == ["op.add_change_notice('pages')"]
    run(engine, revision, revision.upgrade)
    assert len(triggers(engine)) == 3
    assert revise(engine, notified.metadata).empty

    send(engine, "ALTER TABLE pages DISABLE TRIGGER optilock_notice_delete_pages")
    replaced = revise(engine, notified.metadata)
    assert replaced.lines == ["op.drop_change_notice('pages')", "op.add_change_notice('pages')"]
    run(engine, replaced, replaced.upgrade)
    assert revise(engine, notified.metadata).empty

    assert revise(engine, plain.metadata).lines == ["op.drop_change_notice('pages')"]
    run(engine, revision, revision.downgrade)
    assert triggers(engine) == []
    assert revise(engine, plain.metadata).empty
    notified.metadata.drop_all(engine)
    notified.metadata.create_all(engine)
    assert revise(engine, notified.metadata).empty


@pytest.mark.engines("sqlite-wal", "mariadb")
def test_other_databases_have_none(engine):
    notified = base_with(**NOTIFIES)
    notified.metadata.create_all(engine)
    assert triggers(engine) == []
    assert revise(engine, notified.metadata).empty


def test_the_statements_can_be_written_down():
    text = as_text("postgresql", lambda op: op.add_change_notice("pages", schema="shop"))
    assert "AFTER UPDATE ON shop.pages REFERENCING OLD TABLE" in text
    assert as_text("sqlite", lambda op: op.add_change_notice("pages")) == ""
