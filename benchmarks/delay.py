"""A network of 1 ms, made on one machine.

::

    with delayed("127.0.0.1", 5432) as network:
        create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{network.port}/postgres")
        print(network.report())

A program of its own stands between client and server and holds every reply back for ``seconds``,
so each round trip takes that much longer. It is a delay and not a narrow pipe: while one reply
waits, the next ones are already read, and all leave when their own time has come.

The delay may not depend on what else the machine does. So the program is one small loop in C with
absolute deadlines (``delay.c``), which comes before others where it may; it is built for the run
where a C compiler is, and otherwise Python does the same (``delay_python.py``). Both measure by how
much each reply was late, which stands under every table, and count the round trips.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

__all__ = ["Network", "Report", "delayed"]

_SOURCE = Path(__file__).with_name("delay.c")
_COMPILERS = ("cc", "gcc", "clang")
#: Seconds that a program may take to say its port, or to end.
_LONGEST = 30


@dataclass(frozen=True)
class Report:
    """What a network did so far."""

    replies: int
    #: How often a client spoke after the server had: round trips, of all connections.
    trips: int
    #: Microseconds by which a reply left later than it should have.
    median: int
    p99: int
    real_time: bool
    program: str

    def __str__(self) -> str:
        priority = "real-time priority" if self.real_time else "usual priority"
        return (
            f"held back by a program in {self.program} ({priority}), "
            f"{self.median} µs too late (median), {self.p99} µs (p99), {self.replies:,} replies"
        )


@dataclass
class Network:
    """A running delay."""

    port: int
    program: str
    _process: subprocess.Popen[str]

    def report(self) -> Report:
        """Lateness and round trips since it began."""
        to, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        to.write("\n")
        to.flush()
        replies, trips, median, p99, real_time = map(int, answers.readline().split())
        return Report(replies, trips, median, p99, bool(real_time), self.program)


@contextmanager
def delayed(
    host: str, port: int, *, seconds: float = 0.001, compiled: bool = True
) -> Iterator[Network]:
    """A network behind which every reply of ``host:port`` comes ``seconds`` later.

    ``compiled=False`` takes Python, also where a compiler is.
    """
    program, command = _program() if compiled else _in_python()
    micros = str(round(seconds * 1e6))
    process = subprocess.Popen(
        [*command, host, str(port), micros],
        cwd=_SOURCE.parents[1],  # where Python finds this package
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Network(int(cast(IO[str], process.stdout).readline()), program, process)
        finally:
            cast(IO[str], process.stdin).close()  # which ends it
            try:
                process.wait(_LONGEST)
            except subprocess.TimeoutExpired:
                process.kill()


def _in_python() -> tuple[str, Sequence[str]]:
    return "Python", (sys.executable, "-m", "benchmarks.delay_python")


@functools.cache
def _program() -> tuple[str, Sequence[str]]:
    """The name of the language, and the command; built once for this process."""
    folder = _Folder()
    built = Path(folder.name) / "delay"
    for compiler in filter(None, map(shutil.which, (os.environ.get("CC", ""), *_COMPILERS))):
        command = [compiler, "-O2", "-o", str(built), str(_SOURCE)]
        if subprocess.run(command, capture_output=True).returncode == 0:
            _folders.append(folder)
            return "C", (str(built),)
    folder.cleanup()
    return _in_python()


_Folder = functools.partial(tempfile.TemporaryDirectory, prefix="optilock-delay-")
#: What was built is there as long as this process.
_folders: list[tempfile.TemporaryDirectory[str]] = []
