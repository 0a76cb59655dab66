"""``optilock probe`` on servers that are right, and on servers that are wrong in one way each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from optilock.probe import clients
from tests.probe import servers
from tests.probe.servers import Right, Server, serving
from tests.support import in_process

STALE = "PUT with a stale ETag"
DELETE, POST = "DELETE with a stale ETag", "POST twice with one Idempotency-Key"
UNCONDITIONAL = "PUT without a condition"
RACE, TWO = "6 PUT at once with one ETag", "2 PUT at once with one ETag"


def probe(*words: str) -> Result:
    return in_process.optilock("probe", *words, folder=Path.cwd())


def whole(server: Server, *words: str) -> tuple[Result, dict[str, Any]]:
    """Every check; the report."""
    new, post = f"{server.address}/items/9", f"{server.address}/items"
    body = ("--post", post, "--post-body", '{"title": "x"}')
    ended = probe(server.url, "--write", "--new", new, *body, "--json", *words)
    return ended, json.loads(ended.stdout)


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["outcome"] for one in report["findings"]}


def test_a_server_that_compares_is_safe_and_has_its_value_back() -> None:
    with serving(Right) as server:
        ended, report = whole(server)
        assert (ended.exit_code, report["verdict"]) == (0, "safe")
        assert set(outcomes(report).values()) == {"safe"}
        assert json.loads(server.items["/items/1"].body) == servers.FIRST
        assert set(server.items) == {"/items/1"}  # what was made is deleted
    told = [line for line in ended.stderr.splitlines() if "http://" in line]
    assert len(told) == report["writes"] <= 27
    assert report["requests"] <= 150


@pytest.mark.parametrize(
    ("kind", "check", "outcome", "section"),
    [
        (servers.NoETag, UNCONDITIONAL, "loses updates", "RFC 6585 3"),
        (servers.WeakETag, UNCONDITIONAL, "loses updates", "RFC 6585 3"),
        (servers.WeaklyCompared, "PUT with the current ETag", "breaks a rule", "RFC 9110 13.1.1"),
        (servers.StillETag, "the ETag moves with each change", "loses updates", "RFC 9110 8.8.1"),
        (servers.StaleAccepted, STALE, "loses updates", "RFC 9110 13.1.1"),
        (servers.WritesAndRefuses, STALE, "loses updates", "RFC 9110 13.1.1"),
        (servers.BlindDelete, DELETE, "loses updates", "RFC 9110 13.1.1"),
        (servers.PostTwice, POST, "breaks a rule", "idempotency-key draft 2.6"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_server_that_is_wrong_in_one_way_is_found(
    kind: type[Right], check: str, outcome: str, section: str
) -> None:
    with serving(kind) as server:
        ended, report = whole(server)
        assert server.title == servers.FIRST["title"]
    assert (ended.exit_code, report["verdict"]) == (1, outcome)
    [found] = [one for one in report["findings"] if one["check"] == check]
    assert (found["outcome"], found["section"]) == (outcome, section)
    others = {name for name, said in outcomes(report).items() if said == outcome} - {check}
    if kind in (servers.BlindDelete, servers.PostTwice):
        assert others == set()


def test_a_write_without_a_condition_is_a_note_and_with_strict_a_loss() -> None:
    with serving(servers.Lenient) as server:
        ended, report = whole(server)
        assert (ended.exit_code, outcomes(report)[UNCONDITIONAL]) == (0, "note")
        assert outcomes(report)["HEAD has the same ETag"] == "note"
        ended, report = whole(server, "--strict")
        assert (ended.exit_code, outcomes(report)[UNCONDITIONAL]) == (1, "loses updates")


def test_a_race_finds_a_server_that_compares_before_it_locks() -> None:
    with serving(servers.ComparesFirst) as server:
        ended, report = whole(server)
        assert (ended.exit_code, outcomes(report)[TWO]) == (0, "safe")
        ended, report = whole(server, "--race")
    assert (ended.exit_code, outcomes(report)[RACE]) == (1, "loses updates")
    with serving(Right) as server:
        ended, report = whole(server, "--race")
    assert (ended.exit_code, outcomes(report)[RACE]) == (0, "safe")


def test_without_write_nothing_is_written_and_the_needs_are_told() -> None:
    with serving(Right) as server:
        ended = probe(server.url)
        assert set(server.methods) == {"GET", "HEAD"}
        assert len(server.methods) == 5
        assert ended.exit_code == 2
        assert "--write changes title about 15 times" in " ".join(ended.stdout.split())
        for option in (["--strict"], ["--race"], ["--new", server.url], ["--post", server.url]):
            assert probe(server.url, *option).exit_code == 3
        taken = probe(server.url, "--write", "--new", server.url)
        assert (taken.exit_code, "GET was answered 200" in taken.stderr) == (3, True)
        assert set(server.methods) == {"GET", "HEAD"}


def test_a_server_that_limits_the_rate_is_probed_to_the_end() -> None:
    with serving(servers.Limited) as server:
        ended, report = whole(server)
        assert (ended.exit_code, server.title) == (0, servers.FIRST["title"])
    assert set(outcomes(report).values()) == {"safe"}


def test_a_value_that_the_server_changes_is_not_put_back_and_told() -> None:
    with serving(servers.Rewrites) as server:
        ended, report = whole(server)
        assert server.title == "FIRST TITLE"
    assert ended.exit_code == 2
    last = report["findings"][-1]
    assert "Write title yourself: 'first title'" in last["found"]


def test_what_cannot_be_deleted_is_told_and_no_loss() -> None:
    with serving(servers.NoDelete) as server:
        ended, report = whole(server)
        assert "/items/9" in server.items
    assert (ended.exit_code, report["verdict"]) == (2, "unclear")
    assert outcomes(report)["PUT with the ETag of what is deleted"] == "unclear"


def test_members_that_a_422_names_are_left_out() -> None:
    with serving(servers.Named) as server:
        ended = probe(server.url, "--write", "--json")
        report = json.loads(ended.stdout)
        assert (ended.exit_code, server.title) == (0, servers.FIRST["title"])
    assert report["findings"][-1]["found"] == "yes"


def test_only_what_a_post_has_created_is_deleted() -> None:
    with serving(servers.Redirects) as server:
        whole(server)
        assert "/items/1" in server.items


def test_a_member_that_had_to_be_left_out_is_put_back() -> None:
    with serving(servers.Fixed) as server:
        ended, report = whole(server)
        body = json.loads(server.items["/items/1"].body)
        assert (ended.exit_code, body) == (0, {**servers.FIRST, "views": 7})
    assert report["findings"][-1]["outcome"] == "safe"


def test_the_value_is_put_back_when_the_server_answers_again() -> None:
    with serving(servers.AwayForAWhile) as server:
        ended = probe(server.url, "--write", "--json")
        assert (ended.exit_code, server.title) == (2, servers.FIRST["title"])
    last = json.loads(ended.stdout)["findings"][-2:]
    assert [one["outcome"] for one in last] == ["unclear", "safe"]


def test_a_field_that_makes_another_method_of_a_read_is_refused() -> None:
    with serving(Right) as server:
        assert probe(server.url, "-H", "X-HTTP-Method-Override: DELETE").exit_code == 3
        assert server.methods == []


@pytest.mark.parametrize("at", [3, 12])
def test_an_interrupted_probe_puts_the_value_back(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    note = clients.Clients.note

    def interrupted(self: clients.Clients, *request: Any) -> None:
        note(self, *request)
        if self.writes == at and not server.methods.count("stopped"):
            server.methods.append("stopped")
            raise KeyboardInterrupt

    monkeypatch.setattr(clients.Clients, "note", interrupted)
    with serving(Right) as server:
        ended = probe(server.url, "--write", "--json")
        assert (ended.exit_code, server.title) == (2, servers.FIRST["title"])
    assert [one["found"] for one in json.loads(ended.stdout)["findings"]][-2:] == [
        "interrupted",
        "yes",
    ]


@pytest.mark.parametrize("written", ["http://shop.example/items/1", "https://10.0.0.1/x"])
def test_another_machine_is_refused_unless_it_is_named_again(written: str) -> None:
    host = written.split("/")[2]
    for words in ([written], ["http://127.0.0.1:9/x", "--write", "--post", written]):
        ended = probe(*words)
        assert (ended.exit_code, f"add --host {host}" in ended.stderr) == (3, True)
    for wrong in ("ftp://127.0.0.1/x", "127.0.0.1:80/x", "http://[::1/x", "http://127.0.0.1:x/"):
        assert probe(wrong).exit_code == 3
    assert probe("http://127.0.0.1:9/x", "--unknown").exit_code == 3


def test_no_credential_is_printed() -> None:
    with serving(Right) as server:
        url = server.url.replace("//", "//ada:secret1@") + "?key=secret2"
        server.items["/items/1?key=secret2"] = server.items["/items/1"]
        for words in (["--write", "-H", "Authorization: Bearer secret3"], ["--json"]):
            ended = probe(url, *words)
            assert (ended.exit_code, "secret" in ended.output) == (
                2 if "--json" in words else 0,
                False,
            )
    for wrong in ("secret4", "X-Key: secret5\x7f", "If-Match: secret6"):
        ended = probe(server.url, "-H", wrong)
        assert (ended.exit_code, "secret" in ended.output) == (3, False)
    ended = probe(url, "-H", "X-Key: secret7")  # nobody listens any more
    assert (ended.exit_code, "secret" in ended.output) == (2, False)
