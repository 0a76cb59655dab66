"""Secret keys of a server: the first one signs, and all of them verify."""

from __future__ import annotations

from collections.abc import Iterable

from optilock.errors import ConfigurationError

__all__ = ["secret_keys"]

_SHORTEST = 16


def secret_keys(call: str, keys: Iterable[str | bytes]) -> tuple[bytes, ...]:
    """The keys that ``call`` was given, as bytes.

    Raises:
        ConfigurationError: a key is too short, or something else.
    """
    given = (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)
    if not all(isinstance(key, (str, bytes)) and len(key) >= _SHORTEST for key in given):
        raise ConfigurationError(
            f"{call}(keys=...): a key is text or bytes, at least {_SHORTEST} of them:"
            " secrets.token_bytes(32) makes one."
        )
    return tuple(key.encode() if isinstance(key, str) else key for key in given)
