"""Versions of scopes: what a transaction moves, what it has verified, and the step before COMMIT.

::

    class Booking(Versioned, Base):
        __version_scopes__ = ("room_id", ("room_id", "day"), ())

    with unit_of_work(SessionLocal) as session:
        taken = verify(session, Booking.scope(room_id=7), select(Booking).where(...))
        if not taken:
            session.add(Booking(room_id=7, ...))            # refused if anybody came in between

A version of a row cannot show that a row was *added*. A scope has a version of its own, one row of
``optilock_scopes`` for each combination of values (:mod:`optilock._mapping.scopes`).

**Moved** by each transaction that inserts, deletes or changes a row of the scope; by a change of
the scope's own columns both scopes. Not by changes of ``__version_ignore__`` columns alone, nor
under ``no_bump``, unless the row is new, deleted or moves into another scope. A savepoint that is
rolled back moves nothing. A transaction moves a scope once. A writer that cannot name its scopes
(an UPDATE of too many rows, INSERT FROM SELECT, SQL text) moves the row ``*`` of the table, which
counts for all scopes of it.

**Verified** (:mod:`optilock.preconditions.scopes`): :func:`optilock.verify`, ``expect`` and
``lock`` remember the version that was seen. The version is read *before* the rows, or a commit in
between would be missed at READ COMMITTED.

**Before COMMIT**, after the last flush (:mod:`~optilock._watched.scopes.transaction`), the rows of
all moved and verified scopes are written and locked in the order of their keys, in one statement
for each run of keys to move or to check. So two transactions cannot deadlock on them. The
statements return the versions, and Python compares them with those that were seen. Another version
is a ``ConcurrencyError`` with an entry for each scope: ``action`` is ``"verify"``, ``identity`` has
the scope's values, ``table`` is ``optilock_scopes``. It is transient: a unit runs again. After
``expect`` it is a ``PreconditionFailed``, which is not.

**Names.** ``rules_of(mapper)`` of :mod:`optilock._mapping.scopes` has the scopes of a class
(``ScopeRules`` with its ``any_key``, over ``ScopeRule``: ``prefix``, ``columns``, ``key(values)``).
A :class:`~optilock._mapping.scopes.Scope` has ``model``, ``items``, ``values``,
``key`` and ``any_key``. Public are ``Booking.scope(...)``, ``optilock.preconditions.Scope``,
``etag_of(session, scope)``, ``ETags.of(session, scope)``, ``ETags.of_scope(scope).named(tags)``,
``expect(session, scope, etag, etags=...)``, ``verify(session, scope[, select(...)])`` and
``lock(session, scope)``; for an ``AsyncSession`` the same of :mod:`optilock.asyncio`. The table is
``optilock.tables.names.scopes`` in the set ``"scopes"``; its statements are
:class:`optilock.dialects.scope_rows.ScopeRows` (``Database.scope_rows``).

:mod:`~optilock._watched.scopes.transaction` is the record of a transaction and the step before
COMMIT. :mod:`~optilock._watched.scopes.flush` finds the scopes of rows that a flush writes, and
:mod:`optilock._watched.statements.scopes` those of statements, bulk calls and entities.
"""
