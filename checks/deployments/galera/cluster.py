"""A cluster of MariaDB Galera on this machine: private, started, used, stopped.

::

    with running() as cluster:
        one, two, three = (create_engine(node.url) for node in cluster.nodes)
        cluster.nodes[2].kill()
        cluster.nodes[2].start()

Each node is a ``mariadbd`` as :func:`optilock_apps.servers.mariadb` starts it: on free ports of
the loopback interface, in a folder of its own, as an unprivileged user when we are root, and ended
through its own process. A program keeps an eye on each of them, in case that we are killed.

The first node begins the cluster; the others, and one that comes back, get its data by rsync, or
the changes that they have missed.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import pymysql
from optilock_apps.servers import _INSTALL, Account, _program, account_for

from optilock.errors import OptilockError
from tests.support.waiting import until

__all__ = ["Cluster", "Node", "running"]

_LIBRARY = "/usr/lib/galera/libgalera_smm.so"
#: A node that is killed is out after so long, and the others go on.
_GROUP = (
    "evs.suspect_timeout=PT2S;evs.inactive_timeout=PT5S;evs.install_timeout=PT5S"
    ";evs.keepalive_period=PT0.5S;evs.inactive_check_period=PT0.5S"
)


@dataclass
class Node:
    """One server of the cluster."""

    name: str
    user: Account
    #: The ports of SQL, of the group, of missed changes, and of a copy of the data.
    ports: tuple[int, int, int, int]
    #: The addresses of the group.
    group: Sequence[str]
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @cached_property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/test"

    def start(self, *options: str) -> None:
        """Start the server, and wait until it takes part."""
        command = [_program("mariadbd"), "--no-defaults", *self._options(), *options]
        for again in (True, False):
            self._process = self.user.start(*command)
            try:
                return self.wait()
            except OptilockError:
                # Galera may ask for a thread that has not begun ("thread schedparams").
                if not again or self._process.poll() is None:
                    raise

    def wait(self, seconds: float = 90.0) -> None:
        """Wait until it takes part."""
        until = time.monotonic() + seconds
        while self.state() != "Synced":
            if self._process is None or self._process.poll() is not None:
                raise OptilockError(f"{self.name} ended:\n{self._last()}")
            if time.monotonic() > until:
                raise OptilockError(f"{self.name} is {self.state()}:\n{self._last()}")
            time.sleep(0.1)

    def _last(self) -> str:
        return self.user.last_lines("programs.log", "server.log", count=20)

    def state(self) -> str | None:
        """What it says of itself; None: nothing."""
        try:
            return self.ask("SHOW STATUS LIKE 'wsrep_local_state_comment'")[0][1]
        except pymysql.err.MySQLError:
            return None

    def ask(self, *statements: str) -> list[tuple[str, ...]]:
        """The answer to the last of these, on a connection of its own."""
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", connect_timeout=5, autocommit=True
        )
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def leave(self) -> None:
        """Cut it off from the others, which go on; it refuses every statement with 1047."""
        self.ask("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")
        until(lambda: self.state() != "Synced")

    def come_back(self) -> None:
        self.ask("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")
        self.wait()

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def install(self) -> None:
        """Make the data of the first node."""
        folder = self.user.folder
        places = (f"--datadir={folder}/data", f"--tmpdir={folder}")
        self.user.run(_program("mariadb-install-db"), "--no-defaults", *places, *_INSTALL)

    def _options(self) -> list[str]:
        folder, (sql, group, missed, copy) = self.user.folder, self.ports
        return [
            f"--datadir={folder}/data",
            f"--tmpdir={folder}",
            f"--port={sql}",
            "--bind-address=127.0.0.1",
            f"--socket={folder}/socket",
            f"--pid-file={folder}/pid",
            f"--log-error={folder}/server.log",
            "--skip-name-resolve",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
            "--innodb-lock-wait-timeout=5",
            "--wsrep-on=ON",
            f"--wsrep-provider={_LIBRARY}",
            "--wsrep-cluster-name=optilock_test",
            f"--wsrep-cluster-address=gcomm://{','.join(self.group)}",
            f"--wsrep-node-name={self.name}",
            f"--wsrep-node-address=127.0.0.1:{group}",
            f"--wsrep-node-incoming-address=127.0.0.1:{sql}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{copy}",
            # An autocommit that conflicts is to be told, and not to be tried again unseen.
            "--wsrep-retry-autocommit=0",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{group};"
            f"ist.recv_addr=127.0.0.1:{missed};gcache.size=16M;{_GROUP}",
        ]


@dataclass(frozen=True)
class Cluster:
    nodes: Sequence[Node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def agree(self, question: str) -> list[tuple[str, ...]]:
        """The answer of every node, which is one: each first applies what the others have sent.

        Raises:
            AssertionError: they do not answer the same.
        """
        causal = "SET SESSION wsrep_sync_wait = 15"
        answers = {node.name: node.ask(causal, "USE test", question) for node in self.nodes}
        assert len({repr(answer) for answer in answers.values()}) == 1, answers
        return answers[self.nodes[0].name]


@contextmanager
def running(size: int = 3) -> Iterator[Cluster]:
    """A cluster with an empty database ``test`` and the user ``root`` without a password.

    Raises ``ServerMissing`` when no ``mariadbd`` is installed, and ``OptilockError`` with the last
    words of a node that does not start.
    """
    with ExitStack() as stack:
        ports = _free_ports(4 * size)
        group = [f"127.0.0.1:{ports[4 * number + 1]}" for number in range(size)]
        nodes = []
        for number in range(size):
            user = stack.enter_context(account_for("galera", "mysql", "nobody"))
            sql, talk, missed, copy = ports[4 * number : 4 * number + 4]
            nodes.append(Node(f"n{number + 1}", user, (sql, talk, missed, copy), group))
        nodes[0].install()
        for node in nodes:
            node.user.run("mkdir", "-p", node.user.folder / "data")
            stack.callback(node.stop)
            node.start(*(["--wsrep-new-cluster"] if node is nodes[0] else []))
        nodes[0].ask("CREATE DATABASE IF NOT EXISTS test CHARACTER SET utf8mb4")
        yield Cluster(nodes)


def _free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now, each another one."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in held]
