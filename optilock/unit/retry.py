"""Run a unit of work again when it has a chance.

::

    @retry(attempts=5)
    def deposit(account_id: int, amount: int) -> None:
        with SessionLocal.begin() as session:
            session.get_one(Account, account_id).balance += amount

    for attempt in retrying(deadline=2.0):       # ``async for`` in async code
        with attempt:
            deposit_here(42, 10)

Rule: an attempt is the whole unit, with its own session, its own reads and its own COMMIT; never a
part of it. It is run again when ``on`` says so (:func:`optilock.is_transient` unless another is
given), after a wait with full jitter, as long as there are attempts left and the next one would
begin before the deadline. The last error comes out itself, with a note on attempts and time.

What is computed from what an attempt reads is computed anew by the next one. What a person has
typed is not: where an attempt wants it again over somebody else's change, which its author has not
seen, the row's resolver is asked, and :class:`optilock.WouldOverwrite` is final
(:mod:`optilock.watched.guard.repeats`). Such a value needs a tag (:func:`optilock.expect`).

Edges: inside a running unit of work a retry runs once and lets the error out, because a part of a
transaction cannot be repeated. ``CancelledError``, ``KeyboardInterrupt`` and ``SystemExit`` pass at
once. The deadline starts no new attempt; it does not interrupt a running one. What an attempt did
outside the database (a mail, a request) is done again: do it after the unit.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast, get_args, overload

import tenacity
from tenacity import wait_random_exponential
from tenacity.wait import wait_base

from optilock import events
from optilock.dialects.transient import is_transient
from optilock.errors import CommitOutcomeUnknown, ConfigurationError, WouldOverwrite
from optilock.unit.running import begin_attempt, end_attempt, inside_unit
from optilock.watched.guard.repeats import (
    RepeatValues,
    Rows,
    RunningAttempt,
    add_wanted,
    repeats_of,
)

P = ParamSpec("P")
R = TypeVar("R")
Predicate = Callable[[BaseException], bool]
On = Predicate | type[Exception] | tuple[type[Exception], ...]
Hook = Callable[[events.Retry], object]


@overload
def retry(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def retry(
    *,
    attempts: int = ...,
    on: On = ...,
    deadline: Seconds | None = ...,
    wait_initial: Seconds = ...,
    wait_max: Seconds = ...,
    before_retry: Hook | None = ...,
    repeat_values: RepeatValues | None = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def retry(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Run the decorated ``def`` or ``async def`` again when it fails with a passing error.

    ``attempts``: how often it runs at most, 1 or more (5).
    ``on``: a function that is given the error, an exception class, or a tuple of classes.
    ``deadline``: seconds or timedelta from the first attempt; none begins after it.
    ``wait_initial``, ``wait_max``: seconds or timedelta (0.02, 1), :mod:`~optilock.unit.retry`.
    ``before_retry``: called with an :class:`optilock.events.Retry` before each wait.
    ``repeat_values``: what happens where a later attempt wants the same value again, over a change
    that its author has not seen: ``"refuse"`` raises :class:`optilock.WouldOverwrite`,
    ``"overwrite"`` lets it pass; None: the row's resolver decides, and without one it passes.

    Raises ``ConfigurationError`` for options that cannot work, and for generators and classes.
    """
    policy = retrying(**options)
    return policy.decorate if function is None else policy.decorate(function)


