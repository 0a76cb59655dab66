"""A later attempt never writes a value once more over a change that its author has not seen."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Self

import pytest
from sqlalchemy import Engine, create_engine, inspect
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Entry,
    Isolation,
    UnitOfWork,
    Versioned,
    WouldOverwrite,
    events,
    expect,
    is_transient,
    merge_fields,
    retry,
    retrying,
    unit_of_work,
    watch,
)
from optilock._watched.guard.running_attempts import attempt_here
from optilock._watched.session.record import record_of
from optilock.resolvers import Resolution
from optilock.unit import Adaptive
from optilock.web.problems import problem_of
from tests.support.ids import told
from tests.support.models import Animal, Comment, Dog, Post
from tests.support.repeated_cases import (
    CASES,
    KINDS,
    MODES,
    RUNS,
    Again,
    Author,
    Booking,
    Case,
    Compared,
    Long,
    Loose,
    Paper,
    Signed,
    Stock,
    World,
    again_or_transient,
    options_of,
    outcome_of,
)
from tests.support.waiting import turn

#: With a rollback journal, SQLite lets nobody write while another one reads.
pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb", "mariadb-snapshot")

Options = dict[str, Any]
Attempt = Callable[[Session], None]
Run = Callable[[], None]
Way = Callable[[Engine, Options, Attempt], Run]


@pytest.fixture
def world(store, other, gone):
    store(
        Author(id=1, name="we"),
        Author(id=2, name="they"),
        *(Paper(id=number, data={}) for number in (1, 2)),
        Booking(id=1, first=1, last=10),
        Stock(id=1, amount=1),
        Loose(id=1, body="old"),
    )
    return World(other, gone, store)


@pytest.fixture
def heard():
    found: list[events.Repeated] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.Repeated):
            found.append(event)

    yield events.listen(hear, written=False) and found
    events.unlisten(hear)


def attempted(world: World, case: Case) -> Callable[[Session], None]:
    """The function of an attempt; what comes between two attempts is done before the second."""

    def attempt(session: Session) -> None:
        world.attempts += 1
        if world.attempts == 2:
            for act in world.between:
                act()
        case.body(session, world)

    return attempt


def check(run: Callable[[], None], case: Case, outcome: str, stored: Any) -> None:
    if outcome == RUNS:
        run()
        found = stored(case.model, 1)
        assert (found and {name: found[name] for name in case.ours or {}}) == case.ours
        return
    with pytest.raises(WouldOverwrite) as caught:
        run()
    found = stored(case.model, 1)
    assert {name: found[name] for name in case.theirs or {}} == case.theirs
    assert not is_transient(caught.value)
    [entry] = caught.value.entries
    assert entry.model is case.model
    for name in case.theirs if entry.action == "update" else ():
        if name in entry.changes:
            assert entry.current[name] == case.ours[name]
            assert entry.database[name] == case.theirs[name]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_what_is_wanted_again(engine, world, stored, name, mode):
    """A1: refused unless the row's resolver, or ``repeat_values``, stores it."""
    case = CASES[name]
    world.settles = mode in ("resolver", "overwrite")
    run = unit_of_work(engine, **in_one(options_of(case, mode)))(attempted(world, case))
    check(run, case, outcome_of(case, mode), stored)
    assert world.attempts == 2


# -- ways to run attempts --------------------------------------------------------------------------


def a_decorated_function(engine: Engine, options: Options, attempt: Attempt) -> Run:
    return unit_of_work(engine, **in_one(options))(attempt)


def a_loop(engine: Engine, options: Options, attempt: Attempt) -> Run:
    of_retry, of_unit = apart(options)

    def run() -> None:
        for one in retrying(**of_retry):
            with one, UnitOfWork(engine, **of_unit) as session:
                attempt(session)

    return run


def a_watched_session(engine: Engine, options: Options, attempt: Attempt) -> Run:
    of_retry, of_unit = apart(options)
    sessions = watch(sessionmaker(engine), **of_unit)

    @retry(**of_retry)
    def run() -> None:
        with sessions.begin() as session:
            attempt(session)

    return run


def a_watched_session_that_is_closed(engine: Engine, options: Options, attempt: Attempt) -> Run:
    of_retry, of_unit = apart(options)
    sessions = watch(sessionmaker(engine), **of_unit)

    @retry(**of_retry)
    def run() -> None:
        with sessions() as session:
            attempt(session)
            session.commit()

    return run


