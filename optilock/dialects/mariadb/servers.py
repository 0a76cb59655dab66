"""Servers of MariaDB, which may be nodes of a cluster."""

from __future__ import annotations

import sqlalchemy as sa

from optilock.dialects.mariadb import galera
from optilock.dialects.mariadb.causes import number_of
from optilock.dialects.mariadb.weak_settings import weak_settings
from optilock.dialects.servers import Servers


class MariaDBServers(Servers):
    locks_are_local = staticmethod(galera.is_node)
    weak_settings = staticmethod(weak_settings)

    def is_out(self, connection: sa.Connection, error: BaseException) -> bool:
        return number_of(error) == galera.NOT_PREPARED

    def see_all(self, connection: sa.Connection) -> None:
        if galera.is_node(connection):
            galera.see_what_others_have_committed(connection)
