"""Checks that write the resource, as two clients, and as six at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError

from optilock.probe import rules
from optilock.probe.clients import SIX, Client
from optilock.probe.resource import Resource, Seen, Written
from optilock.probe.rules import Finding, Outcome, Rule, Stopped

#: Races: a server that compares before it locks loses one of a few.
_ROUNDS = 5
#: How many writes are sent, about: by two clients one after the other, and by the race.
WRITES, RACE = 15, _ROUNDS * SIX
#: Later than every change of the resource.
_FUTURE = "Fri, 31 Dec 2100 23:59:59 GMT"


def check_writes(page: Resource, *, strict: bool, race: bool) -> Iterator[Finding]:
    """Yield what writes of two clients show.

    Raises:
        Stopped: no write is accepted, or its value does not show.
    """
    written, second = _first_write(page)
    tag, page.usable = page.first.tag, page.first.tag is not None and written.accepted
    if tag is not None:
        yield _with_current(page, written, second)
    if tag is not None and page.usable:
        yield from _moving(page, second)
        yield refused(page, "a stale ETag", {"If-Match": tag}, page.first)
        yield from _other_conditions(page, tag)
    yield (last := _unconditional(page, strict=strict))
    if page.usable or last.outcome is Outcome.SAFE:
        two = [page.clients.one, page.clients.two]
        yield _race(page, page.clients.six, _ROUNDS) if race else _race(page, two, 1)


def _first_write(page: Resource) -> tuple[Written, Seen]:
    """Write once, by PUT or else by PATCH, without the members that a 422 names."""
    written, after = page.change(page.first)
    while written.status in (400, 422) and page.place.without(written.text):
        written, after = page.change(page.first)
    if written.status in (405, 501):
        page.method = "PATCH"
        written, after = page.change(page.first)
    if written.accepted and page.value(after) != written.value:
        raise Stopped(
            f"{page.method} was answered {written.status}, and GET does not show the sent value of"
            f" {page.place.name}: name another member with --field."
        )
    if not written.accepted and (page.first.tag is None or written.status != 412):
        raise Stopped(
            f"{page.method} was answered {written.status}: name a member that may be changed with"
            " --field, and send what else the server needs with -H."
        )
    return written, after


def _with_current(page: Resource, written: Written, after: Seen) -> Finding:
    check, weak = f"{page.method} with the current ETag", page.first.weak
    if not written.accepted:
        said = "412 to the ETag of GET: no client can send its version"
        return Finding(Outcome.UNCLEAR if weak else Outcome.BREAKS, check, said, rules.IF_MATCH)
    if weak:
        said = f"{written.status} to a weak ETag"
        return Finding(Outcome.BREAKS, check, said, rules.STRONGLY)
    if written.tag not in (None, after.tag):
        said = f"{written.status}, with another ETag than that of GET"
        return Finding(Outcome.NOTE, check, said, rules.ETAG)
    return Finding(Outcome.SAFE, check, str(written.status), rules.IF_MATCH)


def _moving(page: Resource, second: Seen) -> Iterator[Finding]:
    """Change the resource at once, by values of one length, and then as the client before."""
    seen = [page.first, second]
    for _ in range(2):
        seen.append(page.change(seen[-1])[1])
    still = len({one.tag for one in seen}) < len(seen)
    yield Finding(
        Outcome.LOSES if still else Outcome.SAFE,
        "the ETag moves with each change",
        "it stays: a stale client looks like a current one" if still else "yes, also at once",
        rules.STRONG,
    )
    before, tag = seen[-2], seen[-2].tag or ""
    yield refused(page, "the ETag of a moment ago", {"If-Match": tag}, before)


def refused(
    page: Resource,
    condition: str,
    fields: Mapping[str, str],
    seen: Seen,
    rule: Rule = rules.IF_MATCH,
) -> Finding:
    """Let the second client write what must be refused, and read the resource again."""
    before = page.value(page.look())
    sent = page.write(page.clients.two, seen, fields)
    stored = page.value(page.look())
    outcome, found = Outcome.UNCLEAR, f"{sent.status}, and GET shows another value"
    if stored == sent.value:
        outcome, found = Outcome.LOSES, f"{sent.status}: it replaced an edit that it had not seen"
        if not sent.accepted:
            found = f"{sent.status}, and it was written"
    elif sent.accepted:
        outcome, found = Outcome.BREAKS, f"{sent.status}, and nothing was written"
    elif sent.status < 500 and stored == before:
        outcome, found = Outcome.SAFE, str(sent.status)
        if sent.status != 412:
            outcome, found = Outcome.NOTE, f"{sent.status}, not 412"
    return Finding(outcome, f"{page.method} with {condition}", found, rule)


def _other_conditions(page: Resource, tag: str) -> Iterator[Finding]:
    first = page.first
    yield _accepted(page, "a list that has the current ETag", '"no-such", {}')
    yield refused(page, "a list of other ETags", {"If-Match": '"no-such", "nor-this"'}, first)
    dated = {"If-Match": tag, "If-Unmodified-Since": _FUTURE}
    yield refused(page, "a stale ETag and a date that fits", dated, first, rules.ORDER)
    yield _accepted(page, "If-Match: *", "*")
    if not first.weak:
        yield _made_weak(page)
    absent = {"If-None-Match": "*"}
    yield refused(page, "If-None-Match: *", absent, first, rules.IF_NONE_MATCH)
    packed = page.look(Accept_Encoding="gzip").tag or ""
    if packed != page.current().tag:
        yield _accepted(page, "the ETag of a compressed answer", packed, rules.CODINGS)


def _accepted(page: Resource, condition: str, value: str, rule: Rule = rules.IF_MATCH) -> Finding:
    """Let a client write what should be accepted; ``{}`` stands for the current ETag."""
    seen = page.current()
    sent = page.write(page.clients.one, seen, {"If-Match": value.format(seen.tag)})
    found = f"{sent.status}" if sent.accepted else f"{sent.status}: refused, and nothing is lost"
    outcome = Outcome.SAFE if sent.accepted else Outcome.NOTE
    return Finding(outcome, f"{page.method} with {condition}", found, rule)


def _made_weak(page: Resource) -> Finding:
    seen = page.current()
    sent = page.write(page.clients.one, seen, {"If-Match": f"W/{seen.tag}"})
    outcome, found = Outcome.SAFE, str(sent.status)
    if sent.accepted:
        outcome, found = Outcome.BREAKS, f"{sent.status}: it compares weakly"
    elif sent.status != 412:
        outcome, found = Outcome.NOTE, f"{sent.status}, not 412"
    return Finding(outcome, f"{page.method} with the ETag made weak", found, rules.STRONGLY)


def _unconditional(page: Resource, *, strict: bool) -> Finding:
    """Let one client change what the other one has seen, which then sends no condition."""
    seen = page.current()
    _, before = page.change(seen)
    sent = page.write(page.clients.two, seen, {})
    stored = page.value(page.look())
    outcome, found = Outcome.UNCLEAR, f"{sent.status}, and GET shows another value"
    if stored == sent.value:
        outcome, found = Outcome.LOSES, f"{sent.status}: it replaced an edit that it had not seen"
        if page.usable and not strict:
            outcome, found = Outcome.NOTE, f"{sent.status}: a client that forgets it overwrites"
    elif 400 <= sent.status < 500 and stored == page.value(before):
        outcome, found = Outcome.SAFE, str(sent.status)
    return Finding(outcome, f"{page.method} without a condition", found, rules.REQUIRED)


def _race(page: Resource, racers: Sequence[Client], rounds: int) -> Finding:
    """Let clients with one ETag write at once, in each round; at most one may win."""
    most, count = 0, len(racers)
    for _ in range(rounds):
        seen, barrier = page.current(), Barrier(count)
        fields = {} if seen.tag is None else {"If-Match": seen.tag}

        def go(
            client: Client,
            seen: Seen = seen,
            barrier: Barrier = barrier,
            fields: Mapping[str, str] = fields,
        ) -> bool:
            try:
                page.look(client)  # opens the connection
                barrier.wait(60)
            except (Stopped, BrokenBarrierError):
                barrier.abort()
                raise
            return page.write(client, seen, fields).accepted

        with ThreadPoolExecutor(count) as pool:
            most = max(most, sum(pool.map(go, racers)))
    outcome = Outcome.LOSES if most > 1 else Outcome.SAFE if most else Outcome.UNCLEAR
    found = f"{most} of {count} were told that they wrote it"
    return Finding(outcome, f"{count} {page.method} at once with one ETag", found, rules.WHEN)
