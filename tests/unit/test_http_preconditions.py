"""Conditional requests: what RFC 9110 says in tables, and that no write passes by mistake."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.second_reader import MODIFIED, PIECES, Request, no_write_passes
from optilock import ConfigurationError
from optilock.conditions import request
from optilock.conditions.request import date
from optilock.preconditions import rfc9110
from optilock.preconditions.rfc9110 import Precondition, evaluate, required

VECTORS = Path(__file__).parents[1] / "vectors"


def vectors(name: str) -> list[Any]:
    """Those whose steps are one request; ``information_only`` tells what is not wanted."""
    found = json.loads((VECTORS / f"{name}.json").read_text())["vectors"]
    single = [one for one in found if len(one["steps"]) == 1 and isinstance(one["given"], dict)]
    return [pytest.param(one, id=one["id"]) for one in single if "information_only" not in one]


def wanted(vector: Any) -> set[int]:
    told = vector.get("recommended") or vector["steps"][0]["expect"]
    return {told["status"], *vector.get("also_acceptable", ())}


def answered(plain: int, status: int | None) -> int:
    """What a server answers: an error that there is anyway comes first (section 13.2.1)."""
    return plain if status is None or not 200 <= plain < 300 else status


# -- the tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", vectors("http_preconditions"))
def test_every_request_of_the_rfc_is_answered_as_the_table_says(vector: Any) -> None:
    state, request = vector["given"], vector["steps"][0]["args"]
    answer = evaluate(
        request["method"],
        list(request["headers"].items()),
        etag=state["etag"],
        exists=state["exists"],
        last_modified=state["last_modified"],
        require=(state["policy"] or {}).get("require"),
    )
    assert answered(state["status_without_conditions"], answer.status) in wanted(vector)


#: Where a table keeps what an emulator did, and not what its own notes ask for.
ELSEWHERE = {
    # A twin of it on a stored blob is to be refused: an empty If-Match never writes.
    "blob.put_blob.missing.if_match_empty": 400,
    # A snapshot goes by the rules of reads, and reads say 304; the table has 304 and 412.
    "blob.snapshot.existing.if_none_match_star": 304,
    "blob.snapshot.existing.if_none_match_weak_current": 304,
    # Dates that a container ignores are for whoever has containers to leave out.
    "container.set_container_metadata.ius_past": 412,
    "container.get_container_properties.ims_future": 304,
}
BLOB_READS = ("get_blob", "head_blob", "snapshot", "get_container_properties")
BLOBS = [one for one in vectors("blob_conditions") if "race" not in one.id]


@pytest.mark.parametrize("vector", BLOBS)
def test_requests_to_azure_blobs_are_answered_as_its_profile_says(vector: Any) -> None:
    (step,), state = vector["steps"], vector["given"]
    sent = [(name.replace("_", "-"), blob_value(v, state)) for name, v in step["args"].items()]
    reads, exists = step["op"] in BLOB_READS, state["exists"]
    asked = required("GET" if reads else "PUT", sent, require=None, profile="azure")
    answer = asked.judge(etag='"0x2"', exists=exists, last_modified=MODIFIED)
    plain = 404 if not exists and step["op"] not in ("put_blob", "put_block_list") else 200
    plain = 409 if step["op"] == "create_container" else plain
    if asked.status == 400 and not reads and plain == 404 and sent[0][1]:
        plain = 200  # a combination that is not taken comes before what is not there
    want = ELSEWHERE.get(vector["id"]) or next(iter(wanted(vector)))
    assert answered(plain, answer.status) == (200 if want < 300 else want)


def blob_value(text: str, state: Any) -> str:
    if text.startswith("$LM"):
        moment = date(MODIFIED)
        assert moment is not None
        return format_datetime(moment + timedelta(seconds=int(text[3:] or 0)), usegmt=True)
    old = '"0x2"' if state["resource"] == "container" else '"0x1"'
    return text.replace("$E2.bare", "0x2").replace("$E1", old).replace("$E2", '"0x2"')


#: Of a class whose deletions need If-Match; that there is none is told as 428 elsewhere.
NEEDS_IF_MATCH = (
    "table.delete.present.if_none_match_star",
    "table.delete.missing.if_none_match_star",
)
ENTITIES = [
    one
    for one in vectors("table")
    if one.id.startswith(("table.update", "table.merge", "table.delete", "table.get"))
]


@pytest.mark.parametrize("vector", ENTITIES)
def test_conditions_on_azure_entities_are_answered_as_the_table_says(vector: Any) -> None:
    """A write takes no list, as in Azure's profile, and a tag has its quotes, as in the RFC."""
    (step,), state = vector["steps"], vector["given"]
    names = {"$E1": '"1"', "$E2": '"2"', "$S2": '"2"', "$O": '"9"'}
    sent = [(name, value) for name, value in step["args"].items() if name.startswith("If-")]
    for short, tag in names.items():
        sent = [(name, value.replace(short, tag)) for name, value in sent]
    method = {"get": "GET", "delete": "DELETE"}.get(step["op"], "PUT")
    profile: Any = "azure" if any("," in value for _, value in sent) else "rfc9110"
    require: Any = "if_match" if method == "DELETE" else None
    asked = required(method, sent, require=require, profile=profile)
    exists = state["entity"] is not None
    answer = asked.judge(etag='"2"' if exists else None, exists=exists)
    missing = not exists and (method != "PUT" or (bool(sent) and sent[0][0] == "If-Match"))
    # 400 and 428 need no look, so they come before 404; of a read, 404 is told.
    plain = 404 if missing and (asked.status is None or method == "GET") else 200
    want = {412 if status == 409 else status for status in wanted(vector)}
    want = {200 if status < 300 else status for status in want}
    if vector["id"] in NEEDS_IF_MATCH:
        want = {412, 404}
    assert answered(plain, answer.status) in want


