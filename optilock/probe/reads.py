"""Checks that only read: four requests besides the first one."""

from __future__ import annotations

from collections.abc import Iterator

from optilock.probe import rules
from optilock.probe.resource import Resource, Seen
from optilock.probe.rules import Finding, Outcome


def check_reads(page: Resource) -> Iterator[Finding]:
    """Yield what reads show about the ETag."""
    tag = page.first.tag
    yield _given(page.first)
    if tag is None:
        return
    again = page.look(page.clients.one).tag
    yield Finding(
        Outcome.SAFE if again == tag else Outcome.UNCLEAR,
        "the ETag stays without a change",
        "yes" if again == tag else f"{again}: it moves, or another client writes now",
        rules.ETAG,
    )
    head = page.clients.one.send("HEAD", page.url)
    same = head.headers.get("ETag") == tag
    yield Finding(
        Outcome.SAFE if same else Outcome.NOTE,
        "HEAD has the same ETag",
        "yes" if same else f"{head.status_code}, ETag {head.headers.get('ETag', 'missing')}",
        rules.HEAD,
    )
    status = page.look(If_None_Match=tag).status
    yield Finding(
        Outcome.SAFE if status == 304 else Outcome.NOTE,
        "GET with If-None-Match",
        str(status) if status == 304 else f"{status}: the body is sent again",
        rules.NOT_MODIFIED,
    )
    yield _compressed(page, tag)


def _given(first: Seen) -> Finding:
    outcome, found = Outcome.SAFE, f"{first.tag}"
    if first.tag is None:
        outcome, found = Outcome.UNCLEAR, "none: no client can send back which version it saw"
    elif first.weak:
        outcome, found = Outcome.NOTE, f"{first.tag}: weak, so If-Match never matches it"
    elif not first.tag.startswith('"'):
        outcome, found = Outcome.BREAKS, f"{first.tag}: not in quotes"
    return Finding(outcome, "GET has an ETag", found, rules.ETAG)


def _compressed(page: Resource, tag: str) -> Finding:
    packed = page.look(Accept_Encoding="gzip")
    outcome, found = Outcome.SAFE, packed.tag if packed.coding else "not compressed"
    if packed.coding and packed.tag == tag and not packed.weak:
        outcome, found = Outcome.NOTE, f"{tag} also without compression"
    elif packed.coding and packed.weak:
        outcome, found = Outcome.NOTE, f"{packed.tag}: weak, so If-Match never matches it"
    return Finding(outcome, "the ETag of a compressed answer", f"{found}", rules.CODINGS)
