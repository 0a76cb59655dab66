"""The command ``optilock check``. Exit codes: 0 no error found, 1 errors found, 2 bad input."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from optilock.check.findings import Finding, Severity
from optilock.check.revisions import settings_here
from optilock.check.routes import check_routes
from optilock.check.run import check as run_check
from optilock.dialects.commands import end
from optilock.dialects.engines import engine_of, require_answer
from optilock.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


@click.command()
@click.argument("models", nargs=-1)
@click.option("--url", help="The database, as SQLAlchemy writes it.")
@click.option("--engine", "made", help="Or the application's own engine: shop.db:engine.")
@click.option(
    "--alembic",
    help="Alembic's settings, or the folder of its revisions; alembic.ini where it is there.",
)
@click.option(
    "--app",
    "application",
    help="A web application, or a function that makes it: shop.web:app. Its routes are looked at.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, nothing else.")
def check(
    models: tuple[str, ...],
    url: str | None,
    made: str | None,
    alembic: str | None,
    application: str | None,
    as_json: bool,
) -> None:
    """Find places in MODELS and their database where a lost update would stay silent.

    MODELS are modules, or names in them: shop.models, shop.models:Base. Nothing is changed.

    --engine also checks the settings of the application's engine (AUTOCOMMIT, prepared statements);
    a --url is connected to as SQLAlchemy does by default.

    Revisions of Alembic are read, not run: those that import the models are reported.

    --app also checks the routes of a web application, with MODELS or without: it reports routes
    that write and compare no condition of the request.
    """
    if not models and application is None:
        end("check", 2, "Name MODELS (shop.models, shop.models:Base), or --app shop.web:app.")
    try:
        findings = [] if application is None else [*check_routes(_imported(application))]
        if models:
            findings += _of_models(models, url, made, alembic)
        findings.sort(key=lambda finding: list(Severity).index(finding.severity))
    except ConfigurationError as error:
        end("check", 2, str(error))
    except SQLAlchemyError as error:
        end("check", 2, f"The database failed: {_first_line(error)}")
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings, _NOTHING if models else _NO_ROUTE)
    sys.exit(int(any(finding.severity is Severity.ERROR for finding in findings)))


def _of_models(
    models: Sequence[str], url: str | None, made: str | None, alembic: str | None
) -> list[Finding]:
    named = [_imported(name) for name in models]
    engine = _engine(url, made)
    try:
        require_answer(engine)
        return run_check(named, engine, alembic=alembic or settings_here())
    finally:
        if isinstance(engine, Engine):
            engine.dispose()


def _engine(url: str | None, made: str | None) -> Engine | AsyncEngine:
    """Return the engine of the one option that is given."""
    if url is not None and made is None:
        return engine_of(url)
    if made is None or url is not None:
        raise ConfigurationError(
            "Say which database: --url postgresql+psycopg://me@host/shop or"
            " --engine shop.db:engine, and not both."
        )
    engine: Any = _imported(made)
    if not isinstance(getattr(engine, "sync_engine", engine), Engine):
        raise ConfigurationError(
            f"{made!r} is of type {type(engine).__name__}, not an Engine: name what create_engine()"
            " or create_async_engine() gave (shop.db:engine)."
        )
    return engine  # type: ignore[no-any-return]


def _imported(name: str) -> Any:
    """Import a module, or a name in it; the working directory is searched as well."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a script that ends itself when it is imported
        raise ConfigurationError(
            f"{module!r} cannot be imported ({type(error).__name__}: {error}): name a module as"
            " Python imports it, from the directory that has it."
        ) from error
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module!r} has nothing called {attribute!r}.")
        found = getattr(found, part)
    return found


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0]


def _show(findings: Sequence[Finding], nothing: str) -> None:
    console = Console()
    if not findings:
        console.print(nothing)
        return
    if console.width < _TABLE:
        for finding in findings:
            _show_lines(console, finding)
        return
    table = Table(show_lines=True)
    for title in ("", "what", "about", "found", "do"):
        table.add_column(title, overflow="fold")  # a name that is cut off is of no use
    for finding in findings:
        table.add_row(
            f"[{_STYLES[finding.severity]}]{finding.severity}[/]",
            *map(escape, (finding.code, finding.subject, finding.message, finding.advice)),
        )
    console.print(table)


#: Columns: in a narrower table the names of columns and findings would break.
_TABLE = 100


def _show_lines(console: Console, finding: Finding) -> None:
    """Print a finding in lines, which the terminal breaks at spaces alone."""
    console.print(
        f"[{_STYLES[finding.severity]}]{finding.severity}[/] {escape(finding.code)}:"
        f" {escape(finding.subject)}",
        soft_wrap=True,
    )
    for text in (finding.message, finding.advice):
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    console.print()


_NOTHING = "Nothing found: every class is versioned, and the database agrees."
_NO_ROUTE = "Nothing found: every route that writes compares a condition."
