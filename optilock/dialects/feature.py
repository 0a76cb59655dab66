"""The base of the classes that answer for a database, one for each feature.

A file of this folder has the class of its feature, with the answers for a database that optilock
does not know. The file of the same name in an engine's folder overrides what this engine answers
differently, and the engine's ``database`` names the class.
"""

from __future__ import annotations

from optilock.dialects.causes import ErrorCodes


class Feature:
    """What one database answers about one feature; it may read the database's error codes."""

    def __init__(self, database: ErrorCodes) -> None:
        self.database = database
