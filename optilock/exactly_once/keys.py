"""Keys: what ``exactly_once=`` takes, the token of a key, and what must be the same each time."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any
from uuid import UUID

from optilock.dialects.commit_tokens import RANDOM, StoredToken
from optilock.dialects.waits import Wait
from optilock.errors import ConfigurationError, describe
from optilock.exactly_once.errors import AlreadyDone, KeyReused
from optilock.serialize import DEEPEST, is_too_deep, limit_exceeded_by, read_json

#: A text of the program's own; or the principal that sent a client's key, and that key.
Key = str | tuple[str, str]

_LONGEST, _LONGEST_PART = 200, 255
#: The first character of the tokens of hashed keys.
_HASHED = "#"
#: MariaDB's TEXT holds as many bytes.
_LONGEST_RESULT = 65_535
_NOT_GIVEN: Any = object()
#: None as JSON.
_NULL = "null"


@dataclass(frozen=True)
class Once:
    """A key with its rules: ``exactly_once=Once("order-4711", of=order, wait=0)``.

    Args:
        key: a text, or a pair of the principal and the key. For a decorated function also a
            function of its arguments.
        of: what must be the same each time: plain values. For a decorated function also a function
            of its arguments; by default all of them.
        wait: seconds, or a timedelta, to wait for a transaction that has the key and has not ended;
            then ``KeyInUse`` is raised. By default as the database is set up.

    Raises:
        ConfigurationError: the key, or ``wait``, cannot work.
    """

    key: Key | Callable[..., Key | None]
    _: KW_ONLY
    of: Any = _NOT_GIVEN
    wait: float | timedelta | None = None

    def __post_init__(self) -> None:
        if not callable(self.key):
            token_of(self.key)
        seconds = self.wait.total_seconds() if isinstance(self.wait, timedelta) else self.wait
        if seconds is None:
            return
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds < math.inf:
            raise ConfigurationError(
                f"wait={self.wait!r} is not a duration: write seconds (0 or more) or a timedelta."
            )

    @property
    def longest(self) -> Wait | None:
        """The longest wait for the key."""
        wait = self.wait
        if wait is None:
            return None
        return Wait(wait.total_seconds() if isinstance(wait, timedelta) else wait)


#: What ``exactly_once=`` takes. ``None`` of a function is no key this time.
ExactlyOnce = bool | Key | Once | Callable[..., Key | Once | None]


def token_of(key: Any) -> str:
    """Return the token of a key.

    Raises:
        ConfigurationError: it cannot be a key.
    """
    if isinstance(key, tuple):
        return _hashed(key)
    _require_text(key, "a key", _LONGEST)
    if key[0] in (RANDOM, _HASHED):
        raise ConfigurationError(
            f"The key {key!r} begins with {key[0]!r}, as tokens of optilock's own do: begin it with"
            " another character, or give a pair (principal, key), which is hashed."
        )
    return str(key)


def _hashed(key: tuple[Any, ...]) -> str:
    if len(key) != 2:
        raise ConfigurationError(
            f"A key that is a tuple has two texts, (principal, key), and this one has {len(key)}"
            " parts."
        )
    for part, what in zip(key, ("the principal of a key", "a key"), strict=True):
        _require_text(part, what, _LONGEST_PART)
    return _HASHED + sha256(b"".join(_text_of(key))).hexdigest()


def _require_text(value: Any, what: str, longest: int) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{what} is a text of 1 to {longest} characters, not {describe(value)}: write"
            ' exactly_once="order-4711", or a pair (principal, key) where a client has sent it.'
        )
    if not 0 < len(value) <= longest:
        raise ConfigurationError(
            f"{what} has 1 to {longest} characters, and this one has {len(value)}: hash a longer"
            " one, or give a pair (principal, key)."
        )
    if "\0" in value or any("\ud800" <= one <= "\udfff" for one in value):
        raise ConfigurationError(
            f"{what} is a text without NUL and without halves of surrogate pairs, which databases"
            " cannot hold."
        )


# -- what must be the same each time ---------------------------------------------------------------


def fingerprint_of(name: str, of: Any) -> str:
    """Return the hash of a function's name and of plain values.

    Raises:
        ConfigurationError: a value has no text that is the same in every process.
    """
    if is_too_deep(of):
        raise ConfigurationError(
            "exactly_once= cannot fingerprint a value with more than"
            f" {DEEPEST} collections inside one another. Name the values that must be the same:"
            " exactly_once=Once(key, of=plain values). Nothing was sent."
        )
    return sha256(b"".join(_text_of((name, of)))).hexdigest()


def _text_of(value: Any) -> Iterator[bytes]:
    """Yield the parts of a text that no other value has."""
    if isinstance(value, Enum):
        yield from _text_of((type(value).__qualname__, value.name))
    elif isinstance(value, Mapping):
        pairs = ((b"".join(_text_of(k)), b"".join(_text_of(v))) for k, v in value.items())
        yield from _sized("map", [one + other for one, other in sorted(pairs)])
    elif isinstance(value, Set):
        yield from _sized("set", sorted(b"".join(_text_of(one)) for one in value))
    elif isinstance(value, (list, tuple)):
        yield from _sized("list", [b"".join(_text_of(one)) for one in value])
    else:
        yield from _sized(type(value).__name__, [_plain(value)])


def _sized(kind: str, parts: Iterable[bytes]) -> Iterator[bytes]:
    parts = list(parts)
    yield f"{kind}:{len(parts)}:".encode()
    for part in parts:
        yield f"{len(part)}:".encode()
        yield part


def _plain(value: Any) -> bytes:
    match value:
        case None | bool() | int() | float() | Decimal() | UUID():
            return str(value).encode()
        case str():
            return value.encode("utf-8", "surrogatepass")
        case bytes():
            return value
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat().encode()
        case date() | time():
            return value.isoformat().encode()
        case timedelta():
            return str(value / timedelta(microseconds=1)).encode()
    raise ConfigurationError(
        f"exactly_once= cannot fingerprint {describe(value)}, so a later call could not be compared"
        " with this one. Name the values that must be the same: exactly_once=Once(key, of=plain"
        " values), texts, numbers, times, lists and dicts of them. Nothing was sent."
    )


# -- one call under a key --------------------------------------------------------------------------


class KeyedCall:
    """One call, or one block, under a key: its token, and its result."""

    def __init__(self, once: Once, name: str, of: Any) -> None:
        key: Any = once.key
        self.token = token_of(key)
        #: For messages: of a pair, the client's part.
        self.key: str = key[1] if isinstance(key, tuple) else key
        self.fingerprint = fingerprint_of(name, () if of is _NOT_GIVEN else of)
        self.wait = once.longest
        #: The error for a key that is done.
        self.done: AlreadyDone | None = None
        #: The result as JSON; once it is stored the unit is done.
        self.text: str = _NULL
        self.result: Any = None

    def keep(self, result: Any) -> None:
        """Keep the result, which is stored with the unit.

        Raises:
            ConfigurationError: it does not come back from JSON as it is.
        """
        self.text, self.result = _json_of(result), result

    def found(self, stored: StoredToken) -> AlreadyDone:
        """Take the stored result of the key in place of any other.

        Raises:
            KeyReused: the key stands for another call.
            ConfigurationError: the key is there, and its unit was not done; or the result cannot be
                read.
        """
        if stored.fingerprint != self.fingerprint:
            raise KeyReused(self.key)
        if stored.result is None:
            raise not_done(self.key)
        try:
            self.result = read_json(stored.result)
        except ValueError as error:
            raise _unreadable(self.key, error) from None
        self.done = AlreadyDone(self.key, self.result)
        return self.done

    def run(self, unit: Any, function: Callable[..., Any], args: Any, options: Any) -> Any:
        """Run ``function`` in the unit; return its result, or the stored one of an earlier call."""
        try:
            with unit as session:
                self.keep(function(session, *args, **options))
        except AlreadyDone as done:
            if done is not self.done:
                raise
        return self.result

    async def run_async(
        self, unit: Any, function: Callable[..., Any], args: Any, options: Any
    ) -> Any:
        """Do the same for a coroutine function."""
        try:
            async with unit as session:
                self.keep(await function(session, *args, **options))
        except AlreadyDone as done:
            if done is not self.done:
                raise
        return self.result


def call_of_block(given: ExactlyOnce) -> KeyedCall | None:
    """Return the call for a ``with`` block; ``None`` without a key.

    Raises:
        ConfigurationError: the key is a function of arguments.
    """
    if isinstance(given, bool):
        return None
    key: Any = given
    once = given if isinstance(given, Once) else Once(key)
    if callable(once.key):
        raise ConfigurationError(
            "exactly_once= of a block got a function, and a block has no arguments to call it with:"
            " give it the key itself, or decorate a function with unit_of_work(exactly_once=...)."
        )
    return KeyedCall(once, "", once.of)


def calls_of_function(
    given: ExactlyOnce, function: Callable[..., Any], signature: inspect.Signature
) -> Callable[[Any, Any], KeyedCall | None]:
    """Return what makes the call of a decorated function from its arguments.

    ``signature`` is that of the function without the session.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    def call(args: tuple[Any, ...], options: dict[str, Any]) -> KeyedCall | None:
        made: Any = given
        if callable(made):
            made = made(*args, **options)
        once = made if isinstance(made, Once) or made is None else Once(made)
        if once is not None and callable(once.key):
            key = once.key(*args, **options)
            once = None if key is None else Once(key, of=once.of, wait=once.wait)
        if once is None:
            return None
        of = once.of
        if of is _NOT_GIVEN:
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            of = bound.arguments
        elif callable(of):
            of = of(*args, **options)
        return KeyedCall(once, name, of)

    return call


