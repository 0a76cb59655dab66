"""What a unit of work refuses before anything runs, and how decorated functions look."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import optilock
import optilock.unit
from optilock.errors import ConfigurationError
from optilock.unit.async_unit import AsyncUnitOfWork
from optilock.unit.conditions import ConditionsPart
from optilock.unit.isolation import Isolation, level_of
from optilock.unit.parts import Part
from optilock.unit.retries import retrying
from optilock.unit.sessions import owner_of
from optilock.unit.units import UnitOfWork, repeatable_read, serializable, unit_of_work

ENGINE = create_engine("sqlite://")
SESSIONS = sessionmaker(ENGINE)
ASYNC_ENGINE = create_async_engine("sqlite+aiosqlite://")
ASYNC_SESSIONS = async_sessionmaker(ASYNC_ENGINE)


def nothing(session: Session) -> None: ...


async def nothing_async(session: AsyncSession) -> None: ...


def generator(session: Session) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("sessions", [ASYNC_SESSIONS, ASYNC_ENGINE])
def test_the_sync_unit_refuses_async_sessions(sessions):
    with pytest.raises(ConfigurationError, match="async with unit_of_work"):
        UnitOfWork(sessions)


@pytest.mark.parametrize("sessions", [SESSIONS, ENGINE, scoped_session(SESSIONS)])
def test_the_async_unit_refuses_sync_sessions(sessions):
    with pytest.raises(ConfigurationError, match="UnitOfWork"):
        AsyncUnitOfWork(sessions)


@pytest.mark.parametrize("unit", [UnitOfWork, AsyncUnitOfWork, serializable, unit_of_work])
def test_what_makes_no_sessions_is_refused(unit):
    with pytest.raises(ConfigurationError, match="makes no sessions"):
        unit(Session(ENGINE))


def test_a_scoped_session_over_something_else_than_a_sessionmaker_is_refused():
    with pytest.raises(ConfigurationError, match="sessionmaker"):
        UnitOfWork(scoped_session(lambda: Session(ENGINE))).__enter__()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"isolation": "SERIALISABLE"}, "Isolation.SERIALIZABLE"),
        ({"isolation": 4}, "Isolation.SERIALIZABLE"),
        ({"propagation": "nested"}, 'write "savepoint" or "independent"'),
        ({"propagation": None}, 'write "savepoint" or "independent"'),
        ({"retry": 5}, r"write retry=retrying\(attempts=5"),
        ({"retry": retrying(), "attempts": 5}, "both given"),
        ({"attempts": None}, "attempts=None cannot work"),
        ({"on_conflict": "merge"}, "not a resolver"),
        ({"on_delete": "strict"}, "OnDelete.STRICT"),
        ({"on_delete": {"Draft": None}}, "not a class"),
        ({"isolated": True}, "no option 'isolated'"),
    ],
)
@pytest.mark.parametrize("unit", [UnitOfWork, unit_of_work])
def test_bad_options_are_refused_before_anything_runs(unit, options, said):
    with pytest.raises(ConfigurationError, match=said):
        unit(SESSIONS, **options)


def test_attempts_must_be_at_least_one():
    with pytest.raises(ConfigurationError, match="attempts=0"):
        unit_of_work(SESSIONS, attempts=0)


def test_an_async_function_needs_async_sessions():
    with pytest.raises(ConfigurationError, match="async_sessionmaker"):
        unit_of_work(SESSIONS)(nothing_async)


def test_a_plain_function_needs_sync_sessions():
    with pytest.raises(ConfigurationError, match="async def"):
        unit_of_work(ASYNC_SESSIONS)(nothing)


def test_a_function_that_takes_no_session_is_refused():
    with pytest.raises(ConfigurationError, match="takes no session"):
        unit_of_work(SESSIONS)(lambda: None)


def test_a_generator_is_refused():
    def rows(session):
        yield 1

    with pytest.raises(ConfigurationError, match="generator"):
        unit_of_work(SESSIONS)(rows)


def test_the_level_is_not_given_twice():
    with pytest.raises(ConfigurationError, match="isolation="):
        serializable(SESSIONS, isolation=Isolation.SERIALIZABLE)


@pytest.mark.parametrize("unit", [serializable, repeatable_read])
def test_isolation_helpers_give_the_unit_that_fits_the_sessions(unit):
    assert isinstance(unit(SESSIONS), UnitOfWork)
    assert isinstance(unit(ASYNC_SESSIONS), AsyncUnitOfWork)


def test_a_decorated_function_shows_its_callers_no_session():
    @unit_of_work(SESSIONS)
    def rename(session: Session, account_id: int, *, owner: str = "Ada") -> None:
        """Give an account to somebody."""

    assert list(inspect.signature(rename).parameters) == ["account_id", "owner"]
    assert rename.__name__ == "rename"
    assert rename.__doc__ == "Give an account to somebody."


def test_one_object_is_one_unit():
    unit = UnitOfWork(SESSIONS)
    with unit:
        pass
    with pytest.raises(ConfigurationError, match="already been entered"), unit:
        pass


def test_sync_units_need_no_greenlet():
    """SQLAlchemy 2.1 does not install it."""
    program = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from sqlalchemy import create_engine\n"
        "from optilock.unit.units import UnitOfWork\n"
        "with UnitOfWork(create_engine('sqlite://')) as session: session.connection()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.full
def test_tenacity_is_loaded_after_the_first_failed_attempt():
    program = (
        "import sys\n"
        "from sqlalchemy import create_engine\n"
        "from optilock.unit import retry, unit_of_work\n"
        "@unit_of_work(create_engine('sqlite://'))\n"
        "def work(session): session.connection()\n"
        "work()\n"
        "print('tenacity' in sys.modules)\n"
        "calls = []\n"
        "@retry(on=ValueError, wait_initial=0)\n"
        "def fails_once():\n"
        "    calls.append(1)\n"
        "    if len(calls) == 1: raise ValueError\n"
        "fails_once()\n"
        "print('tenacity' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_the_package_of_units_has_their_public_names():
    names = {name: getattr(optilock.unit, name) for name in optilock.unit.__all__}
    at_the_top = names.keys() & set(optilock.__all__)
    assert all(names[name] is getattr(optilock, name) for name in at_the_top)
    assert {"AsyncUnitOfWork", "retry", "unit_of_work"} <= at_the_top


@pytest.mark.parametrize("name", ["self", "cls"])
def test_a_method_is_refused_when_it_is_decorated(name):
    """Called, it would get the session where it has its object, and the object as the next."""
    names = {"unit_of_work": unit_of_work, "SESSIONS": SESSIONS, "ASYNC_SESSIONS": ASYNC_SESSIONS}
    for sessions, word in (("SESSIONS", "def"), ("ASYNC_SESSIONS", "async def")):
        body = f"class Shop:\n @unit_of_work({sessions})\n {word} sell({name}, item): ..."
        with pytest.raises(ConfigurationError, match=r"Shop\.sell.* @retry.* `with unit.* @static"):
            exec(body, dict(names))


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_what_is_made_a_method_before_it_is_decorated_is_refused(kind):
    with pytest.raises(ConfigurationError, match=f"nothing is a {kind.__name__} already"):
        unit_of_work(SESSIONS)(kind(nothing))


def test_a_static_method_may_be_a_unit():
    class Shop:
        @staticmethod
        @unit_of_work(SESSIONS)
        def sell(session, item):
            assert isinstance(session, Session)
            return item

    assert Shop.sell("book") == Shop().sell("book") == "book"


@pytest.mark.parametrize("given", ["REPEATABLE READ", "repeatable_read", Isolation.REPEATABLE_READ])
def test_f_a_level_may_be_named_by_its_text(given):
    """Only a member of ``Isolation`` was taken."""
    assert level_of(given) is Isolation.REPEATABLE_READ
    UnitOfWork(SESSIONS, isolation=given)
    unit_of_work(SESSIONS, isolation=given)


LEVELS = [
    (unit_of_work, None),
    (serializable, Isolation.SERIALIZABLE),
    (repeatable_read, Isolation.REPEATABLE_READ),
    (UnitOfWork, None),
]


@pytest.mark.parametrize(("made", "level"), LEVELS)
def test_f9_one_name_is_a_block_and_a_decorator(made, level):
    """F9: ``@serializable(S)`` and ``with unit_of_work(S)`` were refused."""
    unit = made(SESSIONS)
    with unit as session:
        assert isinstance(session, Session)
    calls = []

    @made(SESSIONS, name="of both", retry=retrying(on=ValueError))
    def work(session, value):
        """Work."""
        own = owner_of(session).options
        calls.append((value, own.isolation, own.name))
        if len(calls) == 1:
            raise ValueError("the first attempt fails")
        return value

    assert work(7) == 7
    assert calls == [(7, level, "of both")] * 2
    assert work.__doc__ == "Work."
    assert str(inspect.signature(work)) == "(value)"


@pytest.mark.parametrize(("made", "level"), LEVELS[:3])
def test_f9_so_it_is_for_async_sessions(made, level):
    async def program():
        async with made(ASYNC_SESSIONS) as session:
            assert isinstance(session, AsyncSession)

        @made(ASYNC_SESSIONS, attempts=3)
        async def work(session, value):
            return owner_of(session.sync_session).options.isolation, value

        return await work(7)

    assert asyncio.run(program()) == (level, 7)


def test_one_object_decorates_many_functions_and_is_one_block():
    unit = unit_of_work(SESSIONS)
    first, second = unit(lambda session: 1), unit(lambda session: 2)
    assert (first(), second(), first()) == (1, 2, 1)
    with unit:
        assert second() == 2
    with pytest.raises(ConfigurationError, match="already been entered"), unit:
        pass


@pytest.mark.parametrize("option", [{"attempts": 5}, {"retry": retrying(deadline=None)}])
def test_a_block_refuses_the_options_of_a_retry(option):
    [name] = option
    with (
        pytest.raises(ConfigurationError, match=rf"\({name}\): decorate"),
        unit_of_work(SESSIONS, **option),
    ):
        pass


def test_the_wrong_use_of_a_name_names_the_right_one():
    """A sync unit is not awaited, an async one is, and a unit decorates functions only."""
    sync, later = unit_of_work(SESSIONS), unit_of_work(ASYNC_SESSIONS)
    with pytest.raises(ConfigurationError, match="write `with`"):
        sync.__aenter__().send(None)
    with pytest.raises(ConfigurationError, match="write `async with`"), later:
        pass
    for unit in (sync, later):
        with pytest.raises(ConfigurationError, match="not a function"):
            unit(7)
        with pytest.raises(ConfigurationError, match="a generator"):
            unit(generator)


#: What a unit was given, what it has now, and what the warning says.
OLD = [
    ({"short": True}, {"pipelined": True}, "write pipelined=True"),
    ({"short": False}, {"pipelined": False}, "write pipelined=True"),
    ({"short": True, "pipelined": False}, {"pipelined": False}, "write pipelined=True"),
    ({"pipelined": "auto"}, {"pipelined": True}, "Write pipelined=True"),
    ({"savepoint": True}, {"propagation": "savepoint"}, 'write propagation="savepoint"'),
    ({"independent": True}, {"propagation": "independent"}, 'write propagation="independent"'),
    ({"savepoint": False, "independent": False}, {"propagation": "join"}, "write propagation"),
    (
        {"require_conditions": True},
        {"parts": [ConditionsPart(True)]},
        r"call require_conditions\(session\)",
    ),
    (
        {"require_conditions": False, "parts": ()},
        {"parts": [ConditionsPart(False)]},
        r"ignore_conditions\(session\)",
    ),
    ({"require_conditions": None}, {"parts": ()}, "call require_conditions"),
]


@pytest.mark.parametrize(("given", "now", "told"), OLD)
def test_a_removed_option_means_what_it_meant_and_says_what_to_write(given, now, told):
    with pytest.warns(DeprecationWarning, match=told) as warned:
        unit = unit_of_work(SESSIONS, **given)
    assert warned[0].filename == __file__
    with unit as session:
        options = owner_of(session).options
    assert {name: getattr(options, name) for name in now} == now


@pytest.mark.parametrize(
    "given",
    [{"savepoint": "no"}, {"independent": None}, {"short": 1}, {"require_conditions": "maybe"}],
)
def test_a_removed_option_takes_what_it_took(given):
    with (
        pytest.warns(DeprecationWarning, match="no option"),
        pytest.raises(ConfigurationError, match=f"{next(iter(given))}="),
    ):
        unit_of_work(SESSIONS, **given)


@pytest.mark.filterwarnings("ignore:require_conditions= is no option")
def test_units_with_a_removed_option_join_as_they_did():
    class Own(Part):
        pass

    own = Own()
    every, none = {"require_conditions": True}, {"require_conditions": False}
    for outer, inner in (({}, none), (every, none), (every, every), (every, {})):
        for parts in ({}, {"parts": [own]}):
            with unit_of_work(SESSIONS, **outer, **parts), unit_of_work(SESSIONS, **inner):
                pass
            with unit_of_work(SESSIONS, **outer, **parts), unit_of_work(SESSIONS, **inner, **parts):
                pass
    for inner in (every, {"parts": [own]}):
        with (
            pytest.raises(ConfigurationError, match="parts"),
            unit_of_work(SESSIONS),
            unit_of_work(SESSIONS, **inner),
        ):
            pass


def test_removed_options_of_a_retry_are_the_rule_of_the_retry():
    tries = []

    def hopeless(session):
        tries.append(session)
        raise LookupError("again")

    with pytest.warns(
        DeprecationWarning, match=r"write retry=retrying\((on|wait_initial)="
    ) as told:
        unit = unit_of_work(SESSIONS, attempts=3, on=LookupError, wait_initial=0)
    assert len(told) == 2
    with pytest.raises(LookupError):
        unit(hopeless)()
    assert len(tries) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"savepoint": True, "independent": True},
        {"savepoint": True, "propagation": "join"},
        {"on": LookupError, "retry": retrying()},
    ],
)
def test_old_and_new_options_that_contradict_each_other_are_refused(given):
    with (
        pytest.warns(DeprecationWarning, match="no option"),
        pytest.raises(ConfigurationError, match="contradict each other"),
    ):
        unit_of_work(SESSIONS, **given)


def test_help_shows_the_options_of_a_unit_and_of_a_retry():
    for made in (unit_of_work, UnitOfWork, AsyncUnitOfWork):
        shown = inspect.signature(made).parameters
        assert {"sessions", "strategy", "attempts", "retry"} <= shown.keys()
        assert shown["attempts"].default == 5
