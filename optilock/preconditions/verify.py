"""Be sure that what was read still holds when we commit.

::

    with UnitOfWork(SessionLocal) as session:
        doctor = session.get_one(Doctor, 7)
        verify(doctor)                              # only read: must be unchanged at COMMIT
        session.get_one(Shift, 3).doctor_id = doctor.id

    with UnitOfWork(SessionLocal, verify_reads=True) as session:    # every versioned row it reads
        ...

A version stops a lost update of the row it belongs to, and not a decision that was made on another
row. So the rows that were read and not written are read again before COMMIT, after the last flush:
one SELECT a table, in the order of the keys, with a shared lock that holds until COMMIT (FOR SHARE
on PostgreSQL, LOCK IN SHARE MODE on MariaDB; SQLite has one lock, for writing, which is taken). If
one has moved, the error is ``ConcurrencyError`` with an entry whose action is ``"verify"``. No
resolver is asked, also when the row is written: nobody can merge a decision.
:func:`optilock.retry` may run the unit again.

The version that counts is the one that the transaction saw *first*. An object that was dropped and
read again in a newer version has moved, also when it is written afterwards, and so has one that
was refreshed. Rows that we write, with that version in their WHERE, or delete are not read again.

What it cannot promise: rows that a query did not return (phantoms), counts, sums and other
conditions on many rows, values read without their object (``select(Doctor.name)``), and classes
without any token, which ``verify_reads`` leaves out. A class that only compares values is refused:
there is no version to verify. :func:`optilock.serializable` promises all.
"""

from __future__ import annotations

from optilock.errors import ConcurrencyError
from optilock.guard.promises import promise
from optilock.mapped.keys import identity_of
from optilock.preconditions.etag import GONE
from optilock.preconditions.expect import loaded_version, state_in_watched_session
from optilock.rows.sides import Attempt, entry_of

__all__ = ["verify"]


def verify(obj: object) -> None:
    """Promise that the row of ``obj``, which is only read, is the same version at COMMIT.

    Raises:
        ConcurrencyError: the row is gone; later, at the flush or COMMIT, it has moved since the
            transaction first saw it.
        ConfigurationError: the object is new, deleted, detached, in a session that is not watched,
            or of a class without a version.
    """
    state, session = state_in_watched_session(obj, "verify")
    version = loaded_version(state, "verify")
    if version is GONE:
        attempt = Attempt(state.mapper, identity_of(state), "verify", {}, {}, {})
        raise ConcurrencyError([entry_of(attempt, None)])
    promise(session, state, version, demanded=False)
