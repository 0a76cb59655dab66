"""C9: what a function of the program raises comes out as it is, wherever optilock calls it.

It is no conflict: nothing is run again, no client is told 409, and the transaction is left as by
any other error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import String, TypeDecorator, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import (
    ConcurrencyError,
    Entry,
    Versioned,
    events,
    is_transient,
    merge_fields,
    retrying,
    unit_of_work,
    watch,
)
from optilock.conditions import Condition, Demand
from optilock.preconditions import merge_changes, sign_seen
from optilock.preconditions.entity_tags import ETags
from optilock.resolvers import per_field
from optilock.statements import demand
from optilock.tokens import Counter
from optilock.unit import Part
from optilock.web.problems import problem_of

TAGS = ETags(keys=["a key of sixteen bytes or more"])


class Base(DeclarativeBase):
    pass


class Compared(TypeDecorator[str]):
    """The program's own type, whose comparison fails when it is told to."""

    impl = String(60)
    cache_ok = True
    fails = False

    def compare_values(self, x: Any, y: Any) -> bool:
        if Compared.fails:
            raise Bug
        return bool(x == y)


class Token(Counter):
    """A token of the program's own."""

    fails = False

    def next(self, version: Any) -> Any:
        if Token.fails:
            raise Bug
        return super().next(version)