def one_session_for_all_attempts(engine: Engine, options: Options, attempt: Attempt) -> Run:
    """Against the rule, and safe all the same."""
    of_retry, of_unit = apart(options)
    sessions = watch(sessionmaker(engine), **of_unit)

    def run() -> None:
        with sessions() as session:
            for one in retrying(**of_retry):
                with one:
                    session.rollback()
                    attempt(session)
                    session.commit()

    return run


def a_retry_in_a_retry(engine: Engine, options: Options, attempt: Attempt) -> Run:
    """The inner one gives up, and what its attempts wanted is known to the outer one."""
    of_retry, of_unit = apart(options)

    @retry(**of_retry)
    def run() -> None:
        unit_of_work(engine, attempts=1, **of_unit)(attempt)()

    return run


def an_inner_unit(engine: Engine, options: Options, attempt: Attempt) -> Run:
    @unit_of_work(engine, **in_one(options))
    def run(session: Session) -> None:
        unit_of_work(engine)(attempt)()

    return run


def a_savepoint(engine: Engine, options: Options, attempt: Attempt) -> Run:
    @unit_of_work(engine, **in_one(options))
    def run(session: Session) -> None:
        with UnitOfWork(engine, propagation="savepoint") as inner:
            attempt(inner)

    return run


def a_disposed_engine(engine: Engine, options: Options, attempt: Attempt) -> Run:
    """It locks nothing, so that no connection is held between attempts and lost with its pool."""
    options = {**options, "before_retry": lambda event: engine.dispose(), "strategy": "optimistic"}
    return unit_of_work(engine, **in_one(options))(attempt)


def a_thread_of_the_attempt(engine: Engine, options: Options, attempt: Attempt) -> Run:
    of_retry, of_unit = apart(options)

    def work() -> None:
        with UnitOfWork(engine, **of_unit) as session:
            attempt(session)

    @retry(**of_retry)
    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copy_context().run, work).result()

    return run


def with_option(**given: Any) -> Way:
    def run(engine: Engine, options: Options, attempt: Attempt) -> Run:
        return unit_of_work(engine, **in_one(options), **given)(attempt)

    return run


WAYS: dict[str, Way] = {
    "decorated": a_decorated_function,
    "loop": a_loop,
    "watched": a_watched_session,
    "closed": a_watched_session_that_is_closed,
    "one session": one_session_for_all_attempts,
    "retry in a retry": a_retry_in_a_retry,
    "inner unit": an_inner_unit,
    "savepoint": a_savepoint,
    "disposed": a_disposed_engine,
    "thread": a_thread_of_the_attempt,
    "adaptive": with_option(strategy=Adaptive()),
    "verify_reads": with_option(verify_reads=True),
    "READ COMMITTED": with_option(isolation=Isolation.READ_COMMITTED),
    "REPEATABLE READ": with_option(isolation=Isolation.REPEATABLE_READ),
    "SERIALIZABLE": with_option(isolation=Isolation.SERIALIZABLE),
    "pipelined": with_option(pipelined=True),
}


def in_one(options: Options) -> Options:
    """The options of a function that is retry and unit in one."""
    of_retry, of_unit = apart(options)
    return {"retry": retrying(**of_retry), **of_unit}


def apart(options: Options) -> tuple[Options, Options]:
    """The options of a retry, and those of a unit."""
    of_unit = {k: v for k, v in options.items() if k in ("on_conflict", "on_delete", "strategy")}
    return {k: v for k, v in options.items() if k not in of_unit}, of_unit


def refuse_what_the_engine_cannot(engine: Engine, way: str) -> None:
    name = engine.dialect.name
    if way == "pipelined" and engine.dialect.driver != "psycopg":
        pytest.skip("COMMIT goes with the last writes on psycopg only")
    if name == "sqlite" and way == "READ COMMITTED":
        pytest.skip("SQLite has no such level")
    if name != "postgresql" and way == "SERIALIZABLE":
        pytest.skip("what was read is locked: nobody else can write")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name", ["the same column", "a row beside", "a delete", "columns together", "a policy for ours"]
)
@pytest.mark.parametrize("mode", ["resolver", "nobody", "refuse"])
def test_however_attempts_are_run(engine, world, stored, mode, name, way):
    """A1: the same in every form of a retry, and for units with whatever options."""
    refuse_what_the_engine_cannot(engine, way)
    case = CASES[name]
    run = WAYS[way](engine, options_of(case, mode), attempted(world, case))
    check(run, case, outcome_of(case, mode), stored)


