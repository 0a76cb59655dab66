"""The version belongs to the oldest value that an object shows, whichever query read the others."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import (
    Mapped,
    contains_eager,
    joinedload,
    load_only,
    mapped_column,
    relationship,
    selectinload,
    sessionmaker,
)

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    etag_of,
    touch,
    watch,
)
from optilock.preconditions import verify
from optilock.tokens import RowVersion
from tests.support.models import key, own_base

Base = own_base()


class Shelf(Versioned, Base):
    __tablename__ = "oldest_shelves"
    id: Mapped[int] = key()
    books: Mapped[list[Volume]] = relationship()


class Volume(Versioned, Base):
    __tablename__ = "oldest_volumes"
    id: Mapped[int] = key()
    title: Mapped[str]
    body: Mapped[str]
    shelf_id: Mapped[int | None] = mapped_column(ForeignKey("oldest_shelves.id"))


class Always(Versioned, Base):
    __tablename__ = "oldest_always"
    id: Mapped[int] = key()
    title: Mapped[str]
    body: Mapped[str]
    __mapper_args__ = {"always_refresh": True}


class Signed(Versioned, Base):
    __tablename__ = "oldest_signed"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    title: Mapped[str]
    body: Mapped[str]


class Piece(Versioned, Base):
    __tablename__ = "oldest_pieces"
    id: Mapped[int] = key()
    kind: Mapped[str]
    body: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "piece"}


class Song(Piece):
    __tablename__ = "oldest_songs"
    id: Mapped[int] = mapped_column(ForeignKey("oldest_pieces.id"), primary_key=True)
    title: Mapped[str]
    __mapper_args__ = {"polymorphic_identity": "song"}


BODY = select(Volume).options(load_only(Volume.body))


def again(session, query):
    return session.scalars(query.execution_options(populate_existing=True)).unique().all()


def of_text(*columns):
    names = ", ".join(column.name for column in columns)
    found = text(f"SELECT {names} FROM oldest_volumes").columns(*columns)
    return select(Volume).from_statement(found)


def get_locked(session, volume):
    options = [load_only(Volume.body)]
    session.get(Volume, 1, options=options, populate_existing=True, with_for_update=True)


def write_and_read(session, volume):
    volume.body = "first"
    again(session, BODY)  # flushes


def touch_and_read(session, volume):
    touch(volume)
    again(session, BODY)


def write_body(session, volume):
    again(session, BODY)
    volume.body = "first"
    session.flush()


def expire_and_read(session, volume):
    session.expire(volume)
    session.scalars(BODY).all()


def expire_all_and_read(session, volume):
    session.expire_all()
    session.scalars(BODY).all()


def expire_and_read_text(session, volume):
    session.expire(volume)
    session.scalars(of_text(Volume.id, Volume.body)).all()
    assert volume.version


READINGS = {
    "query": (Volume, lambda s, v: again(s, BODY)),
    "locked": (Volume, get_locked),
    "legacy query": (
        Volume,
        lambda s, v: s.query(Volume).options(load_only(Volume.body)).populate_existing().all(),
    ),
    "text": (Volume, lambda s, v: again(s, of_text(Volume.id, Volume.body, Volume.version))),
    "text without version": (Volume, lambda s, v: again(s, of_text(Volume.id, Volume.body))),
    "joined": (
        Volume,
        lambda s, v: again(
            s, select(Shelf).options(joinedload(Shelf.books).load_only(Volume.body))
        ),
    ),
    "selectin": (
        Volume,
        lambda s, v: again(
            s, select(Shelf).options(selectinload(Shelf.books).load_only(Volume.body))
        ),
    ),
    "autoflush": (Volume, write_and_read),
    "touched": (Volume, touch_and_read),
    "other write": (Volume, write_body),
    "expired": (Volume, expire_and_read),
    "all expired": (Volume, expire_all_and_read),
    "expired, text": (Volume, expire_and_read_text),
    "always_refresh": (
        Always,
        lambda s, v: s.scalars(select(Always).options(load_only(Always.body))).all(),
    ),
    "version by a trigger": (
        Signed,
        lambda s, v: again(s, select(Signed).options(load_only(Signed.body))),
    ),
    "base of joined": (Song, lambda s, v: again(s, select(Piece))),
}


@pytest.fixture
def reading(engine, watched_on):
    """Our session at a level at which it reads what others have committed."""
    shared = engine.dialect.name in ("mysql", "mariadb")
    return watched_on(
        engine.execution_options(isolation_level="READ COMMITTED") if shared else engine
    )


@pytest.mark.parametrize("name", READINGS)
def test_an_edit_of_a_value_that_was_not_read_again_conflicts(store, reading, other, stored, name):
    cls, read = READINGS[name]
    store(Shelf(id=1))
    store(cls(id=1, title="old", body="old", **({"shelf_id": 1} if cls is Volume else {})))
    mine = reading.get_one(cls, 1)
    read(reading, mine)
    mine.title = "edited"
    reading.commit()
    assert stored(cls, 1)["title"] == "edited"

    shown = reading.get_one(cls, 1).title
    other(cls, 1, title="theirs")
    with pytest.raises(ConcurrencyError):
        read(reading, mine)
        mine.title = f"{shown}, again"
        reading.commit()
    reading.rollback()
    assert stored(cls, 1)["title"] == "theirs"


def test_the_version_goes_on_when_the_older_values_are_read(store, reading, other, stored):
    store(Volume(id=1, title="old", body="old"))
    mine = reading.get_one(Volume, 1)
    other(Volume, 1, title="theirs")
    reading.refresh(mine, ["body", "version"])
    assert (mine.title, mine.version) == ("old", 1)
    reading.refresh(mine, ["title", "shelf_id"])
    assert (mine.title, mine.version) == ("theirs", 2)
    mine.title = "mine"
    reading.commit()
    assert stored(Volume, 1)["title"] == "mine"


def test_a_new_transaction_begins_with_what_it_reads(store, reading, other, stored):
    """Or a session that reads the body alone would conflict for ever."""
    store(Volume(id=1, title="old", body="old"))
    mine = reading.get_one(Volume, 1)
    reading.commit()
    other(Volume, 1, body="theirs")
    reading.scalars(BODY).all()
    mine.title = f"about {mine.body}"
    reading.commit()
    assert stored(Volume, 1)["title"] == "about theirs"


def test_an_object_of_a_text_without_the_version_was_never_read(store, reading, stored):
    store(Volume(id=1, title="old", body="old"))

    def edit(mine):
        mine.title = "mine"

    def read_the_rest(mine):
        assert mine.body
        mine.title = "mine"

    for act in (edit, read_the_rest, reading.delete, touch, verify, etag_of):
        mine = reading.scalars(of_text(Volume.id, Volume.title)).one()
        with pytest.raises(ConfigurationError, match="version"):
            act(mine)
            reading.flush()
        reading.rollback()
        reading.expunge_all()
    mine = reading.scalars(of_text(Volume.id, Volume.title)).one()
    reading.refresh(mine)
    mine.title = "mine"
    reading.commit()
    assert stored(Volume, 1)["title"] == "mine"


def test_so_was_one_that_is_a_part_of_the_rows_of_a_text(store, reading):
    store(Shelf(id=1, books=[Volume(id=2, title="old", body="old")]))
    rows = text(
        "SELECT s.id AS a, s.version AS b, v.id AS c, v.title AS d FROM oldest_shelves s"
        " JOIN oldest_volumes v ON v.shelf_id = s.id"
    ).columns(Shelf.id, Shelf.version, Volume.id, Volume.title)
    query = select(Shelf).from_statement(rows).options(contains_eager(Shelf.books))
    shelf = reading.scalars(query).unique().one()
    shelf.books[0].title = "mine"
    with pytest.raises(ConfigurationError, match="version column"):
        reading.flush()


def test_a_unit_that_verifies_its_reads_refuses_such_rows(engine, store):
    store(Volume(id=1, title="old", body="old"))
    with (
        pytest.raises(ConfigurationError, match="cannot be verified"),
        UnitOfWork(sessionmaker(engine), verify_reads=True) as session,
    ):
        session.scalars(of_text(Volume.id, Volume.title)).one()


@pytest.mark.anyio
async def test_an_async_session_follows_the_same_rule(async_engine):
    sessions = watch(async_sessionmaker(async_engine))
    async with sessions() as session, sessions() as other:
        await (await session.connection()).run_sync(Base.metadata.create_all)
        session.add(Volume(id=1, title="old", body="old"))
        await session.commit()
        mine = (await session.scalars(of_text(Volume.id, Volume.title))).one()
        mine.title = "mine"
        with pytest.raises(ConfigurationError):
            await session.flush()
        await session.rollback()

        mine = await session.get_one(Volume, 1, populate_existing=True)
        (await other.get_one(Volume, 1)).title = "theirs"
        await other.commit()
        await session.scalars(BODY.execution_options(populate_existing=True))
        mine.title = "mine"
        with pytest.raises(ConcurrencyError):
            await session.commit()