class Note(Versioned, Base):
    __tablename__ = "notes_of_the_program"
    __version_token__ = Token()
    __problem_fields__ = ("text",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(Compared)
    n: Mapped[int]


class Bug(KeyError):
    """An error of the program."""


def broken(*given: Any, **named: Any) -> Any:
    raise Bug


async def broken_async(*given: Any, **named: Any) -> Any:
    raise Bug


@dataclass
class Work:
    """One unit: others write what it has read, and then it writes."""

    engine: Any
    options: dict[str, Any]
    attempts: int = 0
    act: Callable[[Session, Note], None] = lambda session, note: None

    def __call__(self, session: Session) -> None:
        self.attempts += 1
        note = session.get_one(Note, 1)
        self.others()
        self.act(session, note)
        note.text, note.n = "ours", note.n + 1

    def others(self) -> None:
        if self.attempts == 1:
            with Session(self.engine) as session, session.begin():
                session.get_one(Note, 1).text = "theirs"


# -- who fails -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Never(Condition):
    def clause(self, given: Any) -> Any:
        return Note.n == given("never", Note.__table__.c.n.type)

    def explain(self, entry: Entry[Any]) -> Exception | None:
        raise Bug


class OfCondition(Part, Demand):
    values = {"never": -1}  # read, and not written

    def on(self, mapper: Any) -> Condition | None:
        return Never()

    def begin(self, session: Session) -> None:
        demand(session, self)


def part(name: str) -> Part:
    return type(f"Broken_{name}", (Part,), {name: broken})()


def merging(session: Session, note: Note) -> None:
    seen = sign_seen(note, ["text"], etags=TAGS)
    session.refresh(note)
    merge_changes(
        session,
        Note,
        1,
        {"text": "a client's"},
        seen=seen,
        etags=TAGS,
        on_conflict=per_field(text=broken),
    )


def comparison(session: Session, note: Note) -> None:
    Compared.fails = True


def token(session: Session, note: Note) -> None:
    Token.fails = True


def listening(name: str, target: Any = None) -> Callable[[Session, Note], None]:
    def listen(session: Session, note: Note) -> None:
        event.listen(session, name, broken)

    return listen


#: Options of the unit, what its body does besides, and the attempt that fails.
BROKEN: dict[str, tuple[dict[str, Any], Any, int]] = {
    "a resolver": ({"on_conflict": broken}, None, 1),
    "the resolver of a class": ({"on_conflict": {Note: broken}}, None, 1),
    "a policy": ({"on_conflict": per_field(text=broken)}, None, 1),
    "a policy of merge_changes": ({}, merging, 1),
    "on=": ({"retry": retrying(wait_initial=0, on=broken)}, None, 1),
    "before_retry": ({"retry": retrying(wait_initial=0, before_retry=broken)}, None, 1),
    "a comparison": ({"on_conflict": merge_fields}, comparison, 1),
    "a token": ({}, token, 1),
    "before_flush": ({}, listening("before_flush"), 1),
    "after_flush": ({"on_conflict": per_field(text=max)}, listening("after_flush"), 1),
    "before_commit": ({"on_conflict": per_field(text=max)}, listening("before_commit"), 1),
    "Part.begin": ({"parts": [part("begin")]}, None, 0),
    "Part.before_flush": ({"parts": [part("before_flush")]}, None, 1),
    "Part.before_commit": (
        {"parts": [part("before_commit")], "on_conflict": per_field(text=max)}, None, 1,
    ),
    "Condition.explain": ({"parts": [OfCondition()]}, None, 1),
}  # fmt: skip


@pytest.fixture(autouse=True)
def whole():
    yield
    Compared.fails = Token.fails = False


@pytest.fixture
def stored_note(engine, store):
    store(Note(id=1, text="old", n=1))

    def stored() -> tuple[str, int]:
        Compared.fails = False
        with Session(engine) as session:
            note = session.get_one(Note, 1)
            return note.text, note.n

    return stored


def is_of_the_program(error: BaseException) -> bool:
    return type(error) is Bug and not is_transient(error) and problem_of(error) is None


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.parametrize("name", BROKEN)
def test_it_comes_out_and_nothing_is_stored(engine, stored_note, name):
    options, act, attempts = BROKEN[name]
    if act is merging and engine.dialect.name in ("mariadb", "mysql"):
        pytest.skip("its snapshot shows nothing of what others write")
    work = Work(engine, options, act=act or (lambda session, note: None))
    with pytest.raises(Bug) as caught:
        unit_of_work(engine, **{"retry": retrying(wait_initial=0), **options})(work)()

    assert is_of_the_program(caught.value)
    assert work.attempts == attempts
    assert stored_note() == (("theirs", 1) if attempts else ("old", 1))


@pytest.mark.engines("sqlite-wal", "postgresql")
@pytest.mark.parametrize("name", ["a resolver", "a policy", "a token"])
def test_a_watched_session_is_left_as_by_any_error_of_a_flush(engine, stored_note, name):
    options, act, _ = BROKEN[name]
    work = Work(engine, options, act=act or (lambda session, note: None))
    with watch(sessionmaker(engine), **options)() as session:
        work(session)
        with pytest.raises(Bug):
            session.flush()
        Compared.fails = Token.fails = False
        assert not session.is_active
        session.rollback()
        session.expunge_all()
        session.get_one(Note, 1).n = 7
        session.commit()
    assert stored_note() == ("theirs", 7)


@pytest.mark.engines("sqlite-wal")
def test_in_a_later_attempt_as_well(engine, stored_note):
    """The resolver is asked about a value that is wanted again."""
    asked: list[int] = []

    def resolver(entry: Entry[Any]) -> Any:
        asked.append(1)
        return merge_fields(entry) if len(asked) == 1 else broken()

    work = Work(engine, {})
    with pytest.raises(Bug):
        unit_of_work(engine, retry=retrying(wait_initial=0), on_conflict=resolver)(work)()
    assert (work.attempts, len(asked)) == (2, 2)
    assert stored_note() == ("theirs", 1)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("kind", [Bug, ConcurrencyError])
def test_what_comes_after_commit_does_not_store_the_unit_twice(engine, stored_note, kind):
    """The part fails when the unit is stored; whatever it raises, no attempt follows."""

    class After(Part):
        def after(self, session: Session, error: BaseException | None) -> None:
            raise kind

    attempts: list[int] = []

    @unit_of_work(engine, parts=[After()], retry=retrying(on=Exception, wait_initial=0))
    def count(session: Session) -> None:
        attempts.append(1)
        session.get_one(Note, 1).n += 1

    with pytest.raises(kind) as caught:
        count()
    assert (len(attempts), stored_note()) == (1, ("old", 2))
    assert "stored" in caught.value.__notes__[0]


@pytest.mark.engines("sqlite-wal")
def test_whoever_listens_to_events_has_no_word_in_it(engine, stored_note, caplog):
    """A listener hears of what is done: what it raises is logged, and the unit goes on."""
    events.listen(broken)
    try:
        with caplog.at_level(logging.ERROR, "optilock"):
            unit_of_work(engine, retry=retrying(wait_initial=0, repeat_values="overwrite"))(
                Work(engine, {})
            )()
    finally:
        events.unlisten(broken)
    assert stored_note() == ("ours", 2)
    for told in ("Conflict", "Retry", "Committed"):
        assert f"a listener failed on {told}" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["a resolver", "an async resolver", "on=", "before_retry"])
async def test_in_async_units(async_engine, async_store, name):
    options = {"on_conflict": broken_async} if name == "an async resolver" else BROKEN[name][0]
    async_store(Note(id=1, text="old", n=1))
    work = Work(async_engine.sync_engine, options)

    @unit_of_work(async_engine, **{"retry": retrying(wait_initial=0), **options})
    async def run(session: AsyncSession) -> None:
        await session.run_sync(work)

    with pytest.raises(Bug) as caught:
        await run()
    assert is_of_the_program(caught.value)
    assert work.attempts == 1
