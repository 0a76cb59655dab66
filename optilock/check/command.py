"""``optilock check``. Exit codes: 0 no error found, 1 errors found, 2 bad input."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import rich_click as click
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import SQLAlchemyError

from optilock.check.finding import Finding, Severity
from optilock.check.run import check as run_check
from optilock.errors import ConfigurationError
from optilock.urls import engine_of

__all__ = ["check"]

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--url", required=True, help="The database, as SQLAlchemy writes it.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, nothing else.")
def check(models: tuple[str, ...], url: str, as_json: bool) -> None:
    """Look at MODELS and their database: would a lost update be noticed everywhere?

    MODELS are modules, or names in them: shop.models, shop.models:Base. Nothing is changed.
    """
    try:
        engine = engine_of(url)
        try:
            findings = run_check([_imported(name) for name in models], engine)
        finally:
            engine.dispose()
    except ConfigurationError as error:
        _bad_input(str(error))
    except SQLAlchemyError as error:
        first_line = str(error).split("\n")[0]
        _bad_input(f"The database failed: {first_line}")
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    sys.exit(int(any(finding.severity is Severity.ERROR for finding in findings)))


def _imported(name: str) -> Any:
    """A module, or something in it; looked for in the working directory as well."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigurationError(
            f"{module!r} cannot be imported ({type(error).__name__}: {error}): name a module as"
            " Python imports it, from the directory that has it."
        ) from error
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module!r} has nothing called {attribute!r}.")
        found = getattr(found, part)
    return found


def _show(findings: Sequence[Finding]) -> None:
    console = Console()
    if not findings:
        console.print("Nothing found: every class is versioned, and the database agrees.")
        return
    table = Table("", "what", "about", "found", "do", show_lines=True)
    for finding in findings:
        table.add_row(
            f"[{_STYLES[finding.severity]}]{finding.severity}[/]",
            finding.code,
            finding.subject,
            finding.message,
            finding.advice,
        )
    console.print(table)


def _bad_input(why: str) -> NoReturn:
    print(f"optilock check: {why}", file=sys.stderr)
    sys.exit(2)
