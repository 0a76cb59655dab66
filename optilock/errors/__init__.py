"""The errors of optilock: one tree, and each message names the next step.

::

    OptilockError
    ├── ConfigurationError (ValueError)     bad input: a mapping, an option, a call that cannot work
    ├── BadPrecondition (ValueError)        a client sent a condition that cannot be read (400)
    │   ├── PreconditionRequired            ... or none, for a write that needs one (428)
    │   └── Oversized                       ... or one that is too long
    ├── ConditionNotCompared                a client's condition was not compared by anything (501)
    ├── BadEntity (ValueError)              a client sent values that its row cannot have (400)
    ├── NotFound (LookupError)              there is no such row (404)
    │   └── NameNotFound                    ... or no such name
    ├── AlreadyExists                       there is such a row already (409, or 412)
    ├── BatchFailed                         one of several operations failed: see ``.index``
    ├── ConcurrencyError (StaleDataError)   another transaction changed the rows: see ``.entries``
    │   ├── PreconditionFailed              ... and the caller had demanded a version (HTTP 412)
    │   ├── LinkGone                        ... and removed a many-to-many link; without entries
    │   ├── MovedByOwnStatement             ... no: a statement of this transaction did
    │   └── WouldOverwrite                  ... and a retry wants the same value once more (409)
    ├── NotWritten (StaleDataError)         a trigger, rule or policy prevented the write (403)
    ├── UnguardedStatement                  a statement that ignores versions was forbidden
    ├── CommitOutcomeUnknown                the connection was lost inside COMMIT
    ├── NotCommitted                        ... and the work is certainly not stored
    ├── SelfDeadlock                        a session would wait for another one of its own caller
    ├── TransactionEnded (PendingRollbackError)  it ended before its COMMIT, and cannot be committed
    ├── KeyReused                           the key of a unit stands for another call (422)
    ├── KeyInUse                            a transaction that has not ended has the key (409)
    ├── AlreadyDone                         the unit of the key is stored: see ``.result``
    ├── CannotMerge                         a field policy found no value that keeps both changes
    ├── LeaseHeld                           another holder has the row, or the name (412, or 409)
    ├── LeaseLost                           the named lease is not in force (412, or 409)
    ├── SharingViolation                    others have the name open, and do not share it (409)
    ├── DeletePending                       the name goes with its last handle (409)
    ├── HandleLost                          the handle was closed, or has expired
    ├── AccessDenied                        the handle was opened without this access
    ├── ReadOnlyName                        the name may only be read
    ├── QueueError                          the root of a queue's errors
    │   ├── MessageNotFound (LookupError)   there is no such message (404)
    │   ├── ReceiptExpired                  the receipt is not the message's current one (400)
    │   ├── MessageTooLarge (ValueError)    its body, or its headers (413)
    │   ├── DeduplicationKeyInUse           a sender with the key has not ended (409)
    │   ├── QueueNotFound (LookupError)     the tables do not exist (404)
    │   └── HandlerTimeout                  a worker has given up a handler
    ├── NotDeterministic (AssertionError)   units of ``testing.explore`` cannot be put in order
    ├── NotSerializable (AssertionError)    an order leaves what no serial order leaves
    ├── OutOfStep (AssertionError)          a step of ``testing.interleave`` did not end in time
    └── FaultNotMet (AssertionError)        a fault of ``testing.Faults`` did not happen

:mod:`~optilock.errors.base` has the root and helpers, :mod:`~optilock.errors.conflicts` the
conflicts with their entries, :mod:`~optilock.errors.requests` the mistakes of a client.
:mod:`optilock.leases.errors`, :mod:`optilock.shares.errors`, :mod:`optilock.queue.errors` and
:mod:`optilock.exactly_once.errors` have the errors of leases, names, queues and keys. Every error
can be pickled, with its notes and, if that can be pickled too, its cause. No message holds SQL, a
secret, or a column value of a row besides its key, its versions, and the two that its class
declares to be shown (``__version_author__``, ``__version_time__``).
"""

from optilock.errors.base import (
    CannotMerge,
    CommitOutcomeUnknown,
    ConfigurationError,
    NotCommitted,
    OptilockError,
    SelfDeadlock,
    SeparateUnitWarning,
    TransactionEnded,
    UnguardedStatement,
    UnguardedStatementWarning,
    UnversionedMergeWarning,
)
from optilock.errors.base import describe as describe
from optilock.errors.base import pickled_state as pickled_state
from optilock.errors.base import prepend_line as prepend_line
from optilock.errors.base import row_name as row_name
from optilock.errors.base import short_text as short_text
from optilock.errors.conflicts import Action as Action
from optilock.errors.conflicts import Computed as Computed
from optilock.errors.conflicts import (
    ConcurrencyError,
    LinkGone,
    MovedByOwnStatement,
    NotWritten,
    PreconditionFailed,
    WouldOverwrite,
)
from optilock.errors.conflicts import Entry as Entry
from optilock.errors.conflicts import Kind as Kind
from optilock.errors.requests import (
    AlreadyExists,
    BadEntity,
    BadPrecondition,
    BatchFailed,
    ConditionNotCompared,
    NotFound,
    PreconditionRequired,
)

__all__ = [
    "AlreadyExists",
    "BadEntity",
    "BadPrecondition",
    "BatchFailed",
    "CannotMerge",
    "CommitOutcomeUnknown",
    "ConcurrencyError",
    "ConditionNotCompared",
    "ConfigurationError",
    "LinkGone",
    "MovedByOwnStatement",
    "NotCommitted",
    "NotFound",
    "NotWritten",
    "OptilockError",
    "PreconditionFailed",
    "PreconditionRequired",
    "SelfDeadlock",
    "SeparateUnitWarning",
    "TransactionEnded",
    "UnguardedStatement",
    "UnguardedStatementWarning",
    "UnversionedMergeWarning",
    "WouldOverwrite",
]
