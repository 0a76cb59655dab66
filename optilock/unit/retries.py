"""Run a unit of work again after a transient error.

::

    @retry(attempts=5)
    def deposit(account_id: int, amount: int) -> None:
        with SessionLocal.begin() as session:
            session.get_one(Account, account_id).balance += amount

    for attempt in retrying(deadline=2.0):       # ``async for`` in async code
        with attempt:
            deposit_here(42, 10)

Rule: an attempt is the whole unit, with its own session, its own reads and its own COMMIT, and
never a part of it. It is run again after an error that ``on`` accepts
(:func:`optilock.is_transient` by default), after a wait with full jitter, as long as there are
attempts left and the next one would begin before the deadline. The last error comes out itself,
with a note on attempts and time.

The n-th wait is drawn evenly from zero to ``wait_initial * 2 ** (n - 1)`` seconds, and is at most
``wait_max``. Writers that met once are spread over the whole range, so that they do not meet again.
A fixed wait with a little jitter would keep them together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).

Each attempt computes its values from the rows that it reads. A value that a person has typed is the
same in each attempt. An attempt that would write it over another user's change, which its author
has not seen, raises :class:`optilock.WouldOverwrite`, unless the row's resolver wants that value
(:mod:`optilock._watched.guard.repeats`). Such a value needs a tag (:func:`optilock.expect`).

Edges: inside a running unit of work a retry runs once and lets the error out, because a part of a
transaction cannot be repeated. ``CancelledError``, ``KeyboardInterrupt`` and ``SystemExit`` pass at
once. The deadline starts no new attempt, and does not interrupt a running one. Effects outside the
database (a mail, a request) are repeated with the attempt: do them after the unit.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args, overload

from optilock import events
from optilock._watched.guard.outside_edits import put_back
from optilock._watched.guard.running_attempts import (
    RepeatValues,
    Rows,
    RunningAttempt,
    add_wanted,
    repeats_of,
)
from optilock._watched.guard.stored_work import stored_by
from optilock.dialects.transient import FINAL, is_transient
from optilock.errors import CommitOutcomeUnknown, ConfigurationError
from optilock.unit.durations import (
    Seconds,
    full_jitter,
    in_seconds,
    sleep_for,
    sleep_for_async,
)
from optilock.unit.failures import name_of_failed, report_failures, reported_end
from optilock.unit.refused_locks import is_of_added_lock
from optilock.unit.repeatable import is_async, require_repeatable, returned_by
from optilock.unit.running_units import begin_attempt, end_attempt, inside_unit

if TYPE_CHECKING:
    import tenacity

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
    idempotent: bool = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def retry(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Run the decorated ``def`` or ``async def`` again when it fails with a passing error.

    ``attempts``: the most times that it runs, 1 or more (5).
    ``on``: an exception class, a tuple of classes, or a function of the error.
    ``deadline``: seconds or timedelta from the first attempt; no attempt begins after it.
    ``wait_initial``, ``wait_max``: seconds or timedelta (0.02, 1), :mod:`~optilock.unit.retries`.
    ``before_retry``: called with an :class:`optilock.events.Retry` before each wait.
    ``repeat_values``: a later attempt that writes the same value over a change that its author has
    not seen raises :class:`optilock.WouldOverwrite` (None or ``"refuse"``), unless the row's
    resolver wants that value. ``"overwrite"`` lets it pass.
    ``idempotent``: True runs an attempt again after a part of it was stored by a unit, session or
    queue of its own. By default its error comes out, with a note.

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
    idempotent: bool = False,
) -> Policy:
    """Return the loop form of :func:`retry`, with the same options: ``for`` or ``async for``.

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
        idempotent=idempotent,
    )


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rule of repetition and its waits: built once, used for every call and every loop."""

    attempts: int = 5
    on: On = is_transient
    deadline: Seconds | None = None
    wait_initial: Seconds = 0.02
    wait_max: Seconds = 1.0
    before_retry: Hook | None = None
    repeat_values: RepeatValues | None = None
    idempotent: bool = False
    #: The names of the options that a unit of work got, for messages.
    given: str = field(default="", repr=False)
    #: Clock and sleep, which tests replace.
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], object] = field(default=sleep_for, repr=False)
    async_sleep: Callable[[float], Awaitable[object]] = field(default=sleep_for_async, repr=False)

    def __post_init__(self) -> None:
        _require_attempts(self.attempts)
        for name in ("deadline", "wait_initial", "wait_max"):
            if name != "deadline" or self.deadline is not None:
                in_seconds(name, getattr(self, name))
        object.__setattr__(self, "_predicate", _predicate(self.on))
        if self.before_retry is not None:
            _require_function("before_retry", self.before_retry)
        if not isinstance(self.idempotent, bool):
            raise ConfigurationError(f"idempotent={self.idempotent!r} is neither True nor False.")
        if self.repeat_values not in (None, *get_args(RepeatValues)):
            raise ConfigurationError(
                f'repeat_values={self.repeat_values!r} is no choice: write "refuse" or'
                ' "overwrite", or omit it.'
            )

    def run(
        self,
        *,
        once: bool | None = None,
        at_once: Predicate | None = None,
        name: str | None = None,
    ) -> Run:
        """Return one run of the loop, with its ``name`` in events.

        ``once``: the run has one attempt; by default it does inside a running unit of work.
        ``at_once``: a function of the error that is true if the next attempt need not wait.
        """
        once = inside_unit() if once is None else once
        return Run(self, once=once, at_once=at_once, name=name)

    def __iter__(self) -> Run:
        return self.run()

    __aiter__ = __iter__

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function`` until an attempt succeeds, and return its result."""
        for attempt in self.run(name=getattr(function, "__name__", None)):
            with attempt:
                return returned_by(function, function(*args, **kwargs))
        raise AssertionError("a run ends with a result or an error")

    async def acall(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Do the same for a function whose result is awaited."""
        async for attempt in self.run(name=getattr(function, "__name__", None)):
            with attempt:
                return await function(*args, **kwargs)
        raise AssertionError("a run ends with a result or an error")

    def decorate(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return ``function`` under this policy; a coroutine function stays one."""
        require_repeatable(function)
        if is_async(function):
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
        """True if the work runs again after every transient error."""
        return self.on is is_transient

    def deserves(self, error: Exception) -> bool:
        """Return whether ``on`` accepts the error; an error of ``on`` itself comes out."""
        predicate: Predicate = vars(self)["_predicate"]
        return not isinstance(error, FINAL) and bool(predicate(error))

    def wait_after(
        self, number: int, started: float, ended: float, *, at_once: bool
    ) -> float | None:
        """Return the seconds to wait after a failed attempt; None if no attempt may follow."""
        from tenacity import RetryCallState  # loaded after the first failure

        state = RetryCallState(self._strategies, None, (), {})  # as after any failed attempt
        state.attempt_number, state.start_time, state.outcome_timestamp = number, started, ended
        wait = state.upcoming_sleep = 0.0 if at_once else self._strategies.wait(state)
        return None if self._strategies.stop(state) else wait

    @cached_property
    def _strategies(self) -> tenacity.Retrying:
        from tenacity import Retrying, stop_after_attempt, stop_before_delay

        stop: tenacity.stop.stop_base = stop_after_attempt(self.attempts)
        if self.deadline is not None:
            stop = stop | stop_before_delay(in_seconds("deadline", self.deadline))
        wait = full_jitter(
            in_seconds("wait_initial", self.wait_initial), in_seconds("wait_max", self.wait_max)
        )
        return Retrying(stop=stop, wait=wait)

    def announce(self, event: events.Retry) -> None:
        """Call the listeners and ``before_retry``; an error of the latter comes out."""
        events.emit(lambda: event)
        if self.before_retry is not None:
            self.before_retry(event)


class Run:
    """The attempts of one call or one loop, one after the other."""

    def __init__(
        self, policy: Policy, *, once: bool, at_once: Predicate | None, name: str | None
    ) -> None:
        self._policy, self.name = policy, name
        self._at_once = at_once
        #: The run is a part of a unit of work, and so it is not repeated.
        self.once = once
        #: The number of the attempt that runs or comes next, from 1.
        self.number = 1
        #: The begin of the first attempt, by the policy's clock.
        self.started = policy.clock()
        self._wait = 0.0
        self._due = True
        #: The rows that the failed attempts wanted to write.
        self._wanted: Rows = {}

    def __iter__(self) -> Run:
        return self

    __aiter__ = __iter__

    def __next__(self) -> Attempt:
        if not self._due:
            raise StopIteration
        if self.number > 1:
            with reported_end(self):
                self._policy.sleep(self._wait)
        return self._begin()

    async def __anext__(self) -> Attempt:
        if not self._due:
            raise StopAsyncIteration
        if self.number > 1:
            with reported_end(self):
                await self._policy.async_sleep(self._wait)
        return self._begin()

    def goes_on_after(self, error: Exception, attempt: RunningAttempt) -> bool:
        """Decide after a failed attempt whether to wait and run again, or to let the error out."""
        ended = self._policy.clock()
        if not (self._policy.deserves(error) or is_of_added_lock(error)):
            return self._give_up(error, ended, note=self.number > 1)
        stored = None if self._policy.idempotent else stored_by(attempt, error)
        if stored is not None:
            error.add_note(stored)
            return self._give_up(error, ended, note=self.number > 1)
        at_once = self._at_once is not None and self._at_once(error)
        wait = self._policy.wait_after(self.number, self.started, ended, at_once=at_once)
        if wait is None:
            return self._give_up(error, ended, note=True)
        if (lost := put_back(attempt)) is not None:
            error.add_note(lost)
            return self._give_up(error, ended, note=self.number > 1)
        self._wait = wait
        name = self.name or name_of_failed(attempt)
        self._policy.announce(events.Retry(self.number, wait, error, name))
        self.number += 1
        self._due = True
        return True

    def begin_attempt(self) -> tuple[RunningAttempt, RunningAttempt | None]:
        """Begin the attempt here; return it and the outer one."""
        begun, around = begin_attempt(self.number, self.started, self.name)
        if self._policy.repeat_values == "overwrite":
            begun.remembers = False
        elif self._wanted or (around is not None and around.repeats is not None):
            begun.repeats = repeats_of(self._wanted, around)
        return begun, around

    def remember(self, over: RunningAttempt, around: RunningAttempt | None, *, again: bool) -> None:
        """Keep the rows of a failed attempt for the next one, or for the outer run."""
        if again:
            add_wanted(self._wanted, over.wanted)
        elif around is not None and around.remembers:
            add_wanted(self._wanted, over.wanted)
            add_wanted(around.wanted, self._wanted)

    def hand_over(self, over: RunningAttempt, around: RunningAttempt | None) -> None:
        """Let the outer run know what an attempt has stored, and what was edited before it."""
        if around is None:
            return
        if not self._policy.idempotent:
            around.stored_work += over.stored_work
        around.edited = {**over.edited, **around.edited}

    @property
    def begun(self) -> int:
        """How many attempts have begun."""
        return self.number - self._due

    @property
    def seconds(self) -> float:
        """Seconds since the begin of the first attempt."""
        return self._policy.clock() - self.started

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
        if self._running is None:  # a part of a unit
            return False
        ours, around = self._running
        end_attempt(ours, around)
        self._run.hand_over(ours, around)
        if error is None and not ours.failed:
            return False
        # CancelledError, KeyboardInterrupt, SystemExit and GeneratorExit are no Exception.
        again = False
        if isinstance(error, Exception) and not ours.stored:
            with reported_end(self._run):
                again = self._run.goes_on_after(error, ours)
        if not again:
            report_failures(ours, error, self._run.name, self._run.seconds)
        if error is not None:
            self._run.remember(ours, around, again=again)
        return again


def _require_attempts(attempts: object) -> None:
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise ConfigurationError(
            f"attempts={attempts!r} cannot work: write how often the work runs at most, 1 or more."
        )


def _predicate(on: object) -> Predicate:
    """Return ``on=`` as a function of the error."""
    kinds = on if isinstance(on, tuple) else (on,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return functools.partial(_is_one_of, cast("tuple[type[Exception], ...]", kinds))
    if isinstance(on, (type, tuple)):
        raise ConfigurationError(
            f"on={on!r} cannot work: write exception classes derived from Exception, or a function"
            " that takes the error and returns whether to run again."
        )
    _require_function("on", on)
    return cast(Predicate, on)


def _is_one_of(kinds: tuple[type[Exception], ...], error: BaseException) -> bool:
    """Return whether the error is one of the classes; an unknown outcome needs its own name."""
    if isinstance(error, CommitOutcomeUnknown) and not any(
        issubclass(kind, CommitOutcomeUnknown) for kind in kinds
    ):
        return False
    return isinstance(error, kinds)


def _require_function(option: str, value: object) -> None:
    if not callable(value):
        raise ConfigurationError(f"{option}={value!r} is not a function.")
    if is_async(value):
        text = f"{option}={value!r} is called and not awaited: write it as a plain def."
        raise ConfigurationError(text)
