"""All checks in their order. The original value is put back in any case."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from optilock.errors import ConfigurationError
from optilock.probe.clients import Clients
from optilock.probe.others import NewResource, check_post
from optilock.probe.reads import check_reads
from optilock.probe.resource import Resource
from optilock.probe.rules import Finding, Outcome, Stopped
from optilock.probe.writes import RACE, WRITES, check_writes

_BACK = "the original value is put back"
#: Seconds before each try to put it back.
_AGAIN = (0, 0.5, 1, 2, 4)


@dataclass(frozen=True)
class Task:
    """What to probe. Without ``write`` it is only read."""

    url: str
    headers: Mapping[str, str]
    write: bool = False
    field: str | None = None
    strict: bool = False
    race: bool = False
    new: str | None = None
    post: str | None = None
    post_body: str = "{}"

    @property
    def count(self) -> int:
        """About how many writes of the resource are sent."""
        return WRITES + (RACE if self.race else 0)


@dataclass
class Report:
    """The findings in their order, and how much was sent."""

    findings: list[Finding] = field(default_factory=list)
    requests: int = 0
    writes: int = 0

    def add(self, findings: Iterable[Finding]) -> None:
        for found in findings:  # one by one: the next one may not come
            self.findings.append(found)


def run_probe(task: Task, tell: Callable[[str], None]) -> Report:
    """Check one resource; ``tell`` receives a line before each write.

    Raises:
        ConfigurationError: there is nothing to change, or what should be new is there. Nothing was
            written.
    """
    report = Report()
    with Clients(task.headers, tell) as clients:
        try:
            page = Resource(task.url, clients)
            report.add(check_reads(page))
            new = _prepared(task, page, report)
        except Stopped as reason:
            report.add([_stopped(reason)])
        else:
            if task.write:
                tell(
                    f"About {task.count} writes change {page.place.name}, and then it is put back."
                )
                _write(task, page, new, report)
        report.requests, report.writes = clients.requests, clients.writes
    return report


def _prepared(task: Task, page: Resource, report: Report) -> NewResource | None:
    """Find what would make writes wrong use, before there is one."""
    if not task.write:
        report.add([_only_read(page, task)])
        return None
    page.choose(task.field)
    return None if task.new is None else NewResource(task.new, page)


def _write(task: Task, page: Resource, new: NewResource | None, report: Report) -> None:
    try:
        report.add(check_writes(page, strict=task.strict, race=task.race))
        if new is not None:
            report.add(new.check(strict=task.strict))
        if task.post is not None:
            report.add(check_post(task.post, task.post_body, page.clients, page.url))
    except (Exception, KeyboardInterrupt) as reason:  # any answer may come; the value goes back
        report.add([_stopped(reason)])
    finally:
        report.add([_restored(page)])


def _stopped(reason: BaseException) -> Finding:
    return Finding(Outcome.UNCLEAR, "the rest of the checks", _told(reason))


def _told(reason: BaseException) -> str:
    if isinstance(reason, KeyboardInterrupt):
        return "interrupted"
    known = isinstance(reason, Stopped)
    return str(reason) if known else f"an answer could not be read ({type(reason).__name__})."


def _only_read(page: Resource, task: Task) -> Finding:
    try:
        page.choose(task.field)
        needs = f"--write changes {page.place.name} about {task.count} times, and puts it back"
    except ConfigurationError as error:
        needs = f"--write needs a place to change. {error}"
    return Finding(Outcome.UNCLEAR, "writes", f"not tried: {needs}")


def _restored(page: Resource) -> Finding:
    """Put the original value back; tried again while the server does not answer as before."""
    reason: BaseException = Stopped("")
    for pause in _AGAIN:
        time.sleep(pause)
        try:
            return _put_back(page, page.value(page.first))
        except KeyboardInterrupt as error:
            reason = error
            break
        except Exception as error:
            reason = error
    return Finding(Outcome.UNCLEAR, _BACK, f"perhaps not. {_told(reason)} {_by_hand(page)}")


def _put_back(page: Resource, first: object) -> Finding:
    """Put the original value back, with the current ETag or else without one."""
    seen = page.current()
    if page.value(seen) != first:
        _, seen = page.change(seen, first)
    if page.value(seen) != first:
        page.usable = False
        _, seen = page.change(seen, first)
    if lost := _lost(page.first.text, seen.text):
        page.add(lost, seen)
        seen = page.current()
    if page.value(seen) != first:
        return Finding(
            Outcome.UNCLEAR, _BACK, f"no: the server stores other values. {_by_hand(page)}"
        )
    if lost := _lost(page.first.text, seen.text):
        return Finding(Outcome.UNCLEAR, _BACK, f"not all of it is there: write {lost!r:.2000}")
    others = _moved(page.first.text, seen.text)
    return Finding(Outcome.SAFE, _BACK, f"yes; others moved: {others}" if others else "yes")


def _lost(first: str, now: str) -> dict[str, object]:
    """Return the members that are not there any more."""
    try:
        was, is_ = json.loads(first), json.loads(now)
        return {name: was[name] for name in was if name not in is_}
    except (ValueError, TypeError):
        return {}


def _by_hand(page: Resource) -> str:
    return f"Write {page.place.name} yourself: {page.value(page.first)!r:.200}"


def _moved(first: str, now: str) -> str:
    """Return the names of the members whose values are others now."""
    try:
        was, is_ = json.loads(first), json.loads(now)
        return ", ".join(name for name in was if was[name] != is_.get(name))
    except (ValueError, AttributeError, TypeError):
        return ""
