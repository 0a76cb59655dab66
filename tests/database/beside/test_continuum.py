"""SQLAlchemy-Continuum's history holds what was written, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import BigInteger, Engine, String, event, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    configure_mappers,
    mapped_column,
    sessionmaker,
)

from optilock import Versioned, client_wins, merge_fields, store_wins, watch
from optilock.session import order
from optilock.session.watched import GUARDED

pytestmark = pytest.mark.needs("resolves-in-place")

INSERT, UPDATE, DELETE = 0, 1, 2


@pytest.fixture(scope="module")
def continuum() -> Iterator[Any]:
    """Imported late, and undone: it makes INTEGER of every BigInteger on SQLite."""
    before = dict(vars(BigInteger))
    import sqlalchemy_continuum

    yield sqlalchemy_continuum
    for name in vars(BigInteger).keys() - before.keys():
        delattr(BigInteger, name)
    for name, value in before.items():
        if vars(BigInteger)[name] is not value:
            setattr(BigInteger, name, value)


@pytest.fixture(scope="module")
def article(continuum: Any) -> Iterator[Any]:
    """A class with a history; Continuum listens to every mapper and every session."""
    continuum.make_versioned(user_cls=None)

    class Base(DeclarativeBase):
        type_annotation_map = {str: String(60)}

    class Article(Versioned, Base):
        __tablename__ = "continuum_articles"
        __versioned__ = {}
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        title: Mapped[str | None]
        body: Mapped[str | None]

    configure_mappers()
    yield Article
    continuum.remove_versioning()


@pytest.fixture
def every_session() -> Iterator[type[Session]]:
    """``Session`` itself, to be watched in one test."""
    before, below = dict(vars(Session)), list(order._classes)
    yield Session
    if GUARDED in vars(Session):
        order._classes.discard(Session)
        for name, listener in order._of_classes.items():
            event.remove(Session, name, listener)
        for cls in below:  # they had left the listening to it
            order.listen_to_class(cls)
    for name in vars(Session).keys() - before.keys():
        delattr(Session, name)
    for name, value in before.items():
        if vars(Session)[name] is not value:
            setattr(Session, name, value)


@pytest.fixture(params=["factory", "every session"])
def sessions(request: Any, every_session: Any, article: Any, engine: Engine) -> Any:
    """A function ``(resolver) -> sessionmaker``; three articles are stored, with their history."""
    article.metadata.create_all(engine)
    made = sessionmaker(engine)
    with made.begin() as session:
        session.add_all(article(id=n, title="a", body="a") for n in (1, 2, 3))

    def sessions(on_conflict: Any = None) -> sessionmaker[Session]:
        watch(made if request.param == "factory" else every_session, on_conflict=on_conflict)
        return made

    return sessions


def theirs(engine: Engine, article: Any, key: int, **values: Any) -> None:
    """By a program without Continuum."""
    table = article.__table__
    with engine.begin() as connection:
        connection.execute(
            table.update().where(table.c.id == key).values(version=table.c.version + 1, **values)
        )


def history(engine: Engine, article: Any, key: int) -> list[tuple[Any, ...]]:
    """What was recorded of one article, in order."""
    from sqlalchemy_continuum import version_class

    table = version_class(article).__table__
    columns = table.c.operation_type, table.c.title, table.c.body, table.c.version
    asked = select(*columns).where(table.c.id == key).order_by(table.c.transaction_id)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(asked)]


FIRST = (INSERT, "a", "a", 1)


def edited(session: Session, article: Any) -> list[Any]:
    found = list(session.scalars(select(article).order_by(article.id)))
    for one in found:
        one.title = "mine"
    return found


def test_what_was_written_is_recorded(sessions, engine, article):
    with sessions()() as session:
        mine = edited(session, article)
        session.commit()
        session.delete(mine[0])
        session.commit()

    updated = (UPDATE, "mine", "a", 2)
    assert history(engine, article, 1)[:2] == [FIRST, updated]
    assert history(engine, article, 1)[2][0] == DELETE
    assert history(engine, article, 2) == [FIRST, updated]


def test_a_refused_edit_is_not(sessions, engine, article, refused):
    with sessions()() as session:
        mine = edited(session, article)
        theirs(engine, article, 2, title="theirs")
        refused(session)
        session.expunge(mine[1])
        session.commit()

    assert history(engine, article, 1) == [FIRST, (UPDATE, "mine", "a", 2)]
    assert history(engine, article, 2) == [FIRST]


def test_nor_is_the_only_one(sessions, engine, article, refused):
    with sessions()() as session:
        mine = session.get(article, 2)
        mine.title = "mine"
        theirs(engine, article, 2, title="theirs")
        refused(session)
        session.expunge(mine)
        session.commit()

    assert history(engine, article, 2) == [FIRST]


def test_a_merged_row_is_recorded_as_it_is_stored(sessions, engine, article):
    with sessions(merge_fields)() as session:
        edited(session, article)
        theirs(engine, article, 2, body="theirs")
        session.commit()

    assert history(engine, article, 2) == [FIRST, (UPDATE, "mine", "theirs", 3)]
    assert history(engine, article, 3) == [FIRST, (UPDATE, "mine", "a", 2)]


def test_no_version_is_made_of_a_row_that_the_store_wins(sessions, engine, article):
    with sessions(store_wins)() as session:
        edited(session, article)
        theirs(engine, article, 2, title="theirs")
        session.commit()

    assert history(engine, article, 2) == [FIRST]
    assert history(engine, article, 3) == [FIRST, (UPDATE, "mine", "a", 2)]


def test_a_refused_delete_is_not_recorded(sessions, engine, article, refused):
    with sessions()() as session:
        mine = session.get(article, 2)
        session.delete(mine)
        theirs(engine, article, 2, title="theirs")
        refused(session)
        session.expunge(mine)
        session.commit()

    assert history(engine, article, 2) == [FIRST]


def test_one_that_is_carried_out_all_the_same_is(sessions, engine, article):
    with sessions(client_wins)() as session:
        session.delete(session.get(article, 2))
        theirs(engine, article, 2, title="theirs")
        session.commit()

    assert [row[0] for row in history(engine, article, 2)] == [INSERT, DELETE]


def test_a_flush_after_a_refused_one_is_recorded_in_the_same_transaction(
    sessions, engine, article, refused
):
    with sessions()() as session:
        mine = edited(session, article)
        theirs(engine, article, 2, title="theirs")
        refused(session)
        session.refresh(mine[1], with_for_update=True)
        mine[1].title = "again"
        session.commit()

    assert history(engine, article, 2) == [FIRST, (UPDATE, "again", "a", 3)]