def retrying(
    *,
    attempts: int = 5,
    on: On = is_transient,
    deadline: Seconds | None = None,
    wait_initial: Seconds = 0.02,
    wait_max: Seconds = 1.0,
    before_retry: Hook | None = None,
    repeat_values: RepeatValues | None = None,
) -> Policy:
    """The loop form of :func:`retry`, with the same options: ``for`` or ``async for``.

    Each attempt is entered with ``with``, in async code too. The object can be kept and used for
    many loops.
    """
    return Policy(
        attempts=attempts,
        on=on,
        deadline=deadline,
        wait_initial=wait_initial,
        wait_max=wait_max,
        before_retry=before_retry,
        repeat_values=repeat_values,
    )


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When to run again and how long to wait: built once, used for every call and every loop."""

    attempts: int = 5
    on: On = is_transient
    deadline: Seconds | None = None
    wait_initial: Seconds = 0.02
    wait_max: Seconds = 1.0
    before_retry: Hook | None = None
    repeat_values: RepeatValues | None = None
    #: For tests: where time comes from and how it passes.
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], object] = field(default=time.sleep, repr=False)
    async_sleep: Callable[[float], Awaitable[object]] = field(default=asyncio.sleep, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_strategies", _strategies(self))
        object.__setattr__(self, "_predicate", _predicate(self.on))
        if self.before_retry is not None:
            _require_function("before_retry", self.before_retry)
        if self.repeat_values not in (None, *get_args(RepeatValues)):
            raise ConfigurationError(
                f'repeat_values={self.repeat_values!r} is no choice: write "refuse" or'
                ' "overwrite", or leave it out, so that the row\'s resolver decides.'
            )

    def run(self, *, once: bool | None = None, at_once: Predicate | None = None) -> Run:
        """One run of the loop; ``once`` unless given: are we inside a running unit of work?

        ``at_once`` says after which error the next attempt need not wait.
        """
        return Run(self, once=inside_unit() if once is None else once, at_once=at_once)

    def __iter__(self) -> Run:
        return self.run()

    def __aiter__(self) -> Run:
        return self.run()

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function`` until an attempt succeeds, and give its result."""
        for attempt in self.run():
            with attempt:
                return _not_a_coroutine(function, function(*args, **kwargs))
        raise AssertionError("a run ends with a result or an error")

    async def acall(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """The same for a function whose result is awaited."""
        async for attempt in self.run():
            with attempt:
                return await function(*args, **kwargs)
        raise AssertionError("a run ends with a result or an error")

    def decorate(self, function: Callable[P, R]) -> Callable[P, R]:
        """``function``, run under this policy; a coroutine function stays one."""
        _require_repeatable(function)
        if _is_async(function):
            coroutine_function = cast(Callable[P, Coroutine[Any, Any, Any]], function)

            @functools.wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self.acall(coroutine_function, *args, **kwargs)

            return cast(Callable[P, R], run_async)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(function, *args, **kwargs)

        return run

    @property
    def is_usual(self) -> bool:
        """Is the work run again after any error that passes?"""
        return self.on is is_transient

    def deserves(self, error: Exception) -> bool:
        """Does ``on`` want another attempt? What it raises comes out: the program is wrong."""
        predicate: Predicate = vars(self)["_predicate"]
        return not isinstance(error, WouldOverwrite) and bool(predicate(error))

    def tell(self, event: events.Retry) -> None:
        """Tell the listeners and ``before_retry``; what that raises comes out."""
        events.emit(lambda: event)
        if self.before_retry is not None:
            self.before_retry(event)


class Run:
    """The attempts of one call or one loop, one after the other."""

    def __init__(self, policy: Policy, *, once: bool, at_once: Predicate | None) -> None:
        self._policy = policy
        self._at_once = at_once
        #: Is this run a part of a unit of work, and so not to be repeated?
        self.once = once
        #: Of the attempt that runs or comes next, from 1.
        self.number = 1
        #: When the first attempt began, by the policy's clock.
        self.started = policy.clock()
        self._wait = 0.0
        self._due = True
        #: What the attempts that have failed wanted to write.
        self._wanted: Rows = {}

    def __iter__(self) -> Run:
        return self

    def __aiter__(self) -> Run:
        return self

    def __next__(self) -> Attempt:
        if not self._due:
            raise StopIteration
        if self.number > 1:
            self._policy.sleep(self._wait)
        return self._begin()

    async def __anext__(self) -> Attempt:
        if not self._due:
            raise StopAsyncIteration
        if self.number > 1:
            await self._policy.async_sleep(self._wait)
        return self._begin()

    def goes_on_after(self, error: Exception) -> bool:
        """Decide after a failed attempt: wait and run again, or let the error out?"""
        ended = self._policy.clock()
        if self.once:
            return False
        if not self._policy.deserves(error):
            return self._give_up(error, ended, note=self.number > 1)
        strategies: tenacity.Retrying = vars(self._policy)["_strategies"]
        state = tenacity.RetryCallState(strategies, None, (), {})  # an attempt that failed has one
        state.attempt_number, state.start_time = self.number, self.started
        state.outcome_timestamp = ended
        at_once = self._at_once is not None and self._at_once(error)
        state.upcoming_sleep = self._wait = 0.0 if at_once else strategies.wait(state)
        if strategies.stop(state):
            return self._give_up(error, ended, note=True)
        self._policy.tell(events.Retry(self.number, self._wait, error))
        self.number += 1
        self._due = True
        return True

    def begin_attempt(self) -> tuple[RunningAttempt, RunningAttempt | None]:
        """The attempt begins here; gives it, and the one around it."""
        begun, around = begin_attempt(self.number, self.started)
        mode = self._policy.repeat_values
        if mode == "overwrite":
            begun.remembers = False
        elif self._wanted or (around is not None and around.repeats is not None):
            begun.repeats = repeats_of(self._wanted, mode, around)
        return begun, around

    def remember(self, over: RunningAttempt, around: RunningAttempt | None, *, again: bool) -> None:
        """What an attempt wanted that has failed: for the next one, or for the run around."""
        if again:
            add_wanted(self._wanted, over.wanted)
        elif around is not None and around.remembers:
            add_wanted(self._wanted, over.wanted)
            add_wanted(around.wanted, self._wanted)

    def _begin(self) -> Attempt:
        # Not due again until it has failed: a loop whose body never enters it ends, too.
        self._due = False
        return Attempt(self)

    def _give_up(self, error: Exception, ended: float, *, note: bool) -> bool:
        if note:
            tries = "1 attempt" if self.number == 1 else f"{self.number} attempts"
            error.add_note(f"optilock: {tries} in {ended - self.started:.2f} s")
        return False


class Attempt:
    """One attempt: ``with attempt:`` holds back an error after which another attempt follows."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._running: tuple[RunningAttempt, RunningAttempt | None] | None = None
        #: From 1.
        self.number = run.number

    def __enter__(self) -> Attempt:
        if not self._run.once:
            self._running = self._run.begin_attempt()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        stored = False
        if self._running is not None:
            ours, around = self._running
            stored = ours.stored
            end_attempt(ours, around)
        # CancelledError, KeyboardInterrupt, SystemExit and GeneratorExit are no Exception.
        again = isinstance(error, Exception) and not stored and self._run.goes_on_after(error)
        if error is not None and self._running is not None:
            self._run.remember(*self._running, again=again)
        return again


def _strategies(policy: Policy) -> tenacity.Retrying:
    """tenacity's part: when to stop and how long to wait."""
    attempts = policy.attempts
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise ConfigurationError(
            f"attempts={attempts!r} cannot work: write how often the work runs at most, 1 or more."
        )
    stop: tenacity.stop.stop_base = tenacity.stop_after_attempt(attempts)
    if policy.deadline is not None:
        stop = stop | tenacity.stop_before_delay(in_seconds("deadline", policy.deadline))
    wait = full_jitter(
        in_seconds("wait_initial", policy.wait_initial), in_seconds("wait_max", policy.wait_max)
    )
    return tenacity.Retrying(stop=stop, wait=wait)


def _predicate(on: object) -> Predicate:
    """``on=`` as a function of the error."""
    kinds = on if isinstance(on, tuple) else (on,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return functools.partial(_is_one_of, cast("tuple[type[Exception], ...]", kinds))
    if isinstance(on, (type, tuple)):
        raise ConfigurationError(
            f"on={on!r} cannot work: write exception classes derived from Exception, or a"
            " function that is given the error and says whether to run again."
        )
    _require_function("on", on)
    return cast(Predicate, on)


def _is_one_of(kinds: tuple[type[Exception], ...], error: BaseException) -> bool:
    """A class asked for, and an unknown outcome only when asked for by its own name."""
    if isinstance(error, CommitOutcomeUnknown) and not any(
        issubclass(kind, CommitOutcomeUnknown) for kind in kinds
    ):
        return False
    return isinstance(error, kinds)


def _require_function(option: str, value: object) -> None:
    if not callable(value):
        raise ConfigurationError(f"{option}={value!r} is not a function.")
    if _is_async(value):
        raise ConfigurationError(
            f"{option}={value!r} is called and not awaited: write it as a plain def."
        )


def _require_repeatable(function: object) -> None:
    """What cannot be run again as a whole is refused when it is decorated."""
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, (classmethod, staticmethod)):
        raise ConfigurationError(f"write @retry below @{type(function).__name__}, not above it.")
    if isinstance(function, type):
        raise ConfigurationError(f"{name} is a class: decorate the method that does the work.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{name} is a generator: what it has yielded cannot be taken back. Decorate a function"
            " that returns a list, or use `for attempt in retrying(...)` around the whole work."
        )
    if not callable(function):
        raise ConfigurationError(f"{name} is not a function: retry decorates def and async def.")


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _not_a_coroutine(function: Callable[..., object], result: R) -> R:
    """A plain function that gives a coroutine has done nothing yet, so nothing was protected."""
    if inspect.iscoroutine(result):
        result.close()
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"{name} is a plain function that returned a coroutine, whose errors retry would not"
            " see: decorate the async def itself."
        )
    return result


# -- the waits between attempts: exponential, with full jitter -------------------------------------
#
# The n-th wait is drawn evenly from zero to ``initial * 2 ** (n - 1)`` seconds, and never more
# than ``maximum``. Writers that met once are spread over the whole range, so that they do not
# meet again; a fixed wait with a little jitter would keep them together
# (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).

Seconds = float | timedelta


def full_jitter(initial: float, maximum: float) -> wait_base:
    """The waits described above, both limits in seconds."""
    return wait_random_exponential(multiplier=initial, max=maximum)


def in_seconds(name: str, value: Seconds) -> float:
    """``value`` as seconds; a ConfigurationError that names the option for anything else."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if is_number and 0 <= seconds < math.inf:
        return float(seconds)
    raise ConfigurationError(
        f"{name}={value!r} is not a duration: write seconds (0 or more) or a timedelta."
    )
