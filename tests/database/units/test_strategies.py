"""Which rows a unit locks when it reads them, seen in the statements that it sends."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine, func, select, text, update
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, defer, joinedload, selectinload, sessionmaker, subqueryload

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    etag_of,
    events,
    expect,
    lock,
    retrying,
    unit_of_work,
    verify,
)
from optilock.testing import count_statements
from optilock.unit import Adaptive
from optilock.unit.heat import MEMORY, UNITS_OF_A_READER, Key
from optilock.unit.reading import Reading
from tests.support.models import Account, Base, Comment, Dog, Page, Post, Seat, Tag

ALL_ROWS = "WHERE 0 = 1"  # SQLite: the write lock of the file


@pytest.fixture
def sessions(engine, store):
    store(
        Account(id=1, balance=10),
        Account(id=2, balance=20),
        Post(id=1, comments=[Comment(id=1), Comment(id=2)], tags=[Tag(id=1)]),
        Page(id=1, body="..."),
    )
    return sessionmaker(engine)


@pytest.fixture
def locks(engine):
    """How many of the statements in a block have locked rows."""

    def locks(work, *args):
        with count_statements(engine) as sent:
            work(*args)
        return len(locking(sent))

    return locks


def locking(sent):
    words = ("FOR UPDATE", "FOR NO KEY UPDATE", ALL_ROWS)
    return [one.text for one in sent.statements if any(word in one.text for word in words)]


def key_of(sessions, cls, identity=None):
    with sessions() as session:
        return Reading(session, None, MEMORY).key_of(session, cls.__mapper__, identity)


def heat(sessions, cls, identity=None):
    """Somebody has conflicted there, and nobody probes."""
    key = key_of(sessions, cls, identity)
    MEMORY.conflict(key, Adaptive(), "the test says so")
    MEMORY.rows[key].left = 1_000_000
    return key


def hot_ones():
    return {key for key, heat in MEMORY.rows.items() if heat.hot}


def in_a_unit(sessions, work, strategy="adaptive", **options):
    def run():
        with UnitOfWork(sessions, strategy=strategy, **options) as session:
            work(session)

    return run


def deposit(session, key=1):
    session.get_one(Account, key).balance += 1


# -- which rows ------------------------------------------------------------------------------------


def test_a_cold_row_is_read_without_a_lock_and_sends_nothing_more(sessions, engine):
    with count_statements(engine) as sent:
        in_a_unit(sessions, deposit)()
    assert sent.count == 2
    assert not locking(sent)


def test_an_optimistic_unit_locks_nothing_even_if_the_row_is_hot(sessions, locks):
    heat(sessions, Account, (1,))
    assert locks(in_a_unit(sessions, deposit, "optimistic")) == 0


def test_a_decorated_function_is_adaptive_unless_it_says_something_else(sessions, locks):
    heat(sessions, Account, (1,))
    assert locks(unit_of_work(sessions)(deposit)) == 1
    assert locks(unit_of_work(sessions, strategy="optimistic")(deposit)) == 0
    assert locks(in_a_unit(sessions, deposit, None)) == 0


def test_so_is_a_unit_in_a_loop_of_attempts(sessions, locks):
    def loop():
        for attempt in retrying():
            with attempt, UnitOfWork(sessions) as session:
                deposit(session)

    heat(sessions, Account, (1,))
    assert locks(loop) == 1


@pytest.mark.needs("row-locks")
def test_a_unit_on_its_own_inside_of_another_one_waits_for_none_of_its_rows(sessions):
    """The inner unit would wait for ever for the row that the outer one has written."""
    heat(sessions, Account, (1,))

    @unit_of_work(sessions, propagation="independent")
    def look(session):
        return session.get_one(Account, 1).balance

    @unit_of_work(sessions)
    def outer(session):
        deposit(session)
        session.flush()
        return look()

    assert outer() == 10


def test_units_that_only_read_a_hot_row_stop_locking_it(sessions, locks):
    """A function is known by its name; it locks again once it has written, or conflicted."""
    heat(sessions, Account, (1,))
    writes = []

    @unit_of_work(sessions)
    def look(session):
        account = session.get_one(Account, 1)
        if writes:
            account.balance += 1

    assert [locks(look) for _ in range(UNITS_OF_A_READER + 2)] == [1] * UNITS_OF_A_READER + [0, 0]
    assert locks(unit_of_work(sessions)(deposit)) == 1
    writes.append(True)
    assert [locks(look), locks(look)] == [0, 1]


def test_units_that_write_now_and_then_lock_each_time(sessions, locks):
    """A withdrawal that finds too little writes nothing, and the next one does again."""
    heat(sessions, Account, (1,))
    writes = []

    @unit_of_work(sessions)
    def withdraw(session):
        account = session.get_one(Account, 1)
        if writes.pop():
            account.balance -= 1

    for _ in range(3):
        writes[:] = [False] * (UNITS_OF_A_READER - 1) + [True]
        assert [locks(withdraw) for _ in range(UNITS_OF_A_READER)] == [1] * UNITS_OF_A_READER


@pytest.mark.parametrize(
    "use",
    [
        lambda session, account: verify(account),
        lambda session, account: expect(account, etag_of(account)),
        lambda session, account: session.execute(
            update(Account).where(Account.id == 1).values(balance=Account.balance + 1)
        ),
    ],
    ids=["verify", "expect", "an UPDATE"],
)
def test_units_that_need_a_row_and_do_not_flush_it_lock_each_time(sessions, locks, use):
    heat(sessions, Account, (1,))
    of_reads = []

    @unit_of_work(sessions)
    def work(session):
        of_reads.append(locks(session.get_one, Account, 1))
        use(session, session.get_one(Account, 1))

    for _ in range(UNITS_OF_A_READER + 2):
        work()
    assert of_reads == [1] * (UNITS_OF_A_READER + 2)


def test_a_unit_without_a_name_locks_again_once_it_has_written(sessions, locks):
    MEMORY.note_refused(None, heat(sessions, Account, (1,)), always=False)
    assert [locks(in_a_unit(sessions, deposit)) for _ in "ab"] == [0, 1]


def test_a_reader_that_conflicts_locks_again(sessions, other, locks):
    heat(sessions, Account, (1,))
    begun = []

    @unit_of_work(sessions, retry=retrying(wait_initial=0))
    def look(session):
        account = session.get_one(Account, 1)
        begun.append(account)
        if len(begun) == UNITS_OF_A_READER + 2:
            other(Account, 1, balance=50)
        if len(begun) > UNITS_OF_A_READER + 1:
            account.balance += 1

    assert [locks(look) for _ in range(UNITS_OF_A_READER + 1)] == [1] * UNITS_OF_A_READER + [0]
    look()
    assert len(begun) == UNITS_OF_A_READER + 3
    assert locks(look) == 1


@pytest.mark.engines("postgresql")
def test_no_wait_for_a_hot_row_is_without_a_bound(sessions, engine):
    """PostgreSQL waits for ever; a limit of the application's own stays."""
    heat(sessions, Account, (1,))
    found = []

    @unit_of_work(sessions)
    def work(session):
        session.get_one(Account, 1)
        found.append(session.scalar(text("SHOW lock_timeout")))

    work()
    own = create_engine(engine.url, connect_args={"options": "-c lock_timeout=5s"})
    unit_of_work(sessionmaker(own))(work.__wrapped__)()
    own.dispose()
    assert found == ["9999ms", "5s"]