# -- what the tables leave out ---------------------------------------------------------------------


def status(method: str, *sent: tuple[str, str], etag: str | None = '"a"', **how: Any) -> int | None:
    return evaluate(method, sent, etag=etag, **how).status


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST", "put", "get", "UNHEARD-OF"])
def test_what_may_write_needs_a_condition(method: str) -> None:
    assert status(method) == 428
    assert status(method, require=None) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"])
def test_what_writes_nothing_needs_none(method: str) -> None:
    assert status(method) is None


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT"])
def test_methods_without_a_representation_have_no_conditions(method: str) -> None:
    assert status(method, ("If-Match", '"b"')) is None
    assert required(method, [("If-Match", "junk")]).unconditional


@pytest.mark.parametrize(
    "sent",
    [
        ("If-Unmodified-Since", MODIFIED),
        ("If-Modified-Since", MODIFIED),
        ("If-None-Match", '"b"'),
    ],
)
def test_what_does_not_protect_a_write_is_not_enough(sent: tuple[str, str]) -> None:
    assert status("PUT", sent) == 428
    assert status("PUT", sent, require=None) is None


def test_a_star_can_be_forbidden_as_a_condition_of_writes() -> None:
    star = ("If-Match", "*")
    assert status("PUT", star) is None
    assert status("PUT", star, allow_star=False) == 428
    assert status("PUT", star, allow_star=False, require=None) == 428
    assert status("GET", star, allow_star=False) is None


def test_lines_of_a_field_are_one_list() -> None:
    lines = [("if-match", '"b"'), ("IF-MATCH", '"a"')]
    assert evaluate("PUT", lines, etag='"a"').status is None
    assert evaluate("PUT", [*lines, ("If-Match", "*")], etag='"a"').status == 400
    assert evaluate("PUT", [("If-Match", "*"), ("If-Match", "*")], etag='"a"').status == 400


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ("v5", "character 1 is 'v'"),
        ("'v5'", 'character 1 is "\'"'),
        ('"v 5"', "character 3 is ' '"),
        ('"v5', "ends before the second quote"),
        ('"a" "b"', "character 5 is '\"'"),
        ('w/"a"', "character 1 is 'w'"),
        ('"a\x00"', r"character 3 is '\x00'"),
        ('"a\u0436"', r"character 3 is '\u0436'"),
        ('"a";"b"', "character 4 is ';'"),
        ('*, "a"', "* beside something else"),
        ('"a", *', "* beside something else"),
        ("", "is empty"),
        (" , ,", "is empty"),
    ],
)
@pytest.mark.parametrize("name", ["If-Match", "If-None-Match"])
def test_a_write_with_a_field_that_cannot_be_read_is_told_where(
    sent: str, says: str, name: str
) -> None:
    for require in ("if_match", None):
        answer = evaluate("PUT", [(name, sent)], etag='"a"', require=require)  # type: ignore[arg-type]
        assert answer.status == 400
        assert says in answer.reason
        assert "two quotes" in answer.reason
    assert status("GET", (name, sent)) == (400 if name == "If-Match" else None)


