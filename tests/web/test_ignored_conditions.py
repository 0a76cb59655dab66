"""A request carries a condition, and the route compares nothing: no versioned row is written."""

# No annotations from the future: the frameworks read those of local names.
import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Annotated, Any

import flask
import litestar
import pytest
from fastapi import BackgroundTasks, FastAPI
from litestar.params import SkipValidation
from sqlalchemy import Engine, create_engine, insert, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    apply,
    bulk_update,
    entities,
    etag_of,
    expect,
    unit_of_work,
    watch,
)
from optilock.conditions.request import compared, serving
from optilock.errors import ConditionNotCompared, NotFound
from optilock.preconditions.rfc9110 import evaluate
from optilock.unit import ignore_conditions
from optilock.web import fastapi as on_fastapi
from optilock.web import litestar as on_litestar
from optilock.web.flask import Optilock
from optilock.web.starlette import ConditionalRequests, conditions_of, exception_handlers
from tests.support.serving import Answer, asgi, ask, wsgi


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "ignored_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(default="")


class Visit(Versioned, Base):
    __tablename__ = "ignored_visits"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int] = mapped_column(default=0)


class Line(Base):
    """Has no version."""

    __tablename__ = "ignored_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(default="")


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'pages.db'}")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Page(id=1, title="a"), Visit(id=1), Line(id=1)])
    yield engine
    engine.dispose()


def tag(engine: Engine) -> str:
    with Session(engine) as session:
        return etag_of(session.get_one(Page, 1))


def title(engine: Engine) -> str:
    with Session(engine) as session:
        return session.get_one(Page, 1).title


STALE = '"AAAAAAAA.1"'


# -- in four frameworks ----------------------------------------------------------------------------


def edit(session: Session) -> None:
    session.get_one(Page, 1).title = "new"


def compare(session: Session, expected: Any) -> None:
    page = session.get_one(Page, 1)
    expect(page, expected)
    page.title = "new"


Serve = Callable[[Engine], AbstractContextManager[int]]


def fastapi_sync(engine: Engine) -> AbstractContextManager[int]:
    app = FastAPI()
    on_fastapi.install(app)
    db = Annotated[Session, on_fastapi.unit(sessionmaker(engine))]

    @app.put("/ignores")
    def ignores(session: db) -> None:
        edit(session)

    @app.put("/takes")
    def takes(session: db, asked: on_fastapi.Conditions) -> None:
        edit(session)

    @app.put("/compares")
    def compares(session: db, asked: on_fastapi.Conditions) -> None:
        compare(session, asked.expected)

    return asgi(app)


def async_of(engine: Engine) -> async_sessionmaker[AsyncSession]:
    url = f"sqlite+aiosqlite:///{engine.url.database}"
    return async_sessionmaker(create_async_engine(url, poolclass=NullPool))


def fastapi_async(engine: Engine) -> AbstractContextManager[int]:
    app = FastAPI()
    on_fastapi.install(app)
    db = Annotated[AsyncSession, on_fastapi.unit(async_of(engine))]

    @app.put("/ignores")
    async def ignores(session: db) -> None:
        await session.run_sync(edit)

    @app.put("/takes")
    async def takes(session: db, asked: on_fastapi.Conditions) -> None:
        await session.run_sync(edit)

    @app.put("/compares")
    async def compares(session: db, asked: on_fastapi.Conditions) -> None:
        await session.run_sync(compare, asked.expected)

    return asgi(app)


def starlette_sync(engine: Engine) -> AbstractContextManager[int]:
    sessions = sessionmaker(engine)

    def ignores(request: Request) -> Response:
        with UnitOfWork(sessions) as session:
            edit(session)
        return PlainTextResponse("ok")

    def takes(request: Request) -> Response:
        conditions_of(request)
        return ignores(request)

    def compares(request: Request) -> Response:
        asked = conditions_of(request)
        with UnitOfWork(sessions) as session:
            compare(session, asked.expected)
        return PlainTextResponse("ok")

    return asgi(starlette_of(ignores, takes, compares))


