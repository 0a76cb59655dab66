"""The loop around a unit of work: how often, when, what comes out. A fake clock, no database."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from optilock import events
from optilock.errors import (
    CommitOutcomeUnknown,
    ConcurrencyError,
    ConfigurationError,
    OptilockError,
    PreconditionFailed,
)
from optilock.unit.retries import Policy, retry, retrying
from optilock.unit.running_units import (
    current_attempt,
    enter_unit,
    find_unit,
    inside_unit,
    leave_unit,
)
from tests.support.waiting import turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Time:
    """A clock that moves only when somebody waits."""

    now: float = 100.0
    waits: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def policy(self, **options: Any) -> Policy:
        return Policy(clock=self.clock, sleep=self.sleep, async_sleep=self.async_sleep, **options)


@pytest.fixture
def time() -> Time:
    return Time()


class Work:
    """Fails with each of the errors in turn, then succeeds with ``"done"``."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def run(self) -> str:
        await turn()
        return self()


Shape = Callable[[Policy, Work], Awaitable[str]]


async def decorated(policy: Policy, work: Work) -> str:
    return policy.decorate(lambda: work())()


async def decorated_async(policy: Policy, work: Work) -> str:
    return await policy.decorate(work.run)()


async def loop(policy: Policy, work: Work) -> str:
    for attempt in policy:
        with attempt:
            result = work()
    return result


async def async_loop(policy: Policy, work: Work) -> str:
    async for attempt in policy:
        with attempt:
            result = await work.run()
    return result