def test_obs_text_is_legal_and_bytes_are_read_as_they_came() -> None:
    assert evaluate("PUT", [(b"If-Match", b'"caf\xe9"')], etag='"caf\xe9"').status is None


def test_control_bytes_in_a_date_refuse_a_write() -> None:
    assert status("PUT", ("If-Unmodified-Since", "x\r\ny"), require=None) == 400
    beside = ("If-Match", '"a"')
    assert status("PUT", beside, ("If-Unmodified-Since", "x\x00")) == 400
    assert status("GET", ("If-Modified-Since", "x\r\ny")) is None


def test_a_field_without_a_value_was_not_sent() -> None:
    assert required("PUT", {"If-Match": None}).status == 428


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_long_field_is_refused_unread(method: str) -> None:
    assert status(method, ("If-None-Match", f'"{"a" * 8191}"')) == 400
    assert status(method, ("If-None-Match", '"a",' * 65)) == 400
    assert status(method, *[("If-None-Match", '"a"')] * 65) == 400
    assert status(method, *[("If-None-Match", "")] * 64, ("If-None-Match", '"b"')) == 400
    assert status(method, *[("If-Match", ",".join(['"a"'] * 64))]) is None


@pytest.mark.parametrize(
    ("sent", "current"), [('"a-gzip"', '"a"'), ('W/"a"', '"a"'), ('W/"a-gzip"', '"a"')]
)
def test_what_a_proxy_has_written_into_a_tag_is_taken_off_where_it_is_named(
    sent: str, current: str
) -> None:
    assert status("PUT", ("If-Match", sent), etag=current) == 412
    named = ("-gzip", "W/")
    assert status("PUT", ("If-Match", sent), etag=current, proxies=named) is None
    assert status("GET", ("If-None-Match", sent), etag=current, proxies=named) == 304
    assert required("PUT", [("If-Match", sent)], proxies=named).versions == (current,)


@pytest.mark.parametrize(
    ("method", "sent", "asked"),
    [
        ("PUT", {"If-Match": '"a", W/"b", "c,"'}, Precondition(versions=('"a"', '"c,"'))),
        ("PUT", {"If-Match": 'W/"a"'}, Precondition(versions=())),
        ("PUT", {"If-Match": "*"}, Precondition(exists=True)),
        ("PUT", {"If-None-Match": "*"}, Precondition(absent=True)),
        (
            "PUT",
            {"If-Match": '"a"', "If-None-Match": 'W/"b"', "If-Unmodified-Since": MODIFIED},
            Precondition(versions=('"a"',), unless=('"b"',)),
        ),
        (
            "PUT",
            {"If-Match": '"a", "b"', "If-None-Match": '"b"'},
            Precondition(versions=('"a"',), unless=('"b"',)),
        ),
        (
            "PUT",
            {"If-Match": '"a"', "If-None-Match": "*"},
            Precondition(versions=(), absent=True),
        ),
        (
            "GET",
            {"If-Match": '"a"', "If-None-Match": '"a"'},
            Precondition(versions=('"a"',), unless=('"a"',), reads=True),
        ),
        ("GET", {"If-None-Match": '"a"'}, Precondition(unless=('"a"',), reads=True)),
        ("GET", {}, Precondition(reads=True)),
    ],
)
def test_what_the_where_must_hold_is_known_before_anything_is_read(
    method: str, sent: dict[str, str], asked: Precondition
) -> None:
    assert required(method, sent) == asked


def test_a_date_is_kept_for_the_where_if_nothing_else_was_sent() -> None:
    asked = required("PUT", {"If-Unmodified-Since": MODIFIED}, require=None)
    assert asked.unmodified_since == datetime(2007, 10, 21, 23, 21, 47, tzinfo=UTC)
    assert not asked.unconditional


@pytest.mark.parametrize(
    ("text", "year"),
    [
        (MODIFIED, 2007),
        ("Sunday, 21-Oct-07 23:21:47 GMT", 2007),
        ("Sunday, 21-Oct-94 23:21:47 GMT", 1994),
        ("Sun Oct 21 23:21:47 2007", 2007),
        ("Sun, 21 Oct 2007 23:21:47 UTC", None),
        ("Sun, 21 oct 2007 23:21:47 GMT", None),
        ("Sun, 31 Feb 2007 23:21:47 GMT", None),
        ("Sun, 21 Oct 2007 24:00:00 GMT", None),
        ("Sun, \u0662\u0661 Oct 2007 23:21:47 GMT", None),
        ("", None),
    ],
)
def test_three_forms_are_dates_and_nothing_else_is(text: str, year: int | None) -> None:
    read = date(text)
    assert (read and read.year) == year