def test_a_hot_row_is_locked_when_it_is_read_and_costs_no_statement(sessions, engine):
    heat(sessions, Account, (1,))
    with count_statements(engine) as sent:
        in_a_unit(sessions, deposit)()
    assert len(locking(sent)) == 1
    assert sent.count == (3 if engine.dialect.name == "sqlite" else 2)


def test_only_the_hot_row_is_locked(sessions, locks):
    heat(sessions, Account, (1,))
    assert locks(in_a_unit(sessions, lambda session: deposit(session, 2))) == 0


def test_a_row_of_another_database_with_the_same_key_is_another_row(sessions, locks):
    key = key_of(sessions, Account, (1,))
    MEMORY.conflict(Key("elsewhere", *key[1:]), Adaptive(), "")
    assert locks(in_a_unit(sessions, deposit)) == 0


def test_a_pessimistic_unit_locks_every_row_that_it_reads(sessions, engine):
    def work(session):
        deposit(session, 1)
        deposit(session, 2)
        session.get_one(Account, 1)

    with count_statements(engine) as sent:
        in_a_unit(sessions, work, "pessimistic")()
    assert len(locking(sent)) == (1 if engine.dialect.name == "sqlite" else 2)


@pytest.mark.needs("row-locks")
def test_somebody_else_waits_for_a_row_that_was_read(sessions):
    heat(sessions, Account, (1,))
    with UnitOfWork(sessions, strategy="adaptive") as session:
        session.get_one(Account, 1)
        with UnitOfWork(sessions, propagation="independent") as other:
            assert not lock(other.get_one(Account, 1), skip_locked=True)
            assert lock(other.get_one(Account, 2), skip_locked=True)


