"""SQLAlchemy-Continuum's history holds what was written, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import BigInteger, Engine, String, event, inspect, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    configure_mappers,
    mapped_column,
    sessionmaker,
)

from optilock import Versioned, client_wins, merge_fields, store_wins, watch
from optilock._watched.session import order
from optilock._watched.session.record import GUARD_KEY
from tests.support.models import own_base

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


def a_base() -> type[Any]:
    Base = own_base()

    return type("Base", (Versioned, Base), {"__abstract__": True})


def a_versioned_base() -> type[Any]:
    """Continuum makes its own classes under it, and they are to have no version."""
    from sqlalchemy_continuum.transaction import TransactionBase
    from sqlalchemy_continuum.version import VersionClassBase

    class Base(Versioned, DeclarativeBase):
        type_annotation_map = {str: String(60)}

        def __init_subclass__(cls, **options: Any) -> None:
            if issubclass(cls, (VersionClassBase, TransactionBase)):
                cls.__version_token__ = None
            super().__init_subclass__(**options)

    return Base


@pytest.fixture(scope="module", params=[a_base, a_versioned_base])
def article(continuum: Any, request: Any) -> Iterator[Any]:
    """A class with a history; Continuum listens to every mapper and every session."""
    manager = continuum.VersioningManager()  # the usual one keeps its first classes
    continuum.make_versioned(user_cls=None, manager=manager)

    class Article(request.param()):
        __tablename__ = "continuum_articles"
        __versioned__ = {}
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        title: Mapped[str | None]
        body: Mapped[str | None]

    configure_mappers()
    yield Article
    continuum.remove_versioning(manager=manager)


@pytest.fixture
def every_session() -> Iterator[type[Session]]:
    """``Session`` itself, to be watched in one test."""
    before, below = dict(vars(Session)), list(order._classes)
    yield Session
    if GUARD_KEY in vars(Session):
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


def test_classes_that_say_none_have_no_version_and_a_strict_session_writes_them(engine, article):
    from sqlalchemy_continuum import transaction_class, version_class

    for cls in (version_class(article), transaction_class(article)):
        assert inspect(cls).version_id_col is None

    article.metadata.create_all(engine)
    sessions = watch(sessionmaker(engine), strict=True)
    with sessions.begin() as session:
        session.add(article(id=1, title="a", body="a"))
    with sessions.begin() as session:
        session.get_one(article, 1).title = "b"

    assert history(engine, article, 1) == [FIRST, (UPDATE, "b", "a", 2)]
