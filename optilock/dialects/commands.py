"""Shared parts of commands that use a database: the engine of ``--url``, and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from optilock.dialects.engines import engine_of, require_answer
from optilock.errors import ConfigurationError, OptilockError


@contextmanager
def open_engine(url: str) -> Iterator[Engine]:
    """Give a command the engine of its ``--url``, once the database has answered.

    Raises:
        ConfigurationError: there is no such database.
    """
    engine = engine_of(url)
    try:
        require_answer(engine)
        yield engine
    finally:
        engine.dispose()


@contextmanager
def exit_codes(command: str) -> Iterator[None]:
    """End the command with the sentence of an error: 2 bad input, 1 any other.

    Of a database error it is the first line, without the SQL.
    """
    try:
        yield
    except ConfigurationError as error:
        end(command, 2, str(error))
    except OptilockError as error:
        end(command, 1, f"{error}{_cause(error)}")
    except SQLAlchemyError as error:
        first_line = str(error).split("\n")[0]
        end(command, 1, f"The database failed: {first_line}")
    except KeyboardInterrupt:
        end(command, 1, "Interrupted. What was done stays done; run it again to go on from here.")


def end(command: str, code: int, why: str) -> NoReturn:
    """End the command with a sentence on standard error."""
    print(f"optilock {command}: {why}", file=sys.stderr)
    sys.exit(code)


def _cause(error: OptilockError) -> str:
    found = error.__cause__
    return f" ({str(found.orig).splitlines()[0]})" if isinstance(found, DBAPIError) else ""
