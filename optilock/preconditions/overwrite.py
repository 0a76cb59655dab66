"""Write a row whatever others have made of it meanwhile: the last writer wins, by name.

::

    setting = session.get_one(Setting, "theme")
    overwrite(setting)                        # whoever was faster is overwritten
    setting.value = "dark"
    session.commit()

It is what :func:`optilock.client_wins` does, for one object, and whatever ``on_conflict`` says: our
changed columns go over theirs, columns that only they have changed stay theirs, a row that is gone
is inserted again, and one that is to be deleted is deleted. Where nobody was faster it costs
nothing: the write names the version that was read, as every write does.
"""

from __future__ import annotations

from optilock.errors import ConfigurationError
from optilock.guard.promises import promises_of
from optilock.mapped import identity_of, place_of
from optilock.preconditions.expect import state_in_watched_session
from optilock.session.records import OfOneTransaction
from optilock.session.watched import watched

__all__ = ["overwrite"]


def overwrite(obj: object) -> None:
    """Until the transaction is over, let our writes of the row of ``obj`` win. Sends no SQL.

    Raises:
        ConfigurationError: the version of the row was promised in this transaction (``expect``,
            ``verify``), which is the opposite; or the object is new, deleted, detached, or in a
            session that is not watched.
    """
    state, session = state_in_watched_session(obj, "overwrite", versioned=False)
    known = watched(session)
    if place_of(state) in promises_of(session):
        raise ConfigurationError(
            f"overwrite() got {state.class_.__name__} {identity_of(state)!r}, whose version was"
            " promised in this transaction: expect() and verify() say that the row must not have"
            " moved, overwrite() that it does not matter. Leave one of them out."
        )
    if known.overwritten is None:
        known.overwritten = OfOneTransaction()
    known.overwritten.in_transaction(session.get_transaction())
    known.overwritten[place_of(state)] = None
