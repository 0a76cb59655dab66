"""Options that a unit of work had, for one minor version: what each means now, and a warning.

================================= ==================================================
``savepoint=``, ``independent=``   ``propagation=``
options of a retry                 ``retry=retrying(...)``; ``attempts=`` stays
``require_conditions=``            ``require_conditions(session)`` in the unit
``short=``                         ``pipelined="auto"``
================================= ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optilock._watched.session.record import warn_caller
from optilock.errors import ConfigurationError
from optilock.unit.conditions import ConditionsPart
from optilock.unit.parts import Part
from optilock.unit.retries import Policy
from optilock.unit.round_trips import AUTO

_OF_RETRY = (
    "on", "deadline", "wait_initial", "wait_max", "before_retry", "repeat_values", "idempotent",
)  # fmt: skip
_SHORT = (
    'write pipelined="auto", which it means now: with psycopg 3 a pipelined unit takes two round'
    " trips as well, and reads in its transaction. Other drivers get a plain unit. An engine in"
    " AUTOCOMMIT mode that was made for short units is refused: make an ordinary one"
)
_INSTEAD = {
    **dict.fromkeys(
        _OF_RETRY, "write retry=retrying({name}=...), with attempts= in it, of optilock.retrying"
    ),
    "savepoint": 'write propagation="savepoint"',
    "independent": 'write propagation="independent"',
    "require_conditions": (
        "call require_conditions(session), or ignore_conditions(session), of optilock.unit, at the"
        " begin of the unit"
    ),
    "short": _SHORT,
}


def rename_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords with what means the same now in place of old ones, and warn.

    Raises:
        ConfigurationError: old and new options contradict each other.
    """
    if _INSTEAD.keys().isdisjoint(given):
        return dict(given)
    now = {name: value for name, value in given.items() if name not in _INSTEAD}
    old = {name: value for name, value in given.items() if name in _INSTEAD}
    for name in old:
        warn_caller(
            f"{name}= is no option of a unit of work any more, and will be refused from optilock"
            f" 0.3 on: {_INSTEAD[name].format(name=name)}.",
            DeprecationWarning,
        )
    _check_values(old)
    retry = {name: old[name] for name in _OF_RETRY if name in old}
    if retry and "attempts" in now:
        retry["attempts"] = now.pop("attempts")
    for name, value in (
        ("retry", Policy(**retry) if retry else None),
        ("propagation", "savepoint" if old.get("savepoint") else None),
        ("propagation", "independent" if old.get("independent") else None),
    ):
        if value is not None and now.setdefault(name, value) != value:
            raise ConfigurationError(
                f"{name}={now[name]!r} and an old option contradict each other: write {name}="
                " alone."
            )
    if old.get("short"):
        now.setdefault("pipelined", AUTO)
    if (every := old.get("require_conditions")) is not None:
        now["parts"] = [*now.get("parts", ()), ConditionsPart(bool(every))]
    return now


def parts_of_join(wanted: Sequence[Part], has: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """Return the parts of a unit and of the one that it joins, as far as both must have them.

    The part of ``require_conditions=False`` weakens nothing, and may join any unit.
    """
    own, outer = ([p for p in some if not isinstance(p, ConditionsPart)] for some in (wanted, has))
    required = [one for one in wanted if one == ConditionsPart(True)]
    return [*own, *required], [*(outer if own else ()), *(one for one in has if one in required)]


def _check_values(old: Mapping[str, Any]) -> None:
    for name in ("savepoint", "independent", "short"):
        if not isinstance(old.get(name, False), bool):
            raise ConfigurationError(f"{name}={old[name]!r} is neither True nor False.")
    if (every := old.get("require_conditions")) not in (True, False, None):
        raise ConfigurationError(
            f"require_conditions={every!r}: call require_conditions(session) in the unit."
        )


def requires_by_old_option(function: Any) -> bool:
    """Return whether a function opens a unit, or is one, with ``require_conditions=``."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    named = dict(zip(getattr(code, "co_freevars", ()), cells, strict=False))
    of_unit = getattr(named.get("options"), "cell_contents", None)
    if hasattr(function, "__wrapped__") and ConditionsPart(True) in getattr(of_unit, "parts", ()):
        return True
    constants = getattr(code, "co_consts", ())
    return any(isinstance(one, tuple) and "require_conditions" in one for one in constants)