class AsyncWorld(World):
    """The others write in a session of their own, inside of the greenlet of ours."""

    @classmethod
    async def on(cls, engine: AsyncEngine) -> Self:
        async with engine.begin() as connection:
            await connection.run_sync(Paper.metadata.create_all)
        async with AsyncSession(engine) as session, session.begin():
            session.add_all([Paper(id=1, data={}), Paper(id=2, data={})])

        def write(model: type[Any], key: int, **values: Any) -> None:
            with Session(engine.sync_engine) as session, session.begin():
                for name, value in values.items():
                    setattr(session.get_one(model, key), name, value)

        world = cls(write, None, None)
        world.engine = engine
        return world

    async def stored(self, model: type[Any]) -> dict[str, Any] | None:
        async with AsyncSession(self.engine) as session:
            row = await session.get(model, 1)
            names = inspect(model).column_attrs.keys()
            return None if row is None else {name: getattr(row, name) for name in names}


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["unit", "pipelined", "adaptive", "watched"])
@pytest.mark.parametrize("name", ["the same column", "a row beside", "another column", "a delete"])
@pytest.mark.parametrize("mode", ["resolver", "nobody", "refuse"])
async def test_in_async_code(async_engine, mode, name, way):
    """A1: the same for async units, and for async sessions under a retry; others are sync here."""
    if way == "pipelined" and async_engine.dialect.driver != "psycopg":
        pytest.skip("COMMIT goes with the last writes on psycopg only")
    case = CASES[name]
    world = await AsyncWorld.on(async_engine)
    attempt, outcome = attempted(world, case), outcome_of(case, mode)

    async def in_session(session: AsyncSession) -> None:
        await session.run_sync(attempt)

    options = options_of(case, mode)
    if way == "pipelined":
        options["pipelined"] = True
    if way == "adaptive":
        options["strategy"] = Adaptive()
    run = (an_async_session if way == "watched" else an_async_unit)(
        async_engine, options, in_session
    )
    if outcome == RUNS:
        await run()
    else:
        with pytest.raises(WouldOverwrite):
            await run()
    wanted = case.ours if outcome == RUNS else case.theirs
    found = await world.stored(case.model)
    assert (found and {name: found[name] for name in wanted or {}}) == wanted


def an_async_unit(engine: Any, options: Options, in_session: Any) -> Any:
    return unit_of_work(engine, **in_one(options))(in_session)


def an_async_session(engine: Any, options: Options, in_session: Any) -> Any:
    of_retry, of_unit = apart(options)
    sessions = watch(async_sessionmaker(engine), **of_unit)

    @retry(**of_retry)
    async def run() -> None:
        async with sessions.begin() as session:
            await in_session(session)

    return run


@pytest.mark.anyio
async def test_an_async_resolver_is_asked_about_a_repeated_value_as_well(async_engine):
    """A1: it is awaited, in the flush of attempt 2."""
    asked = []

    async def resolver(entry: Entry[Any]) -> Resolution:
        await turn()
        asked.append(dict(entry.changes))
        return Resolution.reject(reason="both have written")

    world = await AsyncWorld.on(async_engine)
    attempt = attempted(world, CASES["the same column"])

    @unit_of_work(async_engine, on_conflict=resolver, retry=retrying(wait_initial=0))
    async def run(session: AsyncSession) -> None:
        await session.run_sync(attempt)

    with pytest.raises(WouldOverwrite) as caught:
        await run()
    assert asked == [{"body": "ours"}] * 2
    assert any("both have written" in note for note in caught.value.__notes__)


# -- the edges -------------------------------------------------------------------------------------


def fails_with(run: Run) -> WouldOverwrite:
    with pytest.raises(WouldOverwrite) as caught:
        run()
    return caught.value


