"""Continuum's classes under a base that is Versioned: they say that they need no version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import BigInteger, String, inspect, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    configure_mappers,
    mapped_column,
    sessionmaker,
)

from optilock import Versioned, watch


@pytest.fixture(scope="module")
def article() -> Iterator[Any]:
    """Continuum is imported late and undone: it makes INTEGER of every BigInteger on SQLite."""
    before = dict(vars(BigInteger))
    import sqlalchemy_continuum
    from sqlalchemy_continuum.transaction import TransactionBase
    from sqlalchemy_continuum.version import VersionClassBase

    sqlalchemy_continuum.versioning_manager.reset()
    sqlalchemy_continuum.make_versioned(user_cls=None)

    class Base(Versioned, DeclarativeBase):
        type_annotation_map = {str: String(60)}

        def __init_subclass__(cls, **options: Any) -> None:
            if issubclass(cls, (VersionClassBase, TransactionBase)):
                cls.__version_token__ = None
            super().__init_subclass__(**options)

    class Article(Base):
        __tablename__ = "history_articles"
        __versioned__ = {}
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        title: Mapped[str | None]

    configure_mappers()
    yield Article
    sqlalchemy_continuum.remove_versioning()
    sqlalchemy_continuum.versioning_manager.reset()
    for name in vars(BigInteger).keys() - before.keys():
        delattr(BigInteger, name)
    for name, value in before.items():
        if vars(BigInteger)[name] is not value:
            setattr(BigInteger, name, value)


@pytest.mark.parametrize("strict", [False, True])
def test_the_history_of_a_versioned_row_is_written(engine, article, strict):
    from sqlalchemy_continuum import transaction_class, version_class

    history = version_class(article)
    assert inspect(history).version_id_col is None
    assert inspect(transaction_class(article)).version_id_col is None

    article.metadata.create_all(engine)
    sessions = watch(sessionmaker(engine), strict=strict)
    with sessions.begin() as session:
        session.add(article(id=1, title="a"))
    with sessions.begin() as session:
        session.get_one(article, 1).title = "b"
    with sessions() as session:
        asked = select(history.title, history.version).order_by(history.transaction_id)
        assert [tuple(row) for row in session.execute(asked)] == [("a", 1), ("b", 2)]