class _OptionInUse:
    """Whether the process has units with the option, whose table ``optilock check`` looks for."""

    seen: bool = False


option_in_use = _OptionInUse()


def check_once(given: Any) -> None:
    """Check what ``exactly_once=`` got.

    Raises:
        ConfigurationError: it cannot work.
    """
    if not (isinstance(given, (bool, Once)) or callable(given)):
        token_of(given)
    option_in_use.seen = option_in_use.seen or given is not False


# -- results ---------------------------------------------------------------------------------------


def not_done(key: str) -> ConfigurationError:
    """Return the error for a key without a result, which COMMIT of its unit stores."""
    return ConfigurationError(
        f"The key {key!r} is in optilock_commit_tokens without a result, so its unit has begun and"
        " was not done. Usually a statement of it has committed by itself (on MariaDB CREATE,"
        " ALTER, DROP, TRUNCATE, LOCK TABLES or COMMIT), and the unit runs still or has failed:"
        " what came before that statement is stored. Or a unit was opened again inside of itself."
        " Nothing was run. Take such statements out of units with a key. Once no such unit runs,"
        " compare the rows, delete the row of the key, and call again."
    )


def _unreadable(key: str, error: ValueError) -> ConfigurationError:
    return ConfigurationError(
        f"The unit of the key {key!r} is stored already, and its result cannot be read: {error}."
        " Usually another program has written the key's row in optilock_commit_tokens, or a restore"
        " has cut it. Nothing was run. Write the unit's result into that row as JSON, and call"
        " again."
    )