@pytest.mark.parametrize(
    "on",
    [Exception, (ConcurrencyError, WouldOverwrite), ConcurrencyError, lambda error: True],
    ids=told,
)
@pytest.mark.engines("sqlite-wal")
def test_it_is_final(engine, world, on):
    """A1: for whatever ``on=``, and for a retry around this one."""
    attempt = attempted(world, CASES["the same column"])

    @retry(on=on, wait_initial=0)
    def outer() -> None:
        unit_of_work(engine, on_conflict=merge_fields, retry=retrying(on=on, wait_initial=0))(
            attempt
        )()

    error = fails_with(outer)
    assert world.attempts == 2
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.entries, str(copy)) == (WouldOverwrite, error.entries, str(error))
    assert "theirs" not in str(error)
    assert "ours" not in str(error)


@pytest.mark.engines("sqlite-wal")
def test_an_attempt_in_which_nothing_fails_remembers_nothing(engine, world):
    """A1: nor does a retry that needs one attempt."""

    @unit_of_work(engine, on_conflict=merge_fields)
    def run(session: Session) -> None:
        page = session.get_one(Paper, 1)
        page.body = "ours"
        session.flush()
        assert attempt_here.get().wanted == {}
        assert attempt_here.get().repeats is None
        assert record_of(session).judged is None

    run()
    assert attempt_here.get() is None


@pytest.mark.engines("sqlite-wal")
def test_what_the_attempt_itself_has_committed_is_its_own(engine, world, stored):
    """A1: the second transaction of attempt 2 goes over what its first one has stored."""
    sessions = watch(sessionmaker(engine), on_conflict=merge_fields)
    attempts = []

    @retry(wait_initial=0, on=Exception)
    def run() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            with sessions.begin() as session:
                session.get_one(Paper, 1).body = "ours"
                raise ZeroDivisionError
        for body in ("ours", "another", "ours"):
            with sessions.begin() as session:
                session.get_one(Paper, 1).body = body

    run()
    assert stored(Paper, 1)["body"] == "ours"


@pytest.mark.engines("sqlite-wal")
def test_a_third_attempt_knows_what_the_second_wanted(engine, world, stored):
    """A1: others write between attempts 2 and 3, of which attempt 1 knows nothing."""

    @unit_of_work(
        engine, on_conflict=merge_fields, retry=retrying(on=again_or_transient, wait_initial=0)
    )
    def run(session: Session) -> None:
        world.attempts += 1
        if world.attempts == 3:
            world.write(Paper, 1, body="theirs")
        page = session.get_one(Paper, 1)
        page.title = "one" if world.first else page.title
        page.body = page.body if world.first else "ours"
        if world.attempts < 3:
            raise Again

    fails_with(run)
    assert stored(Paper, 1)["body"] == "theirs"


@pytest.mark.engines("sqlite-wal")
def test_a_third_attempt_knows_what_the_first_wanted(engine, world, stored):
    """A1: attempt 2 has written another column of the row, and left this one alone."""

    @unit_of_work(
        engine, on_conflict=merge_fields, retry=retrying(on=again_or_transient, wait_initial=0)
    )
    def run(session: Session) -> None:
        world.attempts += 1
        page = session.get_one(Paper, 1)
        world.others(body="theirs")
        if world.attempts == 2:
            page.n += 1
        else:
            page.body = "ours"
        if world.attempts < 3:
            raise Again

    fails_with(run)
    assert stored(Paper, 1)["body"] == "theirs"


@pytest.mark.engines("sqlite-wal")
def test_the_same_row_of_another_database_is_another_row(engine, world, tmp_path):
    """A1: attempt 1 wanted the value in one database, and attempt 2 writes it in another."""
    elsewhere = create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
    Paper.metadata.create_all(elsewhere)
    with Session(elsewhere) as session, session.begin():
        session.add(Paper(id=1, body="of another", data={}))
    sides = [engine, elsewhere]

    @retry(on=Again, wait_initial=0, repeat_values="refuse")
    def run() -> None:
        with UnitOfWork(sides.pop(0)) as session:
            session.get_one(Paper, 1).body = "ours"
            if sides:
                raise Again

    run()
    elsewhere.dispose()


@pytest.mark.engines("sqlite-wal")
def test_who_names_the_version_has_seen_it(engine, world, stored):
    """A1: ``expect()`` of the version that attempt 2 reads says that its author knows it."""
    tags = [1, 2]

    @unit_of_work(
        engine, retry=retrying(on=again_or_transient, wait_initial=0), on_conflict=merge_fields
    )
    def run(session: Session) -> None:
        world.attempts += 1
        page = session.get_one(Paper, 1)
        expect(page, tags.pop(0))
        world.others(body="theirs")
        page.body = "ours"
        world.then_fail()

    run()
    assert stored(Paper, 1)["body"] == "ours"


