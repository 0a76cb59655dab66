"""Code that is written once, as coroutines, for threads and for asyncio.

::

    class Calls:
        @dual_method
        async def peek(self, n: int = 1) -> list[Message]: ...

    class AsyncQueue(Calls): ...            # await queue.peek()
    class Queue(ThreadClass, Calls): ...    # queue.peek()

A class for threads gives its coroutines operations that block. So they never suspend, and
:func:`run_to_end` takes each to its end without an event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from optilock.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


async def result_of(result: Awaitable[R] | R) -> R:
    """Return the result of an operation, which is awaited if the operation is one of asyncio."""
    return await result if isawaitable(result) else result


def run_to_end(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that does not suspend, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine for threads waits for an event loop")


def load_of_asyncio(module: str, name: str) -> Any:
    """Return a name that needs greenlet, or a class that raises when it is called without it.

    So ``import *``, ``pydoc`` and ``hasattr()`` work in a program that has no use for asyncio.
    """
    try:
        return getattr(import_module(module), name)
    except ImportError:
        if _has_greenlet():
            raise
    return type(name, (), {"__new__": _refuse, "__module__": module, "__doc__": _refusal(name)})


def _has_greenlet() -> bool:
    try:
        import_module("greenlet")
    except ImportError:
        return False
    return True


def _refuse(cls: type[Any], *_: Any, **__: Any) -> Any:
    raise ConfigurationError(_refusal(cls.__name__))


def _refusal(name: str) -> str:
    return f'{name} needs greenlet, as all of asyncio does here: pip install "optilock[asyncio]".'


class ThreadClass:
    """A class for threads: its methods with :func:`dual_method` block, and return their results."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in dir(cls):
            method: Any = getattr(cls, name)
            if getattr(method, "optilock_dual", False):
                setattr(cls, name, _blocking(method))


def _blocking(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return run_to_end(method(*args, **kwargs))

    call.optilock_dual = False  # type: ignore[attr-defined]
    return call


if TYPE_CHECKING:

    class dual_method(Generic[P, R]):
        """Declare a method of a class for threads and of one for asyncio."""

        def __init__(
            self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
        ) -> None: ...
        @overload
        def __get__(self, instance: ThreadClass, owner: Any) -> Callable[P, R]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> Callable[P, Coroutine[Any, Any, R]]: ...
        def __get__(self, instance: object, owner: Any) -> Any: ...

else:

    def dual_method(method):
        """Declare a method of a class for threads and of one for asyncio."""
        method.optilock_dual = True
        return method