@pytest.fixture(params=[decorated, decorated_async, loop, async_loop], ids=lambda f: f.__name__)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Every way to write a retry; each promise below holds for all of them."""
    chosen: Shape = request.param
    return chosen


def conflicts(count: int) -> list[ConcurrencyError]:
    return [ConcurrencyError() for _ in range(count)]


async def test_work_that_succeeds_runs_once(shape: Shape, time: Time) -> None:
    work = Work()

    assert await shape(time.policy(), work) == "done"
    assert (work.calls, time.waits) == (1, [])


async def test_a_conflict_is_run_again_until_it_succeeds(shape: Shape, time: Time) -> None:
    work = Work(*conflicts(3))

    assert await shape(time.policy(attempts=5), work) == "done"
    assert work.calls == 4


async def test_after_the_last_attempt_its_own_error_comes_out(shape: Shape, time: Time) -> None:
    errors = conflicts(3)
    work = Work(*errors)

    with pytest.raises(ConcurrencyError) as raised:
        await shape(time.policy(attempts=3), work)

    assert raised.value is errors[2]
    assert work.calls == 3


async def test_the_last_error_says_how_often_and_how_long(shape: Shape, time: Time) -> None:
    errors = conflicts(3)

    with pytest.raises(ConcurrencyError) as raised:
        await shape(time.policy(attempts=3), Work(*errors))

    assert raised.value.__notes__ == [f"optilock: 3 attempts in {sum(time.waits):.2f} s"]
    assert not hasattr(errors[0], "__notes__")


async def test_an_error_that_is_not_transient_comes_out_at_once(shape: Shape, time: Time) -> None:
    work = Work(ValueError("no"))

    with pytest.raises(ValueError, match="no") as raised:
        await shape(time.policy(), work)

    assert work.calls == 1
    assert not hasattr(raised.value, "__notes__")


@pytest.mark.parametrize("error", [PreconditionFailed(), CommitOutcomeUnknown("lost in COMMIT")])
async def test_a_failed_precondition_and_an_unknown_outcome_are_never_run_again(
    shape: Shape, time: Time, error: OptilockError
) -> None:
    work = Work(error)

    with pytest.raises(type(error)):
        await shape(time.policy(), work)

    assert work.calls == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_interrupts_and_cancellation_pass_even_when_everything_is_retried(
    time: Time, kind: type[BaseException]
) -> None:
    for shape in (decorated, loop):
        work = Work(kind())
        with pytest.raises(kind):
            await shape(time.policy(on=lambda error: True), work)
        assert work.calls == 1


async def test_a_task_cancelled_in_an_attempt_is_cancelled() -> None:
    started = asyncio.Event()

    @retry(on=Exception)
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_cancelled_while_it_waits_runs_no_further_attempt() -> None:
    waiting = asyncio.Event()
    work = Work(*conflicts(2))

    async def wait(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(Policy(async_sleep=wait).acall(work.run))
    await waiting.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.calls == 1


class TestWaits:
    def test_every_wait_lies_under_a_ceiling_that_doubles(self, time: Time) -> None:
        for _ in range(50):
            time.waits.clear()
            time.policy(attempts=6, wait_initial=0.1, wait_max=0.5).call(Work(*conflicts(5)))
            ceilings = [0.1, 0.2, 0.4, 0.5, 0.5]
            assert all(0 <= wait <= top for wait, top in zip(time.waits, ceilings, strict=True))

    def test_waits_use_the_whole_range_and_not_its_top_alone(self, time: Time) -> None:
        for _ in range(200):
            time.policy(wait_initial=1.0).call(Work(*conflicts(1)))

        assert min(time.waits) < 0.2
        assert max(time.waits) > 0.8

    def test_no_attempt_begins_after_the_deadline(self, time: Time) -> None:
        policy = time.policy(attempts=10_000, deadline=2.0, wait_initial=0.5)

        with pytest.raises(ConcurrencyError):
            policy.call(Work(*conflicts(10_000)))

        assert time.waits
        assert time.now < 102.0

    def test_a_far_deadline_does_not_lift_the_limit_of_attempts(self, time: Time) -> None:
        work = Work(*conflicts(5))

        with pytest.raises(ConcurrencyError):
            time.policy(attempts=3, deadline=1000).call(work)

        assert work.calls == 3

    def test_a_deadline_of_zero_leaves_one_attempt(self, time: Time) -> None:
        work = Work(*conflicts(5))

        with pytest.raises(ConcurrencyError):
            time.policy(deadline=0).call(work)

        assert work.calls == 1

    def test_durations_may_be_timedeltas(self, time: Time) -> None:
        policy = time.policy(
            deadline=timedelta(seconds=9),
            wait_initial=timedelta(milliseconds=1),
            wait_max=timedelta(milliseconds=1),
        )

        assert policy.call(Work(*conflicts(4))) == "done"
        assert max(time.waits) <= 0.001


class TestOn:
    def test_an_exception_class_is_run_again(self, time: Time) -> None:
        assert time.policy(on=LookupError).call(Work(KeyError())) == "done"

    def test_a_tuple_of_classes_is_run_again(self, time: Time) -> None:
        work = Work(KeyError(), ConcurrencyError())

        assert time.policy(on=(LookupError, ConcurrencyError)).call(work) == "done"

    def test_other_errors_than_those_named_are_not(self, time: Time) -> None:
        with pytest.raises(ConcurrencyError):
            time.policy(on=LookupError).call(Work(ConcurrencyError()))

    @pytest.mark.parametrize("on", [Exception, OptilockError, (OptilockError, KeyError)])
    def test_an_unknown_outcome_is_not_run_again_for_the_sake_of_its_base_class(
        self, time: Time, on: Any
    ) -> None:
        with pytest.raises(CommitOutcomeUnknown):
            time.policy(on=on).call(Work(CommitOutcomeUnknown("lost in COMMIT")))

    def test_an_unknown_outcome_is_run_again_when_it_is_named(self, time: Time) -> None:
        policy = time.policy(on=(ConcurrencyError, CommitOutcomeUnknown))

        assert policy.call(Work(CommitOutcomeUnknown("lost in COMMIT"))) == "done"

    async def test_a_predicate_that_breaks_is_an_error_of_the_program(
        self, shape: Shape, time: Time
    ) -> None:
        """C9: its own error comes out, with the one that it was asked about behind it."""

        def broken(error: BaseException) -> bool:
            raise ZeroDivisionError

        first = ConcurrencyError()
        with pytest.raises(ZeroDivisionError) as caught:
            await shape(time.policy(on=broken), Work(first))

        assert caught.value.__context__ is first
        assert time.waits == []


class TestHooks:
    async def test_the_hook_hears_of_each_retry_before_its_wait(
        self, shape: Shape, time: Time
    ) -> None:
        heard: list[tuple[events.Retry, int]] = []
        errors = conflicts(2)
        policy = time.policy(before_retry=lambda event: heard.append((event, len(time.waits))))

        await shape(policy, Work(*errors))

        assert [(event.attempt, event.error, waited) for event, waited in heard] == [
            (1, errors[0], 0),
            (2, errors[1], 1),
        ]
        assert [event.wait for event, _ in heard] == time.waits

    def test_no_hook_is_called_for_the_error_that_comes_out(self, time: Time) -> None:
        heard: list[events.Retry] = []

        with pytest.raises(ConcurrencyError):
            time.policy(attempts=2, before_retry=heard.append).call(Work(*conflicts(2)))

        assert [event.attempt for event in heard] == [1]

    async def test_a_hook_that_raises_is_an_error_of_the_program(
        self, shape: Shape, time: Time
    ) -> None:
        """C9: its own error comes out, and no attempt follows."""

        def broken(event: events.Retry) -> None:
            raise ZeroDivisionError

        errors = conflicts(1)
        with pytest.raises(ZeroDivisionError) as caught:
            await shape(time.policy(before_retry=broken), Work(*errors))

        assert caught.value.__context__ is errors[0]
        assert time.waits == []

    def test_a_listener_that_raises_is_logged_and_the_work_goes_on(
        self, time: Time, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C9: who only listens has no word in it, whatever he raises."""

        def broken(event: events.Event) -> None:
            raise ConcurrencyError

        events.listen(broken)
        try:
            with caplog.at_level(logging.ERROR, "optilock"):
                assert time.policy().call(Work(*conflicts(1))) == "done"
        finally:
            events.unlisten(broken)

        assert "a listener failed on Retry" in caplog.text

    def test_listeners_hear_the_same_event(self, time: Time) -> None:
        heard: list[events.Event] = []
        events.listen(heard.append, written=False)
        try:
            time.policy().call(Work(*conflicts(1)))
        finally:
            events.unlisten(heard.append)

        assert [type(event) for event in heard] == [events.Retry]


