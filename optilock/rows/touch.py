"""``touch``: move the version of a row though nothing else of it changes.

::

    order = session.get_one(Order, 7)
    ship(order)                          # writes elsewhere, which the order stands for
    touch(order)                         # who holds the order as it was must look again

The UPDATE compares the version, as every write does, and moves it by one step: also when the object
is changed as well, and when it is touched twice. It is sent with the next flush; until then
``etag_of`` tells the version that was loaded. A rollback takes it back, and nothing else does: an
object that is refreshed meanwhile is touched in the version that was read then. Works in watched
sessions, units and plain sessions.
"""

from __future__ import annotations

from sqlalchemy import inspect
from sqlalchemy.orm.state import InstanceState

from optilock.errors import ConfigurationError, described
from optilock.mapped.facts import GIVE_ONE, facts
from optilock.rows.touched import touch_with_next_flush
from optilock.session.watched import stands_still

__all__ = ["touch"]


def touch(obj: object) -> None:
    """Move the version of ``obj``'s row with the next flush, by one step.

    A new object, which gets its first version anyway, and one that is to be deleted are left alone.
    An object that a commit has expired is touched in the version that was seen: if its row has
    moved since, or is gone, that is a conflict. A touch outlives ``refresh`` and ``expire``.

    Raises:
        ConfigurationError: the object is in no session, or its class has no version that moves by
            itself (no mixin, ``CompareValues``, ``Manual``).
    """
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState):
        raise ConfigurationError(
            f"touch() takes an object of a mapped class, not {described(obj)}."
        )
    name = state.class_.__name__
    if state.session is None:
        raise ConfigurationError(
            f"This {name} is in no session, so nothing would write its version: add it to one, or"
            " touch the object that the session has loaded."
        )
    if not facts(state.mapper).token:
        raise ConfigurationError(f"{name} has no version to move: {GIVE_ONE}.")
    if facts(state.mapper).by_application:
        raise ConfigurationError(
            f"The version of {name} moves when your program assigns it (Manual): assign the next"
            " one instead."
        )
    if stands_still(state.session, obj):
        raise ConfigurationError(
            f"This {name} is under no_bump(), which keeps its version as it is: touch it outside"
            " of the block."
        )
    if state.persistent and state.obj() not in state.session.deleted:
        touch_with_next_flush(state)