def starlette_async(engine: Engine) -> AbstractContextManager[int]:
    sessions = async_of(engine)

    async def ignores(request: Request) -> Response:
        async with AsyncUnitOfWork(sessions) as session:
            await session.run_sync(edit)
        return PlainTextResponse("ok")

    async def takes(request: Request) -> Response:
        conditions_of(request)
        return await ignores(request)

    async def compares(request: Request) -> Response:
        asked = conditions_of(request)
        async with AsyncUnitOfWork(sessions) as session:
            await session.run_sync(compare, asked.expected)
        return PlainTextResponse("ok")

    return asgi(starlette_of(ignores, takes, compares))


def starlette_of(*routes: Any, **others: Any) -> Starlette:
    return Starlette(
        routes=[Route(f"/{one.__name__}", one, methods=["PUT", "GET", "POST"]) for one in routes],
        middleware=[Middleware(ConditionalRequests)],
        exception_handlers=exception_handlers(),
        **others,
    )


def litestar_app(sessions: Any, *handlers: Any) -> AbstractContextManager[int]:
    return asgi(
        litestar.Litestar(
            [*handlers],
            plugins=[on_litestar.OptilockPlugin()],
            dependencies={"session": on_litestar.unit(sessions)},
        )
    )


Taken = SkipValidation[Any]


def litestar_sync(engine: Engine) -> AbstractContextManager[int]:
    @litestar.put("/ignores", sync_to_thread=True)
    def ignores(session: litestar.di.NamedDependency[Taken]) -> None:
        edit(session)

    @litestar.put("/takes", sync_to_thread=True)
    def takes(
        session: litestar.di.NamedDependency[Taken], conditions: on_litestar.Conditions
    ) -> None:
        edit(session)

    @litestar.put("/compares", sync_to_thread=True)
    def compares(
        session: litestar.di.NamedDependency[Taken], conditions: on_litestar.Conditions
    ) -> None:
        compare(session, conditions.expected)

    return litestar_app(sessionmaker(engine), ignores, takes, compares)


def litestar_async(engine: Engine) -> AbstractContextManager[int]:
    @litestar.put("/ignores")
    async def ignores(session: litestar.di.NamedDependency[Taken]) -> None:
        await session.run_sync(edit)

    @litestar.put("/takes")
    async def takes(
        session: litestar.di.NamedDependency[Taken], conditions: on_litestar.Conditions
    ) -> None:
        await session.run_sync(edit)

    @litestar.put("/compares")
    async def compares(
        session: litestar.di.NamedDependency[Taken], conditions: on_litestar.Conditions
    ) -> None:
        await session.run_sync(compare, conditions.expected)

    return litestar_app(async_of(engine), ignores, takes, compares)


def flask_sync(engine: Engine) -> AbstractContextManager[int]:
    app, optilock, sessions = flask.Flask(__name__), Optilock(), sessionmaker(engine)
    optilock.init_app(app)

    @app.put("/ignores")
    def ignores() -> str:
        with UnitOfWork(sessions) as session:
            edit(session)
        return "ok"

    @app.put("/takes")
    def takes() -> str:
        optilock.conditions()
        return ignores()

    @app.put("/compares")
    def compares() -> str:
        asked = optilock.conditions()
        with UnitOfWork(sessions) as session:
            compare(session, asked.expected)
        return "ok"

    return wsgi(app)


SERVERS = [
    fastapi_sync, fastapi_async, starlette_sync, starlette_async, litestar_sync, litestar_async,
    flask_sync,
]  # fmt: skip


def put(port: int, path: str, match: str | None = None) -> Answer:
    return ask(port, "PUT", path, [] if match is None else [("If-Match", match)])


@pytest.mark.parametrize("serve", SERVERS, ids=lambda one: one.__name__)
@pytest.mark.tenth
def test_a_route_that_compares_nothing_writes_nothing_for_a_request_with_a_condition(
    engine: Engine, serve: Serve
) -> None:
    """A10: neither where it takes the conditions, nor where their tag would hold."""
    with serve(engine) as port:
        for path in ("/ignores", "/takes"):
            for match in (STALE, tag(engine), "*"):
                answer = put(port, path, match)
                assert answer.problem["type"] == "urn:optilock:condition-not-compared"
                assert answer.status == 501
        assert title(engine) == "a"
        assert put(port, "/compares", STALE).status == 412
        assert put(port, "/compares", tag(engine)).status in (200, 204)
        assert title(engine) == "new"
        assert put(port, "/ignores").status in (200, 204)  # it carries none