# -- columns that are written again ----------------------------------------------------------------


@pytest.fixture
def signed(engine, store, other):
    """Run attempts of which the first one conflicts; the sessions are made by ``factory``."""
    store(Signed(id=1))

    def run(factory: Any, edit: Callable[[Signed], None], **theirs: Any) -> int:
        runs: list[int] = []

        @unit_of_work(factory, retry=retrying(wait_initial=0), strategy="optimistic")
        def work(session: Session) -> None:
            row = session.get_one(Signed, 1)
            if not runs:
                other(Signed, 1, n=row.n + 4, **theirs)
            runs.append(1)
            row.n += 1
            edit(row)

        work()
        return len(runs)

    return run


def sign(session: Session, *_: object) -> None:
    for obj in session.dirty:
        if isinstance(obj, Signed):
            obj.stamped, obj.author_id = "me", 7


class SigningSession(Session):
    def flush(self, objects: Any = None) -> None:
        sign(self)
        super().flush(objects)


def no_edit(row: Signed) -> None:
    pass


def by_author(row: Signed) -> None:
    row.author = "me"


def test_each_write_may_be_signed(engine, signed, store, stored):
    """By a listener of the flush, of the row, a session's own flush, onupdate or the author."""
    store(Author(id=7, name="me"), Author(id=8, name="they"))
    theirs = {"stamped": "they", "author_id": 8, "changed_by": "they", "author": "they"}
    listening, own = sessionmaker(engine), sessionmaker(engine, class_=SigningSession)
    sqlalchemy_event.listen(listening, "before_flush", sign)
    for factory in (listening, own):
        assert signed(factory, by_author, **theirs) == 2

    def before_update(mapper: Any, connection: Any, row: Signed) -> None:
        row.stamped = "me"

    sqlalchemy_event.listen(Signed, "before_update", before_update)
    try:
        assert signed(engine, no_edit, **theirs) == 2
    finally:
        sqlalchemy_event.remove(Signed, "before_update", before_update)
    found = stored(Signed, 1)
    assert (found["n"], found["stamped"], found["changed_by"]) == (16, "me", "me")


def test_the_class_names_columns_that_are_written_again(engine, signed, stored, heard):
    """A status that several states lead to; another column that was typed is refused beside it."""

    def pay(row: Signed) -> None:
        row.status = "paid"

    assert signed(engine, pay, status="sent") == 2
    assert stored(Signed, 1)["status"] == "paid"
    [event] = heard
    [entry] = event.as_dict()["entries"]
    assert entry["conflicting"] == ["status"]
    assert "sent" not in repr(event) + str(event.as_dict())

    def pay_and_name(row: Signed) -> None:
        row.status, row.title = "paid", "ours"

    error = fails_with(lambda: signed(engine, pay_and_name, status="sent", title="theirs"))
    assert error.entries[0].conflicting == {"title"}
    assert "__version_repeats__" in str(error)


def test_a_misspelt_column_that_is_written_again_is_refused():
    with pytest.raises(ConfigurationError, match="__version_repeats__ names 'stats'"):

        class Base(DeclarativeBase):
            pass

        class Order(Versioned, Base):
            __tablename__ = "orders"
            __version_repeats__ = ("stats",)
            id: Mapped[int] = mapped_column(primary_key=True)
            status: Mapped[str]


@pytest.mark.engines("sqlite-wal")
def test_clients_get_409_with_the_three_values(engine, world, monkeypatch):
    """A1: as of any other conflict that no tag was sent for."""
    monkeypatch.setattr(Paper, "__problem_fields__", ("body",), raising=False)
    case = CASES["the same column"]
    run = unit_of_work(engine, **in_one(options_of(case, "resolver")))(attempted(world, case))
    error = fails_with(run)
    problem = problem_of(error)
    assert problem is not None
    assert problem.status == 409
    assert problem.body["conflicts"] == {
        "body": {"original": "old", "current": "ours", "database": "theirs"}
    }
    assert problem.body["etag"]