def _json_of(result: Any) -> str:
    try:
        text = json.dumps(result, allow_nan=False, separators=(",", ":"))
        same = _is_same(result, json.loads(text))
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise ConfigurationError(
            "The result of a unit with a key is stored as JSON, and this one"
            f" ({type(result).__name__}) does not come back from JSON as it is: a later call would"
            " get another value. Return texts, whole and finite numbers, booleans, None, and lists"
            " and dicts (with texts as keys) of them: a list for a tuple, a text for a date."
            " The unit is rolled back."
        )
    if limit := limit_exceeded_by(text):
        raise ConfigurationError(
            "The result of a unit with a key is stored as JSON that every later call can read, and"
            f" this one cannot be stored: {limit}. Store it in a row of your own, and return the"
            " row's key. The unit is rolled back."
        )
    if len(text) > _LONGEST_RESULT:
        raise ConfigurationError(
            f"The result of a unit with a key is stored as JSON, and this one has {len(text):,}"
            f" characters, more than {_LONGEST_RESULT:,}: store it in a row of your own, and return"
            " the row's key. The unit is rolled back."
        )
    return text


def _is_same(value: Any, back: Any) -> bool:
    """Return whether both are equal and of the same types, all the way down."""
    if type(value) is not type(back):
        return False
    if isinstance(value, dict):
        return value.keys() == back.keys() and all(_is_same(value[k], back[k]) for k in back)
    if isinstance(value, list):
        return len(value) == len(back) and all(map(_is_same, value, back))
    return bool(value == back)
