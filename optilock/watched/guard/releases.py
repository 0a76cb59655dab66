"""Is the installed SQLAlchemy one that the guard knows, and who carries out its flushes?

Looked at once in a process, by the first ``watch()`` or unit (:mod:`optilock.undocumented.check`).
Without a name on which protection hangs, ``watch()`` is refused. Where only the guard's own flush
hangs on something, or a function that it replaces is not as in any release that is known, every
flush is SQLAlchemy's: guarded as well, with the same errors, and slower.

``OPTILOCK_OWN_FLUSH=0`` in the environment, and ``watch(..., own_flush=False)``, do the same. If
that makes a fault go away, the fault is in the own flush.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import sqlalchemy
from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.undocumented.check import OF_OWN_FLUSH, missing, other_functions

__all__ = ["OWN_FLUSH", "check_own_flush", "check_release", "has_own_flush", "installed"]

#: An attribute of a session class: flushes that need no plan are the guard's own.
OWN_FLUSH = "_optilock_own_flush"
_SWITCH = "OPTILOCK_OWN_FLUSH"
_TRIED = "a release of SQLAlchemy that this release of optilock was tried with, or a newer optilock"

_log = logging.getLogger("optilock")


class _Installed:
    """What was found out about the installed release."""

    #: May the guard flush by itself?
    own_flush = False


installed = _Installed()


@functools.cache
def check_release() -> None:
    """Look at what is installed.

    Raises:
        ConfigurationError: it has not all that protection hangs on, or the environment says neither
            yes nor no.
    """
    gone = missing()
    if gone:
        raise ConfigurationError(
            f"SQLAlchemy {sqlalchemy.__version__} has no {_listed(gone)}, without which optilock"
            f" would not see every conflict: install {_TRIED}."
        )
    installed.own_flush = _is_wanted() and _is_known()


def _is_wanted() -> bool:
    wanted = os.environ.get(_SWITCH) or "1"
    if wanted not in ("0", "1"):
        raise ConfigurationError(f"{_SWITCH} in the environment is neither 0 nor 1.")
    return wanted == "1"


def _is_known() -> bool:
    """Are the functions there as they were? If not, the log says so once."""
    other = missing(OF_OWN_FLUSH) or [name.rpartition(":")[2] for name in other_functions()]
    if other:
        _log.warning(
            "SQLAlchemy %s has no %s that optilock knows: flushes are carried out by SQLAlchemy"
            " itself, guarded all the same, and slower. For faster ones install %s.",
            sqlalchemy.__version__,
            _listed(other),
            _TRIED,
        )
    return not other


def check_own_flush(cls: type[Session], own_flush: Any) -> None:
    """Keep what ``watch`` was told; ``None`` leaves it as it is."""
    if own_flush is None:
        return
    if not isinstance(own_flush, bool):
        raise ConfigurationError(f"own_flush={own_flush!r} is neither True, False nor None.")
    setattr(cls, OWN_FLUSH, own_flush)


#: Are flushes of the session that need no plan the guard's own? Asked for every flush, so it is no
#: call of Python.
has_own_flush: Callable[[Session], bool] = attrgetter(OWN_FLUSH)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
