"""The command ``optilock probe``.

Exit codes: 0 safe, 1 loses updates or breaks a rule, 2 unclear, 3 wrong use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from optilock.dialects.commands import end
from optilock.errors import ConfigurationError
from optilock.probe.addresses import require_named, shown_address
from optilock.probe.rules import Finding, Outcome, verdict_of

if TYPE_CHECKING:
    from optilock.probe.probing import Report

_STYLES = {
    Outcome.SAFE: "green",
    Outcome.NOTE: "dim",
    Outcome.UNCLEAR: "yellow",
    Outcome.BREAKS: "red",
    Outcome.LOSES: "bold red",
}
_CODES = {Outcome.SAFE: 0, Outcome.UNCLEAR: 2}
_WRONG_USE = 3
#: The fields that the checks set themselves.
_OWN = (
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "idempotency-key",
    "accept-encoding",
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
)


class _Probe(click.RichCommand):
    """Wrong options are wrong use: click's own exit code, 2, means unclear here."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            error.show()
            sys.exit(_WRONG_USE)


@click.command(cls=_Probe)
@click.argument("url")
@click.option("--write", is_flag=True, help="Write it too, and put the original value back.")
@click.option("--field", help="The member to change: a.b. In a text, the line that it begins.")
@click.option("-H", "--header", "headers", multiple=True, help='A field to send: "Name: value".')
@click.option("--new", help="An address without a resource: create and delete one there.")
@click.option("--post", help="An address to which one POST is sent twice, with one key.")
@click.option("--post-body", metavar="JSON", default="{}", help="The body of this POST.")
@click.option("--strict", is_flag=True, help="A write without a condition loses updates, too.")
@click.option("--race", is_flag=True, help="Let six clients write at once, five times.")
@click.option("--host", help="The host again, if it is not this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, nothing else.")
def probe(
    url: str, headers: Sequence[str], host: str | None, as_json: bool, **options: Any
) -> None:
    """Find out whether the resource at URL loses updates, as clients see it.

    Without --write it sends five reads. With it, two clients write: the second one sends what it
    saw before the first one's change. Each write is printed on standard error before it is sent.
    """
    # With the extra "probe".
    from optilock.probe.probing import Task, run_probe

    try:
        _require_write(options)
        for address in filter(None, (url, options["new"], options["post"])):
            require_named(address, host)
        task = Task(url, dict(map(_field, headers)), **options)
        report = run_probe(task, lambda line: print(line, file=sys.stderr))
    except ConfigurationError as error:
        end("probe", _WRONG_USE, str(error))
    except KeyboardInterrupt:
        end("probe", 2, "Interrupted. Nothing was written.")
    verdict = verdict_of(report.findings)
    print(_as_json(url, verdict, report)) if as_json else _show(url, verdict, report)
    sys.exit(_CODES.get(verdict, 1))


def _require_write(options: dict[str, Any]) -> None:
    needing = [f"--{name}" for name in ("new", "post", "strict", "race") if options[name]]
    if needing and not options["write"]:
        raise ConfigurationError(f"{needing[0]} needs --write. Nothing was sent.")
    try:
        json.loads(options["post_body"])
    except ValueError:
        raise ConfigurationError("--post-body is no JSON. Nothing was sent.") from None


def _field(text: str) -> tuple[str, str]:
    """Return name and value; a message shows neither, because they may be a credential."""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not (name and colon and f"{name}{value}".isascii() and f"{name}{value}".isprintable()):
        raise ConfigurationError('-H needs "Name: value", in ASCII. Nothing was sent.')
    if name.lower() in _OWN:
        raise ConfigurationError(f"-H cannot set {name}: the checks set it. Nothing was sent.")
    return name, value


def _as_json(url: str, verdict: Outcome, report: Report) -> str:
    findings = [
        {
            "outcome": one.outcome,
            "check": one.check,
            "found": one.found,
            "section": one.rule and one.rule.section,
            "rule": one.rule and one.rule.sentence,
        }
        for one in report.findings
    ]
    head = {"url": shown_address(url), "verdict": verdict}
    counts = {"requests": report.requests, "writes": report.writes}
    return json.dumps({**head, **counts, "findings": findings}, indent=2)


def _show(url: str, verdict: Outcome, report: Report) -> None:
    console = Console()
    table = Table()
    for title in ("", "check", "found", "rule"):
        table.add_column(title, overflow="fold")
    for one in report.findings:
        outcome = f"[{_STYLES[one.outcome]}]{one.outcome}[/]"
        table.add_row(outcome, *map(escape, (one.check, one.found, _rule(one))))
    console.print(table)
    counted = f"({report.requests} requests, {report.writes} of them writes)"
    console.print(
        f"{escape(shown_address(url))}: [{_STYLES[verdict]}]{verdict}[/] {counted}", soft_wrap=True
    )


def _rule(finding: Finding) -> str:
    """Return the section, with its sentence where it is not kept."""
    if finding.rule is None or finding.outcome is Outcome.SAFE:
        return finding.rule.section if finding.rule else ""
    return f"{finding.rule.section}: {finding.rule.sentence}"