@pytest.mark.parametrize("value", ["ask", True, 0, ""], ids=told)
def test_what_is_no_choice_is_refused_at_once(value):
    """A1: by both forms, before anything runs."""
    for make in (retry, retrying):
        with pytest.raises(ConfigurationError, match="repeat_values"):
            make(repeat_values=value)
    block = unit_of_work(create_engine("sqlite://"), retry=retrying(repeat_values="refuse"))
    with pytest.raises(ConfigurationError, match="has an option of a retry"), block:
        pass


# -- kinds of rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", KINDS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("moment", ["in attempt 1", "between", "after an earlier flush"])
def test_whatever_the_token_is(engine, tables, stored, model, moment):
    """A1: a version by Python, by the database, by the clock, none at all, or SQLAlchemy's own."""
    tables(model)
    with UnitOfWork(engine) as session:
        session.add(model(id=1, text="old", n=1))
    attempts = []

    def others() -> None:
        with UnitOfWork(engine, propagation="independent") as session:
            session.get_one(model, 1).text = "theirs"

    @unit_of_work(
        engine, on_conflict=merge_fields, retry=retrying(on=again_or_transient, wait_initial=0)
    )
    def run(session: Session) -> None:
        attempts.append(1)
        if len(attempts) == 2 and moment != "in attempt 1":
            others()
        row = session.get_one(model, 1)
        if len(attempts) == 1 and moment == "in attempt 1":
            others()
        row.text = "ours"
        if moment == "after an earlier flush":
            session.flush()
        if len(attempts) == 1 and moment != "in attempt 1":
            raise Again

    if model is Compared and moment == "after an earlier flush":
        run()  # it has no version, and nothing else tells whether it has moved
        return
    [entry] = fails_with(run).entries
    assert stored(model, 1)["text"] == entry.database["text"] == "theirs"
    assert len(attempts) == 2


@pytest.mark.parametrize("moment", ["in attempt 1", "between", "nobody"])
@pytest.mark.engines("sqlite-wal", "postgresql")
def test_a_column_that_is_set_without_being_read(engine, store, other, stored, moment):
    """A1: nobody can say that the others left it alone, if they have changed the row at all."""
    store(Long(id=1, text="old", n=1))
    attempts = []

    @unit_of_work(
        engine, on_conflict=merge_fields, retry=retrying(on=again_or_transient, wait_initial=0)
    )
    def run(session: Session) -> None:
        attempts.append(1)
        if len(attempts) == 2 and moment == "between":
            other(Long, 1, text="theirs")
        row = session.get_one(Long, 1)
        if len(attempts) == 1 and moment == "in attempt 1":
            other(Long, 1, text="theirs")
        row.text = "ours"
        if len(attempts) == 1:
            raise Again

    if moment == "nobody":
        run()
        assert stored(Long, 1)["text"] == "ours"
        return
    [entry] = fails_with(run).entries
    assert entry.conflicting == {"text"}
    assert stored(Long, 1)["text"] == "theirs"


@pytest.mark.engines("sqlite-wal", "postgresql")
def test_an_orphan_is_a_delete_like_any_other(engine, store, other, stored):
    """A1: its parent lets it go in each attempt, and others have edited it."""
    store(Post(id=1, title="a", comments=[Comment(id=1, text="old")]))
    attempts = []

    @unit_of_work(engine, on_conflict=merge_fields, retry=retrying(wait_initial=0))
    def run(session: Session) -> None:
        attempts.append(1)
        post = session.get_one(Post, 1)
        post.comments.clear()
        if len(attempts) == 1:
            other(Comment, 1, text="theirs")

    fails_with(run)
    assert stored(Comment, 1)["text"] == "theirs"


@pytest.mark.engines("sqlite-wal", "postgresql")
def test_both_tables_of_a_joined_row(engine, store, other, stored):
    """A1: the value is in one table, and the version in another."""
    store(Dog(id=1, name="old", tricks="sit"))
    attempts = []

    @unit_of_work(engine, on_conflict=merge_fields, retry=retrying(wait_initial=0))
    def run(session: Session) -> None:
        attempts.append(1)
        dog = session.get_one(Animal, 1)
        if len(attempts) == 1:
            other(Dog, 1, tricks="theirs")
        dog.tricks = "ours"

    [entry] = fails_with(run).entries
    assert (entry.model, entry.conflicting) == (Dog, {"tricks"})
    assert stored(Dog, 1)["tricks"] == "theirs"
