"""What differs between databases, as one class: each engine's file overrides what it does otherwise."""

from __future__ import annotations


class Database:
    """A database that optilock knows nothing special about."""

    #: SQLAlchemy dialect names this class answers for.
    names: tuple[str, ...] = ()
