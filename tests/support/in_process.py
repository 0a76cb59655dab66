"""Commands as a shell runs them, in this process: a new Python takes the better part of a second.

``optilock(*words)``        exit code, standard output and standard error of ``optilock``
``alembic(*words)``         exit code and all that was printed of ``alembic``
``modules_of(folder)``      a block that may import modules of a folder; afterwards they are gone

Each command is also run as a real process, once, by the file of tests that is about it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from alembic.config import CommandLine
from click.testing import CliRunner, Result

from optilock.cli import commands

__all__ = ["alembic", "modules_of", "optilock"]


def optilock(*words: str, folder: Path, columns: int = 120) -> Result:
    """Run in ``folder``, whose modules can be imported by their names."""
    runner = CliRunner(env={"COLUMNS": str(columns)}, catch_exceptions=False)
    with contextlib.chdir(folder), modules_of(folder):
        return runner.invoke(commands(), words, prog_name="optilock")


def alembic(*words: str) -> tuple[int, str]:
    printed, code = io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            CommandLine("alembic").main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code, printed.getvalue()


@contextlib.contextmanager
def modules_of(folder: Path) -> Iterator[None]:
    path, before = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        sys.path_importer_cache.pop(str(folder), None)
        for name in set(sys.modules) - before:
            module = sys.modules[name]
            if Path(getattr(module, "__file__", None) or os.devnull).parent == folder:
                del sys.modules[name]
                if hasattr(module, "Base"):
                    module.Base.registry.dispose()  # or what is wrong with it is wrong from now on
