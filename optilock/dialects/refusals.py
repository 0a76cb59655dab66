"""What a database refuses, by the codes of its errors."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from optilock.dialects.causes import ErrorCodes


class Refusals(ErrorCodes):
    """The refusals of one engine, by the codes of its errors."""

    #: Codes that say "you may not".
    forbidden: frozenset[str | int] = frozenset({"42501"})

    def forbids(self, error: DBAPIError) -> bool:
        """Return whether the user lacks the right to do that."""
        return not self.forbidden.isdisjoint(self._codes(error))

    #: Codes that say that this transaction, or server, writes nothing, and locks no row either.
    read_only: frozenset[str | int] = frozenset({"25006"})

    #: More codes of a server that cannot do such work for now: it has no room, or it interrupts
    #: statements that take too long.
    hindrances: frozenset[str | int] = frozenset({"53", "57014", "58030"})

    def is_hindered(self, error: DBAPIError) -> bool:
        """Return whether the same statement may succeed when an operator has helped the server.

        Another transaction is refused as long as the reason lasts, so this is not transient.
        """
        return not (self.read_only | self.hindrances).isdisjoint(self._codes(error))

    #: Codes that say that no row of this relation can be locked.
    never_locked: frozenset[str | int] = frozenset({"0A000", "42809"})

    def refuses_locks(self, error: DBAPIError) -> bool:
        """Return whether the same read might succeed without its locks."""
        refused = self.forbidden | self.read_only | self.never_locked
        return not refused.isdisjoint(self._codes(error))

    def never_locks(self, error: DBAPIError) -> bool:
        """Return whether such a read fails for every user, and in each transaction."""
        return not self.never_locked.isdisjoint(self._codes(error))

    #: Codes that say that a row may not hold such values: a CHECK, the range of a type, a trigger
    #: with a rule of its own.
    unstorable: frozenset[str | int] = frozenset({"23514", "22003", "P0001"})

    def refuses_values(self, error: DBAPIError) -> bool:
        """Return whether the database refused the values of a row."""
        return not self.unstorable.isdisjoint(self._codes(error))
