"""A listener behind a pooler in transaction mode would hear nothing, and is refused."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import Versioned
from optilock.errors import ConfigurationError
from optilock.live import Changes

_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


class Pages(DeclarativeBase):
    pass


class Page(Versioned, Pages):
    __tablename__ = "pages_followed"
    __version_notify__ = True
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.anyio
async def test_a_listener_without_effect_is_refused(pooler, engine):
    changes = Changes(engine, dsn=pooler.url())
    with pytest.raises(ConfigurationError, match="A pooler in transaction mode does that"):
        await changes.__aenter__()
    async with Changes(engine, dsn=pooler.server.url):
        pass


@pytest.mark.anyio
async def test_no_page_is_behind_after_the_pooler_dropped_all(pooler, engine):
    """Questions come through the pooler, notices do not: both connections are lost at once."""
    admin = make_url(pooler.url()).set(drivername="postgresql", database="pgbouncer")
    direct = create_engine(pooler.server.url)
    Pages.metadata.create_all(direct)
    with Session(direct) as session, session.begin():
        session.add_all(Page(id=n) for n in range(1, 21))
    async with Changes(engine, dsn=pooler.server.url) as changes:
        opened = [aiter(await changes.stream(Page, n, authorize=None)) for n in range(1, 21)]
        for events in opened:
            assert (await anext(events)).startswith(b"retry: ")
        address = admin.render_as_string(hide_password=False)
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as console:
            console.execute("KILL postgres")
            with direct.begin() as connection:
                connection.execute(text(_CUT))
                connection.execute(text("UPDATE pages_followed SET version = 2"))
            console.execute("RESUME postgres")
        for events in opened:
            while b'.2"' not in await anext(events):
                pass
            await events.aclose()
    Pages.metadata.drop_all(direct)
    direct.dispose()
