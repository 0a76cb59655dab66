"""The check of the installed SQLAlchemy, once in a process: by the first ``watch()`` or unit.

If a flush of SQLAlchemy fails the self-test, or a name is missing that the self-test does not use,
``watch()`` raises ``ConfigurationError``. If only the guard's own flush fails it, or a function
that it replaces is none of a known release, SQLAlchemy carries out all flushes: guarded as well,
with the same errors, and slower.
"""

from __future__ import annotations

import functools
import logging
import os

import sqlalchemy

from optilock._undocumented.check import is_known_release, missing_names, unknown_functions
from optilock._watched.guard.own_flush import installed_release
from optilock._watched.guard.self_test import find_faults
from optilock.errors import ConfigurationError

_SWITCH = "OPTILOCK_OWN_FLUSH"
_TRIED = "a release of SQLAlchemy that this release of optilock was tried with, or a newer optilock"

_log = logging.getLogger("optilock")


@functools.cache
def check_release() -> None:
    """Check the installed release.

    Two threads may do so at the same time, with the same result.

    Raises:
        ConfigurationError: it does not work as the guard needs it, or the environment variable is
            neither 0 nor 1.
    """
    own_flush = _is_switched_on()
    names = missing_names()
    if names:
        raise _refusal(f"has no {_listed(names)}")
    others = [name.rpartition(":")[2] for name in unknown_functions()] if own_flush else []
    if others:
        _warn(f"has no {_listed(others)} that optilock knows")
    fault, own_fault = _self_test(own_flush=own_flush and not others)
    if fault is not None:
        raise _refusal(f"fails the self-test in: {fault}")
    if own_fault is not None:
        _warn(f"fails the self-test of optilock's own flush in: {own_fault}")
    installed_release.on = own_flush and not others and own_fault is None


def _self_test(*, own_flush: bool) -> tuple[str | None, str | None]:
    """Return the faults; a Python without ``sqlite3`` has no database for the test."""
    try:
        import sqlite3
    except ImportError:
        return None, None if is_known_release() else "no self-test, for want of sqlite3"
    return find_faults(sqlite3, own_flush=own_flush)


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"SQLAlchemy {sqlalchemy.__version__} {what}. optilock would not see every conflict:"
        f" install {_TRIED}."
    )


def _warn(what: str) -> None:
    _log.warning(
        "SQLAlchemy %s %s: flushes are carried out by SQLAlchemy itself, guarded all the same, and"
        " slower. For faster ones install %s.",
        sqlalchemy.__version__,
        what,
        _TRIED,
    )


def _is_switched_on() -> bool:
    wanted = os.environ.get(_SWITCH) or "1"
    if wanted not in ("0", "1"):
        raise ConfigurationError(f"{_SWITCH} in the environment is neither 0 nor 1.")
    return wanted == "1"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
