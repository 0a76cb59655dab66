"""Four clients that edit one row of an optilock application, and a line that loses answers."""

# No annotations from the future: FastAPI reads those of local names.
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from loopback import lossy
from optilock_client import AsyncClient, Client
from optilock_client.calls import Method
from pydantic import BaseModel
from sqlalchemy import JSON, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import optilock.alembic  # noqa: F401
from optilock import Versioned, entities, unit_of_work, watch
from optilock.errors import NotFound
from optilock.exactly_once import Once
from optilock.tokens import Unique
from optilock.web.fastapi import Conditions, install, not_modified, once_of, unit
from tests.support.serving import asgi

PAGE = "/pages/1"


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages_of_clients"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    notes: Mapped[dict[str, Any]] = mapped_column(JSON)


class Order(Base):
    __tablename__ = "orders_of_clients"
    id: Mapped[int] = mapped_column(primary_key=True)
    goods: Mapped[str]


class PageIn(BaseModel):
    title: str
    notes: dict[str, Any]


class OrderIn(BaseModel):
    goods: str


def application(sessions: sessionmaker[Session]) -> FastAPI:
    app = FastAPI()
    install(app)
    db = Annotated[Session, unit(sessions)]

    @app.get("/pages/{key}", response_model=None)
    def read(
        key: int, session: db, conditions: Conditions, response: Response
    ) -> dict[str, Any] | Response:
        page = session.get(Page, key)
        if page is None:
            raise NotFound(Page, (key,))
        tag = conditions.tag_of(page)
        if conditions.not_modified(tag):
            return not_modified(tag)
        response.headers["ETag"] = tag
        return {"title": page.title, "notes": page.notes}

    @app.put("/pages/{key}")
    def put(key: int, page: PageIn, session: db, asked: Conditions, response: Response) -> None:
        response.headers["ETag"] = asked.put(session, Page, key, page.model_dump()).etag

    @app.patch("/pages/{key}")
    def patch(
        key: int, page: dict[str, Any], session: db, asked: Conditions, response: Response
    ) -> None:
        response.headers["ETag"] = entities.merge(session, Page, key, page, **asked.demands).etag

    @app.delete("/pages/{key}", status_code=204)
    def delete(key: int, session: db, asked: Conditions) -> None:
        entities.delete(session, Page, key, **asked.demands)

    @unit_of_work(sessions, exactly_once=lambda once, goods: once)
    def place(session: Session, once: Once | None, goods: str) -> dict[str, Any]:
        session.add(new := Order(goods=goods))
        session.flush()
        return {"status_code": 201, "content": {"id": new.id}}

    @app.post("/orders")
    def order(wanted: OrderIn, request: Request) -> JSONResponse:
        once = once_of(request, principal="ada", of=wanted.model_dump(mode="json"))
        return JSONResponse(**place(once, wanted.goods))

    return app


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, sessionmaker[Session]]]:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('client')}/pages.db")

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")

    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        op: Any = Operations(MigrationContext.configure(connection))
        op.create_optilock_tables("commit_tokens", revision=2)
    sessions = watch(sessionmaker(engine))
    with asgi(application(sessions)) as port:
        yield port, sessions
    engine.dispose()


@pytest.fixture
def pages(served: tuple[int, sessionmaker[Session]]) -> tuple[int, sessionmaker[Session]]:
    """The server, with one new page."""
    _, sessions = served
    with sessions.begin() as session:
        session.execute(Page.__table__.delete())
        session.execute(Order.__table__.delete())
        session.add(Page(id=1, title="Start", notes={}))
    return served


@contextmanager
def client_at(port: int) -> Iterator[Client]:
    http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60)
    with Client(http, attempts=50) as client:
        yield client


def noted(name: str, value: Any) -> Callable[[Any], Any]:
    return lambda page: {**page, "notes": {**page["notes"], name: value}}


def stored(sessions: sessionmaker[Session]) -> Page:
    with sessions() as session:
        return session.get_one(Page, 1)


def test_all_edits_of_four_clients_are_stored(
    pages: tuple[int, sessionmaker[Session]], pytestconfig: pytest.Config
) -> None:
    """Two of them send a PUT, and two a PATCH."""
    port, sessions = pages
    edits = 100 if pytestconfig.option.full else 15

    def edit(person: int) -> None:
        method: Method = "PATCH" if person % 2 else "PUT"
        with client_at(port) as client:
            for number in range(edits):
                client.edit(PAGE, noted(f"{person}-{number}", number), method=method)

    with ThreadPoolExecutor(4) as people:
        [*people.map(edit, range(4))]
    wanted = {f"{person}-{number}": number for person in range(4) for number in range(edits)}
    assert stored(sessions).notes == wanted


def test_all_edits_and_orders_are_stored_once_though_each_fifth_answer_is_lost(
    pages: tuple[int, sessionmaker[Session]],
) -> None:
    port, sessions = pages
    with lossy(port, lambda number: number % 5 == 0) as line:

        def work(person: int) -> None:
            with client_at(line.port) as client:
                for number in range(10):
                    client.edit(PAGE, noted(f"{person}-{number}", number))
                    client.once("/orders", {"goods": f"{person}-{number}"})

        with ThreadPoolExecutor(2) as people:
            [*people.map(work, range(2))]
        assert line.lost >= 10
    wanted = {f"{person}-{number}": number for person in range(2) for number in range(10)}
    assert stored(sessions).notes == wanted
    with sessions() as session:
        assert sorted(goods for (goods,) in session.query(Order.goods)) == sorted(wanted)


@pytest.mark.anyio
async def test_async_clients_do_the_same(pages: tuple[int, sessionmaker[Session]]) -> None:
    port, sessions = pages
    http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)
    async with AsyncClient(http) as client:
        await client.edit(PAGE, lambda page: page.update(title="Home"))
        assert (await client.get(PAGE))["title"] == stored(sessions).title == "Home"
        await client.check_conditions(PAGE)
        await client.delete(PAGE)
