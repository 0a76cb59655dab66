"""Options that a unit of work had, for one minor version: what each means now, and a warning.

================================= ==================================================
``savepoint=``, ``independent=``   ``propagation=``
options of a retry                 ``retry=retrying(...)``; ``attempts=`` stays
``require_conditions=``            ``require_conditions(session)`` in the unit
``short=``                         ``pipelined="auto"``
================================= ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optilock.errors import ConfigurationError
from optilock.unit.conditions import ConditionsPart
from optilock.unit.retries import Policy
from optilock.unit.round_trips import AUTO
from optilock.watched.session.record import warn_caller

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
    retry = {name: old[name] for name in _OF_RETRY if name in old}
    if retry and "attempts" in now:
        retry["attempts"] = now.pop("attempts")
    for name, value in (
        ("retry", Policy(**retry) if retry else None),
        ("propagation", "savepoint" if old.get("savepoint") else None),
        ("propagation", "independent" if old.get("independent") else None),
        ("pipelined", AUTO if old.get("short") else None),
    ):
        if value is not None and now.setdefault(name, value) is not value:
            raise ConfigurationError(
                f"{', '.join(old)}= and {name}={now[name]!r} contradict each other: write {name}="
                " alone."
            )
    if (every := old.get("require_conditions")) is not None:
        now["parts"] = [*now.get("parts", ()), ConditionsPart(bool(every))]
    return now
