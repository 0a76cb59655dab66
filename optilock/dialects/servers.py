"""Servers that write the same rows, and their settings."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from optilock.dialects.catalogue import Weakness
from optilock.dialects.feature import Feature
from optilock.errors import ConfigurationError


class Servers(Feature):
    """The servers behind an engine, which may be several, and what weakens them."""

    def locks_are_local(self, connection: sa.Connection) -> bool:
        """Return whether a row that is locked here is free on other servers that write it.

        COMMIT then reports a conflict with them. This is checked once for an engine.
        """
        return False

    def is_out(self, connection: sa.Connection, error: BaseException) -> bool:
        """Return whether this server cannot do that, and another one may.

        A node that has lost its cluster; a standby that is asked to write.
        """
        return False

    def see_all(self, connection: sa.Connection) -> None:
        """Let the reads that follow show what was committed before them on any of the servers."""

    def weak_settings(self, connection: sa.Connection) -> Iterator[Weakness]:
        """Settings of the connection or the server under which less is noticed."""
        return iter(())

    def announce_no_bump(self, connection: sa.Connection, *, on: bool) -> None:
        """Tell the guard triggers, for this transaction alone, that versions are to stay."""
        raise ConfigurationError(
            f"no_bump() cannot write a class with __version_guard__ on {connection.dialect.name},"
            " which has no setting for one transaction: its guard trigger would move, or demand,"
            " the version all the same. Use __version_ignore__, or take __version_guard__ away."
            " Nothing was written."
        )
