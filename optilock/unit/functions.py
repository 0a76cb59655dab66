"""A function as a unit of work: retry and unit in one.

:func:`unit_function` returns a function that runs in attempts. Each attempt is a unit, with a new
session, that reads everything again. Called inside a running unit on the same sessions, the
function joins that unit, runs once and lets the error out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from optilock.errors import ConfigurationError
from optilock.exactly_once.keys import KeyedCall, calls_of_function
from optilock.unit.cancellation import drop_transaction
from optilock.unit.next_attempt import NextAttempt
from optilock.unit.options import Options, named_after
from optilock.unit.retries import Policy

R = TypeVar("R")
#: Makes the call under a key from the arguments; None: no key this time.
MakesCall = Callable[[Any, Any], KeyedCall | None]

_USUAL = Policy()


def unit_function(
    kind: Any,
    function: Any,
    sessions: Any,
    policy: Policy | None,
    options: Options,
    *,
    asynchronous: bool,
) -> Any:
    """Return ``function`` as a unit of ``kind``, a class of units.

    Raises:
        ConfigurationError: it is a method, it cannot run again, it takes no session, or it is async
            and the sessions are not, or the reverse.
    """
    policy = policy or _USUAL
    _refuse_methods(function)
    policy.decorate(function)  # refuses functions that cannot run again, such as generators
    _require_same_kind(function, sessions, asynchronous)
    signature = _without_session(function)
    key: Any = options.exactly_once
    call = None if isinstance(key, bool) else calls_of_function(key, function, signature)
    make = _async_runner if asynchronous else _runner
    run: Any = make(kind, function, sessions, policy, named_after(options, function), call)
    functools.update_wrapper(run, function)
    run.__signature__ = signature
    return run


def _runner(
    kind: Any,
    function: Callable[..., R],
    sessions: Any,
    policy: Policy,
    options: Options,
    keyed: MakesCall | None,
) -> Callable[..., R]:
    attempts = _attempts_after_waits(policy)

    def run(*args: Any, **kwargs: Any) -> R:
        call = None if keyed is None else keyed(args, kwargs)
        following = NextAttempt(attempts)
        try:
            for attempt in policy.run(
                once=_once(options), at_once=following.locks_rows, name=options.name
            ):
                with attempt:
                    unit = kind.from_checked(sessions, options, following, call)
                    if call is not None:
                        result: R = call.run(unit, function, args, kwargs)
                        return result
                    with unit as session:
                        return function(session, *args, **kwargs)
        finally:
            if following.held is not None:
                following.drop()
        raise AssertionError("a run ends with a result or an error")

    return run


def _async_runner(
    kind: Any,
    function: Callable[..., Coroutine[Any, Any, R]],
    sessions: Any,
    policy: Policy,
    options: Options,
    keyed: MakesCall | None,
) -> Callable[..., Coroutine[Any, Any, R]]:
    attempts = _attempts_after_waits(policy)

    async def run(*args: Any, **kwargs: Any) -> R:
        call = None if keyed is None else keyed(args, kwargs)
        following = NextAttempt(attempts)
        try:
            async for attempt in policy.run(
                once=_once(options), at_once=following.locks_rows, name=options.name
            ):
                with attempt:
                    unit = kind.from_checked(sessions, options, following, call)
                    if call is not None:
                        result: R = await call.run_async(unit, function, args, kwargs)
                        return result
                    async with unit as session:
                        return await function(session, *args, **kwargs)
        finally:
            if following.held is not None:
                await drop_transaction(following)
        raise AssertionError("a run ends with a result or an error")

    return run


def _attempts_after_waits(policy: Policy) -> int:
    """Return the most attempts if waits for locks fail."""
    return policy.attempts if policy.is_usual else 1


def _once(options: Options) -> bool | None:
    """Return False for an independent unit, which can run again inside a running one."""
    return False if options.propagation == "independent" else None


def _require_same_kind(function: Any, sessions: Any, asynchronous: bool) -> None:
    if inspect.iscoroutinefunction(function) is not asynchronous:
        name = getattr(function, "__qualname__", repr(function))
        kind, other = ("a plain def", "async") if asynchronous else ("an async def", "sync")
        raise ConfigurationError(
            f"{name} is {kind}, but {type(sessions).__name__} makes {other} sessions: write"
            f" {'async def' if asynchronous else 'def'}, or give unit_of_work"
            f" {'a sessionmaker' if asynchronous else 'an async_sessionmaker'}."
        )


#: The usual names of a method's first argument.
_OF_METHODS = ("self", "cls")


def _refuse_methods(function: Any) -> None:
    """Refuse methods, which would get their object in place of the session.

    Raises:
        ConfigurationError: it is a ``staticmethod`` or ``classmethod`` that is decorated.
    """
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise _method(f"{function.__qualname__} is a {kind} already, so", "self")


def _method(what: str, first: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} {first!r} would be given to it where unit_of_work passes the session. Write"
        " @retry(...) above the method, and `with unit_of_work(sessions) as session:` in it; or,"
        " where the work needs no object, @staticmethod above @unit_of_work(...), and the session"
        " as the first argument."
    )


def _without_session(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that callers see.

    Raises:
        ConfigurationError: no positional parameter could take the session, or it is a method.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is not None and first.name in _OF_METHODS:
        raise _method(f"{function.__qualname__}({first.name}, ...) is a method, so", first.name)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"{name} takes no session: unit_of_work passes the session as the first argument, so"
            f" write def {name}(session, ...)."
        )
    if first.kind is first.VAR_POSITIONAL:
        return signature
    return signature.replace(parameters=parameters[1:])