class TestDecorator:
    def test_a_plain_function_keeps_its_name_arguments_and_result(self) -> None:
        @retry(attempts=2)
        def add(a: int, *, b: int) -> int:
            """Adds."""
            return a + b

        assert add(1, b=2) == 3
        assert (add.__name__, add.__doc__) == ("add", "Adds.")
        assert not inspect.iscoroutinefunction(add)

    def test_a_coroutine_function_stays_one(self) -> None:
        @retry()
        async def work() -> int:
            return 1

        assert inspect.iscoroutinefunction(work)
        assert asyncio.run(work()) == 1

    def test_it_may_be_written_without_parentheses(self) -> None:
        @retry
        def work() -> int:
            return 1

        assert work() == 1

    def test_a_method_gets_its_object(self) -> None:
        class Service:
            @retry()
            def me(self) -> Service:
                return self

            @classmethod
            @retry()
            def kind(cls) -> type[Service]:
                return cls

        service = Service()
        assert service.me() is service
        assert Service.kind() is Service

    def test_a_partial_of_a_coroutine_function_is_awaited(self, time: Time) -> None:
        work = Work(*conflicts(1))

        async def run(work: Work) -> str:
            return work()

        assert asyncio.run(time.policy().decorate(functools.partial(run, work))()) == "done"

    def test_one_policy_serves_calls_within_calls(self, time: Time) -> None:
        inner, outer = Work(*conflicts(2)), Work(*conflicts(2))
        policy = time.policy(attempts=3)

        def both() -> tuple[str, str]:
            return policy.call(inner), outer()

        assert policy.call(both) == ("done", "done")

    def test_one_policy_serves_many_threads(self) -> None:
        policy = Policy(attempts=4, wait_max=0)
        works = [Work(*conflicts(3)) for _ in range(8)]
        threads = [threading.Thread(target=policy.call, args=[work]) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [work.calls for work in works] == [4] * 8

    def test_a_failed_run_leaves_no_reference_cycle(self, time: Time) -> None:
        class Marked(ConcurrencyError):
            pass

        def fail() -> None:
            raise Marked

        gc.disable()
        try:
            try:
                time.policy(attempts=2).call(fail)
            except Marked as error:
                seen = weakref.ref(error)
            assert seen() is None
        finally:
            gc.enable()


class TestLoop:
    def test_statements_after_the_block_do_not_run_after_a_failed_last_attempt(
        self, time: Time
    ) -> None:
        reached: list[int] = []

        def run() -> None:
            for attempt in time.policy(attempts=2):
                with attempt:
                    raise ConcurrencyError
                reached.append(attempt.number)

        with pytest.raises(ConcurrencyError):
            run()

        assert reached == [1]

    def test_a_body_that_never_enters_the_attempt_runs_once(self, time: Time) -> None:
        assert [attempt.number for attempt in time.policy()] == [1]

    def test_attempts_are_numbered(self, time: Time) -> None:
        work, numbers = Work(*conflicts(2)), []
        for attempt in time.policy():
            with attempt:
                numbers.append(attempt.number)
                work()

        assert numbers == [1, 2, 3]

    def test_the_same_object_serves_the_next_loop(self, time: Time) -> None:
        policy = time.policy(attempts=2)

        assert [policy.call(Work(*conflicts(1))) for _ in range(3)] == ["done"] * 3

    def test_break_and_return_end_it(self, time: Time) -> None:
        def first() -> int:
            for attempt in time.policy():
                with attempt:
                    return attempt.number
            raise AssertionError

        assert first() == 1

    def test_retrying_takes_the_options_of_retry(self) -> None:
        names = [set(inspect.signature(f).parameters) for f in (retrying, Policy)]

        assert names[0] == names[1] - {"clock", "sleep", "async_sleep", "given"}


async def test_context_variables_survive(shape: Shape, time: Time) -> None:
    """EF-55"""
    seen: ContextVar[int] = ContextVar("seen", default=0)

    class Counting(Work):
        def __call__(self) -> str:
            seen.set(seen.get() + 1)
            return super().__call__()

    await shape(time.policy(), Counting(*conflicts(2)))

    assert seen.get() == 3


class Unit:
    """What the unit of work puts into ``optilock.unit.running_units``; any object will do."""


@pytest.fixture
def unit() -> Iterator[Unit]:
    unit = Unit()
    running = enter_unit("sessions", unit)
    yield unit
    leave_unit(running)


class TestInsideAUnit:
    async def test_a_retry_runs_once_and_lets_the_error_out(self, shape: Shape, time: Time) -> None:
        work = Work(*conflicts(3))
        running = enter_unit("sessions", Unit())
        try:
            with pytest.raises(ConcurrencyError) as raised:
                await shape(time.policy(), work)
        finally:
            leave_unit(running)

        assert work.calls == 1
        assert not hasattr(raised.value, "__notes__")

    def test_a_run_that_is_told_so_repeats_all_the_same(self, unit: Unit, time: Time) -> None:
        work = Work(*conflicts(1))
        for attempt in time.policy().run(once=False):
            with attempt:
                work()

        assert work.calls == 2

    def test_it_is_found_by_its_sessions_and_its_kind(self, unit: Unit) -> None:
        assert find_unit("sessions", Unit) is unit
        assert find_unit("other sessions", Unit) is None
        assert find_unit("sessions", Work) is None

    def test_the_innermost_is_found_and_the_outer_one_after_it(self, unit: Unit) -> None:
        inner = Unit()
        running = enter_unit("sessions", inner)
        assert find_unit("sessions", Unit) is inner
        leave_unit(running)
        assert find_unit("sessions", Unit) is unit

    def test_leaving_twice_does_nothing(self, unit: Unit) -> None:
        running = enter_unit("sessions", Unit())
        leave_unit(running)
        leave_unit(running)

        assert find_unit("sessions", Unit) is unit

    def test_another_thread_is_outside_even_with_a_copy_of_the_context(self, unit: Unit) -> None:
        seen: list[bool] = []
        context = copy_context()
        thread = threading.Thread(target=lambda: context.run(lambda: seen.append(inside_unit())))
        thread.start()
        thread.join()

        assert seen == [False]

    async def test_a_child_task_is_outside_and_its_own_unit_stays_its_own(self) -> None:
        mine, childs = Unit(), Unit()
        running = enter_unit("sessions", mine)

        async def child() -> tuple[bool, Unit | None]:
            before = inside_unit()
            own = enter_unit("sessions", childs)
            found = find_unit("sessions", Unit)
            leave_unit(own)
            return before, found

        try:
            assert await asyncio.create_task(child()) == (False, childs)
            assert find_unit("sessions", Unit) is mine
        finally:
            leave_unit(running)

    def test_a_unit_left_in_another_context_is_gone_here(self) -> None:
        running = enter_unit("sessions", Unit())
        copy_context().run(leave_unit, running)

        assert not inside_unit()

    async def test_run_sync_of_sqlalchemy_stays_inside(self) -> None:
        from sqlalchemy.util import greenlet_spawn

        running = enter_unit("sessions", Unit())
        try:
            assert await greenlet_spawn(inside_unit)
        finally:
            leave_unit(running)


class TestCurrentAttempt:
    async def test_the_work_can_ask_which_attempt_it_is(self, shape: Shape, time: Time) -> None:
        numbers: list[int] = []

        class Asking(Work):
            def __call__(self) -> str:
                found = current_attempt()
                assert found is not None
                numbers.append(found.number)
                return super().__call__()

        await shape(time.policy(), Asking(*conflicts(2)))

        assert numbers == [1, 2, 3]
        assert current_attempt() is None

    async def test_a_child_task_is_in_no_attempt(self) -> None:
        async def child() -> bool:
            return current_attempt() is None

        async for attempt in retrying():
            with attempt:
                assert await asyncio.create_task(child())


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> Any:
    yield 1


async def coroutine(error: object) -> bool:
    return True


class TestBadInput:
    @pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "5", None])
    def test_attempts_must_be_a_whole_number_from_1(self, attempts: Any) -> None:
        with pytest.raises(ConfigurationError, match="attempts="):
            retry(attempts=attempts)

    @pytest.mark.parametrize("option", ["deadline", "wait_initial", "wait_max"])
    @pytest.mark.parametrize(
        "value", [-1, -0.1, timedelta(seconds=-1), float("nan"), float("inf"), "1", True]
    )
    def test_durations_must_be_seconds_or_timedeltas(self, option: str, value: Any) -> None:
        with pytest.raises(ConfigurationError, match=option):
            retrying(**{option: value})

    @pytest.mark.parametrize(
        "on", [None, "ConcurrencyError", 5, (), int, BaseException, KeyboardInterrupt, coroutine]
    )
    def test_on_must_be_a_plain_function_or_exception_classes(self, on: Any) -> None:
        with pytest.raises(ConfigurationError, match="on="):
            retry(on=on)

    @pytest.mark.parametrize("hook", ["log", 5, coroutine])
    def test_the_hook_must_be_a_plain_function(self, hook: Any) -> None:
        with pytest.raises(ConfigurationError, match="before_retry"):
            retry(before_retry=hook)

    @pytest.mark.parametrize(
        "function",
        [generator, async_generator, Work, classmethod(print), staticmethod(print), 5],
    )
    def test_what_cannot_be_run_again_is_refused_when_it_is_decorated(self, function: Any) -> None:
        with pytest.raises(ConfigurationError):
            retry()(function)

    def test_a_plain_function_that_returns_a_coroutine_is_refused(self) -> None:
        def hidden() -> Any:
            return coroutine(None)

        with pytest.raises(ConfigurationError, match="async def"):
            retry(hidden)()