@pytest.mark.engines("postgresql")
def test_the_lock_leaves_foreign_keys_to_the_row_alone(sessions):
    with UnitOfWork(sessions, strategy="pessimistic") as session:
        session.get_one(Post, 1)
        with sessions.begin() as other:
            other.execute(text("SET LOCAL lock_timeout = '1s'"))
            other.add(Comment(id=7, post_id=1))


WAYS = {
    "get": lambda s: s.get(Account, 1),
    "get with options": lambda s: s.get(Account, 1, populate_existing=True),
    "get by name": lambda s: s.get(Account, {"id": 1}),
    "refresh": lambda s: s.refresh(s.get_one(Account, 1)),
    "expired": lambda s: (s.expire(s.get_one(Account, 1)), s.get_one(Account, 1).balance),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_one_row_asks_for_its_heat(sessions, locks, way):
    heat(sessions, Account, (1,))
    assert locks(in_a_unit(sessions, WAYS[way])) == 1


def test_a_key_of_two_columns(sessions, store, locks):
    store(Seat(show="Hamlet", number=7))
    heat(sessions, Seat, ("Hamlet", 7))
    assert locks(in_a_unit(sessions, lambda s: s.get_one(Seat, ("Hamlet", 7)))) == 1
    assert locks(in_a_unit(sessions, lambda s: s.get(Seat, ("Hamlet", 8)))) == 0


def test_a_row_of_two_tables_is_locked_in_the_one_with_its_version(sessions, store, locks):
    store(Dog(id=1, name="Rex"))
    heat(sessions, Dog, (1,))

    def work(session):
        dog = session.get_one(Dog, 1)
        session.expire(dog, ["tricks"])
        assert dog.tricks is None
        dog.name = "Max"

    assert locks(in_a_unit(sessions, work)) == 1


def test_deferred_columns_of_a_locked_row_are_read(sessions, locks):
    heat(sessions, Page, (1,))

    def work(session):
        assert session.get_one(Page, 1, options=[defer(Page.body)]).body == "..."

    assert locks(in_a_unit(sessions, work)) == 1


def test_a_many_to_one_lazy_load_locks_the_hot_parent(sessions, locks):
    heat(sessions, Post, (1,))
    assert locks(in_a_unit(sessions, lambda s: s.get_one(Comment, 1).post)) == 1


# -- queries ---------------------------------------------------------------------------------------

QUERIES = {
    "a query": lambda s: s.scalars(select(Comment).where(Comment.post_id == 1)).all(),
    "Query": lambda s: s.query(Comment).filter_by(id=1).one(),
    "lazy load": lambda s: s.get_one(Post, 1).comments,
    "selectinload": lambda s: s.scalars(select(Post).options(selectinload(Post.comments))).all(),
    "subqueryload": lambda s: s.scalars(select(Post).options(subqueryload(Post.comments))).all(),
    "refresh of a collection": lambda s: s.refresh(s.get_one(Post, 1), ["comments"]),
}


@pytest.mark.parametrize("way", QUERIES)
def test_queries_of_a_table_whose_rows_conflict_lock_them(sessions, locks, way):
    assert locks(in_a_unit(sessions, QUERIES[way])) == 0
    heat(sessions, Comment)
    assert locks(in_a_unit(sessions, QUERIES[way])) == 1


UNLOCKED = {
    "count": lambda s: s.scalar(select(func.count()).select_from(Comment)),
    "distinct": lambda s: s.scalars(select(Comment).distinct()).all(),
    "columns": lambda s: s.execute(select(Comment.id)).all(),
    "joined": lambda s: s.scalars(select(Tag)).all(),
}


@pytest.mark.parametrize("way", UNLOCKED)
def test_what_cannot_be_locked_is_read_without(sessions, locks, way):
    heat(sessions, Comment)
    assert locks(in_a_unit(sessions, UNLOCKED[way])) == 0


EAGER = {
    "joined": lambda s: s.scalars(select(Post).options(joinedload(Post.comments))).unique().all(),
    "limited": lambda s: (
        s.scalars(select(Post).options(joinedload(Post.comments)).limit(1)).unique().all()
    ),
    "many to many": lambda s: s.scalars(select(Post).options(selectinload(Post.tags))).all(),
    "outer": lambda s: s.scalars(select(Post).outerjoin(Post.comments)).all(),
    "aggregate beside": lambda s: s.execute(select(Post, func.count()).group_by(Post)).all(),
    "lambda": lambda s: s.execute(text("SELECT 1")).all(),
}


@pytest.mark.parametrize("way", EAGER)
def test_a_pessimistic_unit_reads_whatever_a_plain_one_reads(sessions, way):
    if way != "aggregate beside":
        in_a_unit(sessions, EAGER[way], "pessimistic")()
    else:
        in_a_unit(
            sessions,
            lambda s: s.execute(select(Post.id, func.count()).group_by(Post.id)).all(),
            "pessimistic",
        )()


def test_a_conflict_of_a_unit_that_has_queried_heats_the_table(sessions, other):
    with pytest.raises(ConcurrencyError), UnitOfWork(sessions, strategy="adaptive") as session:
        one = session.scalars(select(Account).where(Account.id == 1)).one()
        other(Account, 1, balance=99)
        one.balance = 1
    assert hot_ones() == {key_of(sessions, Account, (1,)), key_of(sessions, Account)}


def test_a_conflict_of_a_row_that_was_read_by_its_key_heats_the_row_alone(sessions, other):
    with pytest.raises(ConcurrencyError), UnitOfWork(sessions, strategy="adaptive") as session:
        one = session.get_one(Account, 1)
        other(Account, 1, balance=99)
        one.balance = 1
    assert hot_ones() == {key_of(sessions, Account, (1,))}


def test_rows_of_one_table_that_conflict_heat_it_for_readings_by_key(sessions, locks, other):
    for number in (1, 2):
        with pytest.raises(ConcurrencyError), UnitOfWork(sessions, strategy="adaptive") as session:
            one = session.get_one(Account, number)
            other(Account, number, balance=99)
            one.balance = 1
    with sessions.begin() as session:
        session.add(Account(id=3, balance=1))
    assert locks(in_a_unit(sessions, lambda s: s.get_one(Account, 3))) == 1
    assert locks(in_a_unit(sessions, lambda s: s.scalars(select(Account)).all())) == 0


# -- objects that the session holds ----------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["adaptive", "pessimistic"])
def test_an_object_read_without_a_lock_is_locked_and_compared(sessions, locks, strategy):
    def work(session):
        (row,) = session.scalars(select(Account).where(Account.id == 1).distinct())
        heat(sessions, Account, (1,))
        assert session.get_one(Account, 1) is row
        session.get_one(Account, 1)

    assert locks(in_a_unit(sessions, work, strategy)) == 1


@pytest.mark.parametrize("strategy", ["adaptive", "pessimistic"])
def test_one_whose_row_has_moved_is_a_conflict_at_once(sessions, other, stored, strategy):
    """What was decided on the older row would otherwise be written under the newer version."""
    with (
        pytest.raises(ConcurrencyError) as caught,
        UnitOfWork(sessions, strategy=strategy) as session,
    ):
        (row,) = session.scalars(select(Account).where(Account.id == 1).distinct())
        decided = row.balance + 1
        other(Account, 1, balance=99)
        heat(sessions, Account, (1,))
        session.get_one(Account, 1).balance = decided
    assert caught.value.entries[0].database["balance"] == 99
    assert stored(Account, 1)["balance"] == 99


# -- what is only read -----------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["read_only", "verify_reads"])
def test_units_that_only_read_lock_nothing_that_is_hot(sessions, locks, option):
    heat(sessions, Account, (1,))
    read = in_a_unit(sessions, lambda s: s.get_one(Account, 1), **{option: True})
    if option == "verify_reads":
        with UnitOfWork(sessions, strategy="adaptive", verify_reads=True) as session:
            assert locks(session.get_one, Account, 1) == 0
    else:
        assert locks(read) == 0


def test_a_promise_that_is_broken_heats_nothing(sessions, other):
    """The row was only read: a lock would let readers wait for each other."""
    for error, promise in (
        (ConcurrencyError, verify),
        (PreconditionFailed, lambda o: expect(o, 1)),
    ):
        with pytest.raises(error), UnitOfWork(sessions, strategy="adaptive") as session:
            row = session.get_one(Account, 1)
            promise(row)
            other(Account, 1, balance=99 + len(error.__name__))
            session.get_one(Account, 2).balance += 1
    assert not MEMORY.rows


class Basalt(SQLiteDialect_pysqlite):
    """A database that nobody knows, and that has no FOR UPDATE."""

    name = "basalt"
    supports_statement_cache = True


def test_a_dialect_without_row_locks_refuses_pessimistic_by_name(tmp_path):
    registry.register("basalt", __name__, "Basalt")
    engine = create_engine(f"basalt:///{tmp_path}/basalt.db")
    Base.metadata.create_all(engine, tables=[Account.__table__])
    with Session(engine) as session, session.begin():
        session.add(Account(id=1, balance=10))
    sessions = sessionmaker(engine)
    with pytest.raises(ConfigurationError, match=r"pessimistic.*'basalt'"):
        in_a_unit(sessions, deposit, "pessimistic")()
    heat(sessions, Account, (1,))
    with count_statements(engine) as sent:
        in_a_unit(sessions, deposit)()
    assert sent.count == 2
    engine.dispose()


# -- cooling down ----------------------------------------------------------------------------------


def test_a_probe_that_succeeds_cools_the_row_down(sessions, locks, engine):
    key = heat(sessions, Account, (1,))
    found = []
    listener = events.listen(found.append, written=False)
    try:
        for _ in range(4):
            MEMORY.rows[key].left = 1  # it is time for a probe
            assert locks(in_a_unit(sessions, deposit)) == 0
    finally:
        events.unlisten(listener)
    assert [event.because for event in found if isinstance(event, events.Cold)] == [
        "it was written without a lock or a conflict"
    ]
    assert not MEMORY.rows[key].hot


def heat_both(sessions, due):
    """Heat two rows, and not their table; it is time for a probe of one."""
    keys = [heat(sessions, Account, (number,)) for number in (1, 2)]
    del MEMORY.rows[keys[0].any_row]
    MEMORY.rows[keys[due - 1]].left = 1
    return {key: MEMORY.rows[key].average for key in keys}


def deposit_on_both(session):
    for number in (1, 2):
        session.get_one(Account, number).balance += 1


def test_a_probe_reads_all_hot_rows_of_the_unit_without_locks(sessions, locks):
    """With one lock it would wait for the probed row while others wait for the locked one."""
    before = heat_both(sessions, due=1)
    assert locks(in_a_unit(sessions, deposit_on_both)) == 0
    assert all(MEMORY.rows[key].average < before[key] for key in before)
    assert locks(in_a_unit(sessions, deposit_on_both)) > 0


def test_a_unit_that_has_a_lock_begins_no_probe(sessions, locks, engine):
    heat_both(sessions, due=2)
    one_lock = engine.dialect.name == "sqlite"
    assert locks(in_a_unit(sessions, deposit_on_both)) == (1 if one_lock else 2)
    assert locks(in_a_unit(sessions, lambda s: s.get_one(Account, 2))) == 0  # it is due still


def test_what_succeeds_under_a_lock_leaves_the_row_hot(sessions, locks):
    key = heat(sessions, Account, (1,))
    before = MEMORY.rows[key].average
    for _ in range(20):
        assert locks(in_a_unit(sessions, deposit)) == 1
    assert MEMORY.rows[key].average == before


def test_a_probe_that_only_reads_says_nothing(sessions):
    key = heat(sessions, Account, (1,))
    before = MEMORY.rows[key].average
    MEMORY.rows[key].left = 1
    in_a_unit(sessions, lambda s: s.get_one(Account, 1))()
    assert MEMORY.rows[key].average == before


def test_a_unit_that_has_never_read_may_write(sessions, stored):
    heat(sessions, Account, (1,))
    in_a_unit(sessions, lambda s: s.add(Account(id=3)))()
    assert stored(Account, 3) is not None


# -- sessions --------------------------------------------------------------------------------------


def test_a_session_that_reads_elsewhere_locks_where_it_writes(sessions, engine, database):
    replica = database.engine()
    try:

        class Routing(Session):
            def get_bind(self, mapper=None, *, clause=None, **given):
                writes = clause is not None and clause.is_dml
                return engine if writes or self._flushing else replica

        routed = sessionmaker(class_=Routing)
        heat(sessions, Account, (1,))
        with count_statements(replica) as there, count_statements(engine) as here:
            in_a_unit(routed, deposit)()
        assert not locking(there)
        assert len(locking(here)) == 1
    finally:
        replica.dispose()


def test_sessions_with_engines_for_classes(sessions, engine, locks):
    bound = sessionmaker(binds={Base: engine})
    heat(sessions, Account, (1,))
    assert locks(in_a_unit(bound, deposit)) == 1


def test_a_strategy_beside_a_resolver_and_inner_units(sessions, stored):
    heat(sessions, Account, (1,))

    @unit_of_work(sessions, strategy="adaptive")
    def inner(session):
        deposit(session)

    with UnitOfWork(sessions, strategy="adaptive"):
        inner()
    assert stored(Account, 1)["balance"] == 11


# -- async -----------------------------------------------------------------------------------------


@pytest.fixture
async def async_sessions(async_engine, async_store):
    made = async_sessionmaker(async_engine)
    async_store(Account(id=1, balance=10), Account(id=2, balance=20))
    return made


@pytest.mark.anyio
async def test_an_async_unit_locks_what_is_hot(async_sessions, async_engine):
    with async_sessions().sync_session as session:
        key = Reading(session, None, MEMORY).key_of(session, Account.__mapper__, (1,))
    MEMORY.conflict(key, Adaptive(), "")
    MEMORY.rows[key].left = 1000
    for number, expected in ((1, 1), (2, 0)):
        with count_statements(async_engine) as sent:
            async with AsyncUnitOfWork(async_sessions, strategy="adaptive") as session:
                (await session.get_one(Account, number)).balance += 1
        assert len(locking(sent)) == expected


@pytest.mark.anyio
async def test_an_async_function_runs_again_and_locks(async_sessions, async_engine):
    seen = []

    @unit_of_work(async_sessions, strategy="adaptive")
    async def work(session: AsyncSession) -> None:
        row = await session.get_one(Account, 1)
        seen.append(row.balance)
        if len(seen) == 1:
            async with async_sessions.begin() as other:
                (await other.get_one(Account, 1)).balance = 99
        row.balance += 1

    with count_statements(async_engine) as sent:
        await work()
    assert seen == [10, 99]
    assert locking(sent)
    async with async_sessions() as session:
        assert (await session.get_one(Account, 1)).balance == 100


def test_threads_share_what_they_have_found_out(sessions, locks):
    heat(sessions, Account, (1,))
    found = []
    thread = threading.Thread(target=lambda: found.append(locks(in_a_unit(sessions, deposit))))
    thread.start()
    thread.join()
    assert found == [1]