def test_a_leap_second_is_a_date() -> None:
    assert date("Sat, 31 Dec 2016 23:59:60 GMT") == datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    "modified", [datetime(2007, 10, 21, 23, 21, 47, 900000), MODIFIED, None], ids=str
)
def test_a_modification_counts_in_whole_seconds(modified: Any) -> None:
    sent = ("If-Unmodified-Since", MODIFIED)
    assert status("PUT", sent, require=None, last_modified=modified) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"etag": "a"},
        {"etag": 'W/"a" '},
        {"require": "etag"},
        {"profile": "s3"},
        {"last_modified": "yesterday"},
        {"proxies": "-gzip"},
    ],
    ids=str,
)
def test_a_mistake_of_the_program_is_no_answer_to_the_client(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        status("PUT", ("If-Match", '"a"'), **wrong)


# -- chance ----------------------------------------------------------------------------------------


VALUES = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(max_size=12)
NAMES = st.sampled_from(
    ["If-Match", "if-match", "If-None-Match", "If-Unmodified-Since", "If-Modified-Since", "Accept"]
)
LINES = st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple)
METHODS = st.sampled_from(["PUT", "PATCH", "DELETE", "GET"])
PROXIES = st.sampled_from([(), ("-gzip",), ("W/",), ("-gzip", "W/")])

SMALL = ['"a"', '"b"', 'W/"a"', "*", ",", " ", '"', "a", "\x00"]


def test_every_short_value_is_read_as_another_reader_would() -> None:
    values = ["".join(pieces) for n in range(4) for pieces in itertools.product(SMALL, repeat=n)]
    for value in values:
        match, none, tag = ("If-Match", value), ("If-None-Match", value), ("If-Match", '"a"')
        for exists in (True, False):
            no_write_passes(Request("PUT", (match,), exists))
            no_write_passes(Request("PUT", (none,), exists))
        no_write_passes(Request("PUT", (tag, none), exists=True))
        no_write_passes(Request("PUT", (match, tag), exists=True))
        no_write_passes(Request("GET", (match, none), exists=True))


@pytest.mark.full
def test_no_write_passes_that_another_reading_would_refuse(tries: Any) -> None:
    examples = tries(50, 300, 3_000)

    @settings(max_examples=examples, database=None, derandomize=True, deadline=None)
    @given(METHODS, LINES, st.booleans(), PROXIES)
    def run(method: str, lines: Any, exists: bool, proxies: tuple[str, ...]) -> None:
        no_write_passes(Request(method, lines, exists, proxies))

    run()


@pytest.mark.parametrize(
    "piece",
    ['"a",', ",", " ", '"', "W/", "a", '"a" ', 'W/"a",', "\xff", "\x00", "\\", '"a'],
    ids=repr,
)
def test_twice_the_length_takes_twice_the_steps(piece: str) -> None:
    def steps(times: int) -> int:
        return counted(lambda: required("PUT", [("If-Match", piece * times)]))

    def lines(times: int) -> int:
        return counted(lambda: required("PUT", [("If-Match", piece)] * times))

    assert steps(2 * 24) <= 2.2 * steps(24)
    assert lines(2 * 24) <= 2.2 * lines(24)
    assert steps(10_000) <= steps(1) + 10  # over the limit it is not read
    assert lines(10_000) <= lines(65) + 10


def counted(work: Callable[[], object]) -> int:
    """Lines of our two files that are run."""
    ours, lines = {request.__file__, rfc9110.__file__}, 0

    def local(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: local if frame.f_code.co_filename in ours else None)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("profile", ["rfc9110", "azure"])
def test_a_weak_tag_alone_is_told_as_that_and_not_as_anothers_write(profile: Any) -> None:
    """C11: nobody has written."""
    told = evaluate("PUT", {"If-Match": 'W/"v5"'}, etag='"v5"', profile=profile)
    assert told.status == 412
    assert "weak tags alone" in told.reason
    other = evaluate("PUT", {"If-Match": '"v4"'}, etag='"v5"', profile=profile)
    assert "somebody" not in other.reason


def test_tags_that_exclude_each_other_are_told_as_that() -> None:
    """C11."""
    told = evaluate("PUT", {"If-Match": '"v5"', "If-None-Match": '"v5"'}, etag='"v5"')
    assert (told.status, told.reason) == (
        412,
        "If-Match and If-None-Match of the request never hold together.",
    )