# -- what is a condition, and what compares it -----------------------------------------------------


@pytest.mark.parametrize(
    ("method", "fields", "ignored"),
    [
        ("PUT", {"If-Match": STALE}, True),
        ("put", {"if-match": STALE}, True),
        ("PATCH", {"If-Match": "*"}, True),
        ("DELETE", {"If-Match": "W/" + STALE}, True),
        ("POST", {"If-Match": STALE}, True),
        ("PUT", {"If-Match": "no tag"}, True),
        ("PUT", {"If-None-Match": STALE}, True),
        ("PUT", {"If-None-Match": "*"}, True),
        ("PUT", {"If-Unmodified-Since": "Sun, 21 Oct 2007 23:21:47 GMT"}, True),
        ("PUT", {"If-Unmodified-Since": "some day"}, False),
        ("PUT", {"If-Modified-Since": "Sun, 21 Oct 2007 23:21:47 GMT"}, False),
        ("PUT", {"ETag": STALE}, False),
        ("PUT", {}, False),
        ("GET", {"If-None-Match": STALE}, False),
        ("HEAD", {"If-Match": STALE}, False),
        ("OPTIONS", {"If-Match": STALE}, False),
    ],
)
def test_which_requests_carry_a_condition(
    engine: Engine, method: str, fields: dict[str, str], ignored: bool
) -> None:
    """A10: those that say which version may be written."""
    with serving(method, fields):
        if ignored:
            with pytest.raises(ConditionNotCompared) as caught, UnitOfWork(engine) as session:
                edit(session)
            assert "expect(obj, conditions.expected)" in str(caught.value)
            assert STALE not in str(caught.value)
        else:
            with UnitOfWork(engine) as session:
                edit(session)
    assert title(engine) == ("a" if ignored else "new")


def by_objects(session: Session) -> None:
    session.get_one(Page, 1).title = "new"


def by_the_same_value(session: Session) -> None:
    session.get_one(Page, 1).title = "a"


def deleted(session: Session) -> None:
    session.delete(session.get_one(Page, 1))


def added(session: Session) -> None:
    session.add(Page(id=2))


