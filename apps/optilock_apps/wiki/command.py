"""The command line of the wiki. Exit codes: 0 ended by its user, 2 could not begin."""

from __future__ import annotations

import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import SingletonThreadPool

from optilock.dialects.engines import engine_of, require_answer
from optilock.errors import ConfigurationError

if TYPE_CHECKING:
    from uvicorn import Server

#: Seconds that a writer of a SQLite file waits for the others.
_WAIT_FOR_LOCK = 30
#: Seconds that the end waits for answers; the events of an open editor would never end.
_WAIT_FOR_STREAMS = 3


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8000,
    show_default=True,
    help="Port; 0 for a free one.",
)
@click.option("--database", metavar="FILE", help="SQLite file, made if it is not there.")
@click.option("--url", help="Or another database, as SQLAlchemy writes it.")
@click.option(
    "--lease",
    type=click.FloatRange(1, 3600),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long a user counts as editing after their window is gone.",
)
@click.option(
    "--allowed-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A name that the wiki answers for, beside those of this machine; may be given again."
    " Needed where it listens on this machine alone and a proxy hands on another name.",
)
def wiki(
    host: str,
    port: int,
    database: str | None,
    url: str | None,
    lease: float,
    names: tuple[str, ...],
) -> None:
    """Run a wiki that never loses an edit.

    Without a database its pages are in a temporary file, which is gone when the wiki ends (Ctrl-C).
    Its one table is named optilock_wiki_pages. There is no login: every client that reaches the
    port can write.
    """
    # With the extra "wiki".
    import uvicorn

    from optilock_apps.wiki.app import is_loopback
    from optilock_apps.wiki.app import wiki as application
    from optilock_apps.wiki.pages import prepare

    with _errors_as_sentences(), _engine(database, url) as engine, _listening(host, port) as open_:
        prepare(engine)
        hosts = names if names or is_loopback(host) else None
        app = application(engine, lease_seconds=lease, hosts=hosts)
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=_WAIT_FOR_STREAMS
        )
        server = uvicorn.Server(config)
        print(f"The wiki is at {_address(open_)} (Ctrl-C ends it)", flush=True)
        _serve(server, open_)


def _serve(server: Server, listener: socket.socket) -> None:
    """Until Ctrl-C, or until the process is asked to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


@contextmanager
def _engine(database: str | None, url: str | None) -> Iterator[Engine]:
    if database is not None and url is not None:
        raise ConfigurationError("Give --database or --url, not both.")
    with ExitStack() as at_the_end:
        if url is not None:
            engine = _named(url)
        elif database is not None:
            engine = _file(Path(database))
        else:
            folder = tempfile.TemporaryDirectory(prefix="optilock-wiki-")
            engine = _file(Path(at_the_end.enter_context(folder), "wiki.db"))
        at_the_end.callback(engine.dispose)
        yield engine


def _named(url: str) -> Engine:
    engine = engine_of(url, hide_parameters=True)
    if isinstance(engine.pool, SingletonThreadPool):
        raise ConfigurationError(
            "Several threads cannot share a SQLite database in memory: name a --database, or leave"
            " both away."
        )
    require_answer(engine)
    return engine


def _file(path: Path) -> Engine:
    """Readers and the one writer of the file do not wait for each other."""
    url = URL.create("sqlite", database=str(path.absolute()))
    waits = {"timeout": _WAIT_FOR_LOCK}
    engine = create_engine(url, connect_args=waits, hide_parameters=True)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host}, port {port} ({error.strerror}): give another --port, or 0"
            " for a free one."
        ) from None
    with listener:
        yield listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


@contextmanager
def _errors_as_sentences() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        said = str(error)
    except SQLAlchemyError as error:
        said = f"The database failed: {str(error).splitlines()[0]}"
    else:
        return
    print(f"optilock wiki: {said}", file=sys.stderr)
    sys.exit(2)
