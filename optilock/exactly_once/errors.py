"""The errors of keys: one that stands for another call, one in use, one whose unit is stored."""

from __future__ import annotations

from typing import Any

from optilock.errors import OptilockError, pickled_state

__all__ = ["AlreadyDone", "KeyInUse", "KeyReused"]


class KeyReused(OptilockError):
    """The key was used for another function, or for other arguments (HTTP 422)."""

    status = 422

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"The key {key!r} belongs to another call: it was used with another function or with"
            " other arguments, or the function was renamed since. Nothing was run. Make a new key"
            " for each new piece of work, and use a key again only to repeat the same call. Name in"
            " Once(of=) the values that must be the same."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.key,), pickled_state(self))


class KeyInUse(OptilockError):
    """A transaction that has not ended has the key, and ``wait=`` is over (HTTP 409)."""

    status = 409

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"The key {key!r} is in use: another transaction runs under it and has not ended, and"
            " wait= is over. Nothing was run. Repeat the call later: it gets the stored result, or"
            " runs if the other one was rolled back."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.key,), pickled_state(self))


class AlreadyDone(OptilockError):
    """The unit of this key is stored already; ``result`` is what was stored with it.

    A ``with`` block raises it when it is entered, because a block cannot be skipped. A decorated
    function returns ``result``.
    """

    def __init__(self, key: str, result: Any = None) -> None:
        self.key, self.result = key, result
        super().__init__(
            f"The unit of work with the key {key!r} is stored already, and its block is not run"
            " again. Catch AlreadyDone around the block, and take its result; or decorate a"
            " function with unit_of_work(exactly_once=...), which returns the result."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.key, self.result), pickled_state(self))
