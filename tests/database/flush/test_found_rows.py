"""A connection of MariaDB that counts changed rows is named by the error, and no trigger is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Integer, create_engine
from sqlalchemy.orm import Mapped, mapped_column, sessionmaker

from optilock import ConfigurationError, Versioned, watch
from optilock.statements import no_bump
from optilock.tokens import Manual
from tests.support.models import key, own_base

Base = own_base()


class Page(Versioned, Base):
    __tablename__ = "fr_pages"
    __version_ignore__ = ("seen",)
    id: Mapped[int] = key()
    title: Mapped[str]
    seen: Mapped[int] = mapped_column(default=0)


class Paper(Versioned, Base):
    __tablename__ = "fr_papers"
    __version_token__ = Manual(Integer())
    id: Mapped[int] = key()
    title: Mapped[str]


@pytest.mark.engines("mariadb")
def test_a_write_of_equal_values_names_the_flag(engine):
    """Without a new version the row has these values already, so the driver counts none."""
    import pymysql

    url = engine.url
    bare = create_engine(
        "mysql+pymysql://",
        creator=lambda: pymysql.connect(
            host=url.host, port=url.port, user=url.username, database=url.database
        ),
    )
    Base.metadata.create_all(engine)
    theirs, ours = watch(sessionmaker(engine)), watch(sessionmaker(bare))
    with theirs.begin() as session:
        session.add_all([Page(id=1, title="a"), Paper(id=1, title="a", version=1)])
    ways: tuple[tuple[Any, str, Any, Any], ...] = (
        (Page, "seen", 1, lambda session: nullcontext()),
        (Paper, "title", "b", lambda session: nullcontext()),
        (Page, "title", "c", no_bump),
    )
    for model, column, value, around in ways:
        with ours() as session:
            row = session.get_one(model, 1)
            with theirs() as other, around(other):
                setattr(other.get_one(model, 1), column, value)
                other.commit()
            with pytest.raises(ConfigurationError, match=r"CLIENT\.FOUND_ROWS"), around(session):
                setattr(row, column, value)
                session.commit()
    bare.dispose()
    Base.metadata.drop_all(engine)
