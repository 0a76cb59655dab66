"""Units of work that are stored exactly once, though connections are lost inside COMMIT.

::

    @unit_of_work(SessionLocal, exactly_once=True)
    def deposit(session: Session, account: int, amount: int) -> int: ...

    @unit_of_work(SessionLocal, exactly_once=lambda order: f"order-{order.number}")
    def pay(session: Session, order: Order) -> dict[str, str]: ...

**True.** A unit whose COMMIT got no answer finds out what became of it. Stored: it ends as if the
answer had come. Not stored, for certain: ``NotCommitted``, and a retry runs it again. The database
could not be asked within ten seconds: ``CommitOutcomeUnknown``, whose ``token`` :func:`committed`
takes later.

**A key.** As well, a second call with the key, anywhere and later, does not run and gets the stored
result (JSON). :class:`Once` has the rules of a key. :func:`purge` deletes old rows.

:func:`after_commit` calls a function once a unit is stored, with the option or without.

:mod:`~optilock.exactly_once.keys` has the keys, :mod:`~optilock.exactly_once.questions` the
question after a lost COMMIT, :mod:`~optilock.exactly_once.units` what a unit does with both, and
:mod:`~optilock.exactly_once.errors` the errors of keys. :mod:`~optilock.exactly_once.hooks` are the
functions to call after COMMIT. :mod:`~optilock.exactly_once.retention` is how long rows are kept,
and :mod:`~optilock.exactly_once.command` the command of that. The SQL of each database is its file
``commit_tokens`` in ``optilock/dialects``. ``docs/how-to/sessions/exactly-once.md`` has the longer
story.
"""

from optilock.errors import NotCommitted
from optilock.exactly_once.errors import AlreadyDone, KeyInUse, KeyReused
from optilock.exactly_once.hooks import after_commit
from optilock.exactly_once.keys import ExactlyOnce, Once
from optilock.exactly_once.questions import committed
from optilock.exactly_once.retention import purge
from optilock.exactly_once.units import set_result

__all__ = [
    "AlreadyDone",
    "ExactlyOnce",
    "KeyInUse",
    "KeyReused",
    "NotCommitted",
    "Once",
    "after_commit",
    "committed",
    "purge",
    "set_result",
]