WRITES: list[Callable[[Session], Any]] = [
    by_objects,
    by_the_same_value,
    deleted,
    added,
    lambda session: session.add_all([Page(id=n) for n in range(2, 9)]),
    lambda session: session.execute(update(Page).values(title="new")),
    lambda session: session.execute(update(Page), [{"id": 1, "title": "new", "version": 1}]),
    lambda session: session.execute(Page.__table__.update().values(title="new")),  # type: ignore[attr-defined]
    lambda session: session.connection().execute(Page.__table__.delete()),  # type: ignore[attr-defined]
    lambda session: session.execute(insert(Page).values(id=2)),
    lambda session: session.execute(text("UPDATE ignored_pages SET title = 'new'")),
    lambda session: session.connection().exec_driver_sql("DELETE FROM ignored_pages"),
    lambda session: bulk_update(session, Page, [{"id": 1, "version": 1, "title": "new"}]),
    lambda session: entities.merge(
        session, Page, 1, {"title": "new"}, if_match=entities.Version(1)
    ),
    lambda session: entities.insert_or_merge(session, Page, 1, {"title": "new"}),
    lambda session: entities.insert(session, Page, 2, {"title": "new"}),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", ["unit", "watched", "nested"])
def test_every_way_to_write_meets_the_condition_at_commit(
    engine: Engine, write: Callable[[Session], Any], way: str
) -> None:
    """A10: until then there is time to compare."""
    with serving("PUT", [("If-Match", STALE)]), pytest.raises(ConditionNotCompared):
        if way == "watched":
            with watch(sessionmaker(engine)).begin() as session:
                write(session)
        elif way == "nested":
            with UnitOfWork(engine) as session, session.begin_nested():
                write(session)
        else:
            with UnitOfWork(engine) as session:
                write(session)
    with Session(engine) as session:
        assert [page.title for page in session.query(Page)] == ["a"]


COMPARES: list[Callable[[Session, str], Any]] = [
    lambda session, sent: expect(session.get_one(Page, 1), sent),
    lambda session, sent: apply(session, Page, 1, {"title": "b"}, expected=sent),
    lambda session, sent: entities.merge(session, Page, 1, {"title": "b"}, if_match=sent),
    lambda session, sent: evaluate("PUT", {"If-Match": sent}, etag=sent),
    lambda session, sent: compared(),
]


@pytest.mark.parametrize("compare", COMPARES)
@pytest.mark.parametrize("late", [True, False])
def test_whatever_compares_the_condition_lets_the_unit_commit(
    engine: Engine, compare: Callable[[Session, str], Any], late: bool
) -> None:
    """A10: before the write, or after it."""
    sent = tag(engine)
    with serving("PUT", {"If-Match": sent}), UnitOfWork(engine) as session:
        if late:
            session.get_one(Visit, 1).n += 1
            session.flush()
        compare(session, sent)
        session.get_one(Visit, 1).n += 1
    with Session(engine) as session:
        assert session.get_one(Visit, 1).n == 1 + late


def swallowed(call: Callable[[], Any]) -> None:
    with suppress(PreconditionFailed, NotFound):
        call()


@pytest.mark.parametrize(
    "compare",
    [
        lambda session: expect(session.get_one(Page, 1), STALE),
        lambda session: apply(session, Page, 1, {"title": "b"}, expected=STALE),
        lambda session: entities.merge(session, Page, 1, {"title": "b"}, if_match=STALE),
        lambda session: entities.merge(session, Page, 9, {"title": "b"}, if_match=STALE),
        lambda session: evaluate("PUT", {"If-Match": STALE}, etag='"other"'),
    ],
)
def test_a_condition_that_is_not_true_was_not_met(
    engine: Engine, compare: Callable[[Session], Any]
) -> None:
    """A10: whoever catches the error, or leaves the answer unread, writes nothing all the same."""
    with (
        serving("PUT", {"If-Match": STALE}),
        pytest.raises(ConditionNotCompared),
        UnitOfWork(engine) as session,
    ):
        swallowed(lambda: compare(session))
        session.get_one(Visit, 1).n += 1


def test_a_tag_out_of_the_body_is_no_answer_to_another_one_in_the_header(engine: Engine) -> None:
    """A10: and neither is a version that the program names itself."""
    for way in ({"etag_or_version": tag(engine)}, {"version": 1}):
        with (
            serving("PUT", {"If-Match": STALE}),
            pytest.raises(ConditionNotCompared),
            UnitOfWork(engine) as session,
        ):
            page = session.get_one(Page, 1)
            expect(page, **way)
            page.title = "new"


def test_an_insert_answers_if_none_match_by_itself(engine: Engine) -> None:
    """A10: where the row is there, it fails."""
    with serving("PUT", {"If-None-Match": "*"}):
        with UnitOfWork(engine) as session:
            session.add(Page(id=2))
        with UnitOfWork(engine) as session:
            session.execute(insert(Page).values(id=3))
        with pytest.raises(ConditionNotCompared), UnitOfWork(engine) as session:
            session.add(Page(id=4))
            session.get_one(Page, 1).title = "new"


def test_what_only_reads_and_what_has_no_version_is_not_asked(engine: Engine) -> None:
    """A10: nor is what was rolled back."""
    with serving("PUT", {"If-Match": STALE}):
        with UnitOfWork(engine) as session:
            assert session.get_one(Page, 1).title == "a"
        with UnitOfWork(engine) as session:
            session.get_one(Line, 1).text = "new"
        with pytest.raises(LookupError), UnitOfWork(engine) as session:
            session.get_one(Page, 1).title = "new"
            session.flush()
            raise LookupError


def test_what_a_savepoint_has_taken_back_was_not_written(engine: Engine) -> None:
    """A10: what a released one inside of it has written, neither; what is left counts."""
    with serving("PUT", {"If-Match": STALE}):
        with UnitOfWork(engine) as session:
            outer = session.begin_nested()
            with session.begin_nested():
                edit(session)
            session.get_one(Visit, 1).n = 1
            session.flush()
            outer.rollback()
        with (
            pytest.raises(ConditionNotCompared, match="ignored_visits"),
            UnitOfWork(engine) as session,
        ):
            session.get_one(Visit, 1).n = 1
            inner = session.begin_nested()
            edit(session)
            session.flush()
            inner.rollback()
    assert title(engine) == "a"


def test_a_connection_that_outlives_the_session_is_not_listened_to_any_more(
    engine: Engine,
) -> None:
    """A10: neither after COMMIT, nor after a refusal."""
    with engine.connect() as connection:
        sessions = watch(sessionmaker(connection, join_transaction_mode="create_savepoint"))
        with serving("PUT", {"If-Match": STALE}):
            with pytest.raises(ConditionNotCompared), sessions.begin() as session:
                edit(session)
            with sessions.begin() as session:
                session.get_one(Line, 1).text = "new"
        assert "_optilock_sent" not in connection.__dict__
        with sessions.begin() as session:
            edit(session)


# -- several units, threads and tasks --------------------------------------------------------------


def test_a_unit_beside_the_request_says_so_and_one_comparison_counts_for_the_request(
    engine: Engine,
) -> None:
    """A10: an access log before the condition was compared, and one after it."""

    def visit(*, beside: bool = False) -> None:
        with UnitOfWork(engine) as session:
            if beside:
                ignore_conditions(session)
            session.get_one(Visit, 1).n += 1

    with serving("PUT", {"If-Match": tag(engine)}) as request:
        with pytest.raises(ConditionNotCompared, match="ignore_conditions"):
            visit()
        visit(beside=True)
        with UnitOfWork(engine) as session:
            expect(session.get_one(Page, 1), request.sent["If-Match"])
            session.get_one(Page, 1).title = "new"
        visit()
    visit()
    with Session(engine) as session:
        assert session.get_one(Visit, 1).n == 3


@pytest.mark.parametrize("propagation", ["join", "savepoint"])
def test_a_unit_that_joins_cannot_ignore_the_condition_for_the_unit_around_it(
    engine: Engine, propagation: Any
) -> None:
    """A10: its rows come with those of the outer unit."""
    sessions = sessionmaker(engine)

    def visit(propagation: Any) -> None:
        with unit_of_work(sessions, propagation=propagation) as session:
            ignore_conditions(session)
            session.get_one(Visit, 1).n += 1

    with (
        serving("PUT", {"If-Match": STALE}),
        pytest.raises(ConditionNotCompared),
        unit_of_work(sessions) as session,
    ):
        with pytest.raises(ConfigurationError, match="for other rows"), session.begin_nested():
            visit(propagation)
        visit("independent")
        session.get_one(Page, 1).title = "new"
    assert title(engine) == "a"
    with Session(engine) as fresh:
        assert fresh.get_one(Visit, 1).n == 1


def test_a_decorated_function_and_a_unit_that_joins_are_asked_and_run_once(engine: Engine) -> None:
    """A10: nothing runs again for it."""
    sessions, calls = sessionmaker(engine), []

    @unit_of_work(sessions)
    def work(session: Session) -> None:
        calls.append(1)
        session.get_one(Page, 1).title = "new"

    with serving("PUT", {"If-Match": STALE}):
        with pytest.raises(ConditionNotCompared):
            work()
        with pytest.raises(ConditionNotCompared), UnitOfWork(sessions):
            work()
    assert (len(calls), title(engine)) == (2, "a")


@pytest.mark.anyio
async def test_tasks_and_threads_with_the_context_belong_to_the_request_and_a_bare_thread_does_not(
    engine: Engine,
) -> None:
    """A10: as the manual says."""
    found: dict[str, bool] = {}

    def write(name: str) -> None:
        try:
            with UnitOfWork(engine) as session:
                session.get_one(Page, 1).title = name
        except ConditionNotCompared:
            found[name] = True
        else:
            found[name] = False

    with serving("PUT", {"If-Match": STALE}):
        await asyncio.create_task(asyncio.to_thread(write, "task"))
        await run_in_threadpool(write, "pool")
        for name, run in (("bare", write), ("given", contextvars.copy_context().run)):
            args = (name,) if run is write else (write, name)
            thread = threading.Thread(target=run, args=args)
            thread.start()
            thread.join()
    write("after")
    assert found == {"task": True, "pool": True, "bare": False, "given": True, "after": False}


@pytest.mark.anyio
async def test_a_comparison_in_a_thread_counts_for_the_whole_request(engine: Engine) -> None:
    """A10: the request is one object in all of them."""

    with serving("PUT", {"If-Match": tag(engine)}) as request:
        await run_in_threadpool(compared, [request.sent["If-Match"]])
        with UnitOfWork(engine) as session:
            edit(session)
    assert title(engine) == "new"


def test_a_unit_of_a_request_may_demand_a_condition_for_every_row(engine: Engine) -> None:
    """A10: where the client has sent none it is asked for one (428)."""
    app = FastAPI()
    on_fastapi.install(app)
    demanding = on_fastapi.unit(sessionmaker(engine), require_conditions=True)
    beside = on_fastapi.unit(sessionmaker(engine), require_conditions=False)

    @app.put("/pages")
    def pages(session: Annotated[Session, demanding], tag: str = "") -> None:
        page = session.get_one(Page, 1)
        if tag:
            expect(page, f'"{tag}"')
        page.title = "new"

    @app.put("/visits")
    def visits(session: Annotated[Session, beside]) -> None:
        session.get_one(Visit, 1).n += 1

    with asgi(app) as port:
        assert put(port, "/pages").problem["type"] == "urn:optilock:precondition-required"
        assert put(port, "/pages", STALE).status == 501
        assert title(engine) == "a"
        assert put(port, "/visits", STALE).status == 200
        fresh = tag(engine)
        assert put(port, f"/pages?tag={fresh[1:-1]}", fresh).status == 200
    assert title(engine) == "new"


# -- middlewares -----------------------------------------------------------------------------------


def test_a_mounted_application_and_a_task_in_the_background_belong_to_the_request(
    engine: Engine,
) -> None:
    """A10: one record, however many middlewares there are; the next request has its own."""
    inner = FastAPI()
    on_fastapi.install(inner)
    on_fastapi.install(inner)
    db = Annotated[Session, on_fastapi.unit(sessionmaker(engine))]
    refused = threading.Event()

    @inner.put("/ignores")
    def ignores(session: db) -> None:
        edit(session)

    @inner.put("/later")
    def later(tasks: BackgroundTasks) -> str:
        def work() -> None:
            try:
                with UnitOfWork(engine) as session:
                    edit(session)
            except ConditionNotCompared:
                refused.set()

        tasks.add_task(work)
        return "accepted"

    app = starlette_of()
    app.routes.append(Mount("/inner", inner))
    with asgi(app) as port:
        assert put(port, "/inner/ignores", STALE).status == 501
        assert put(port, "/inner/later", STALE).status == 200
        assert refused.wait(20)
        assert title(engine) == "a"
        assert put(port, "/inner/ignores").status == 200


def test_it_is_too_late_to_install_when_the_application_has_started() -> None:
    """A10: what has begun to answer would go on without it."""
    app = FastAPI()
    with asgi(app) as port:
        ask(port, "GET", "/")
        with pytest.raises(ConfigurationError, match="has started"):
            on_fastapi.install(app)


def test_the_fault_of_a_route_is_logged_and_the_client_is_told_nothing_of_the_program(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A10: who operates the server can find it."""
    with fastapi_sync(engine) as port:
        told = put(port, "/ignores", STALE).problem
    assert "ignored_pages" not in str(told)
    [record] = [one for one in caplog.records if one.name == "optilock"]
    assert "ignored_pages" in record.message


FIRST = """
    import sys
    from flask import Flask
    from sqlalchemy import create_engine
    from sqlalchemy.orm import *
    from optilock import UnitOfWork, Versioned
    from optilock.conditions.request import serving
    from optilock.errors import ConditionNotCompared
    from optilock.web.flask import Optilock

    class Base(DeclarativeBase): pass

    class Page(Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)

    engine = create_engine("sqlite:///" + sys.argv[1])
    Base.metadata.create_all(engine)

    def put():
        with UnitOfWork(engine) as session:
            session.add(Page(id=1))
        return "ok"

    if sys.argv[2] == "flask":
        app = Flask("first")
        Optilock(app)
        app.put("/")(put)
        print(app.test_client().put("/", headers={"If-Match": '"a"'}).status_code)
    else:
        try:
            with serving("PUT", {"If-Match": '"a"'}):
                put()
        except ConditionNotCompared as error:
            print(error.status)
"""


@pytest.mark.parametrize("teller", ["flask", "serving"])
def test_the_first_request_of_a_process_is_looked_at(tmp_path: Any, teller: str) -> None:
    """A10: nobody has told of one before. Flask knows of its requests itself."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FIRST), str(tmp_path / "first.db"), teller],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "501", done.stderr
