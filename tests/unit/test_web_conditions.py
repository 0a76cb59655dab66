"""What a request demands, as the entity operations take it."""

from __future__ import annotations

from typing import Any

import pytest

from optilock import PreconditionFailed
from optilock.entities import Version
from optilock.errors import BadPrecondition, PreconditionRequired
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.web.conditions import Conditions, Policy
from tests.unit.test_public_names import run

FREE = Policy(require=None)
MATCH, NONE_MATCH, STAR = "If-Match", "If-None-Match", "*"


def of(method: str, *lines: tuple[str, Any], policy: Policy = FREE) -> Conditions:
    return Conditions.of(method, lines, policy=policy)


@pytest.mark.parametrize(
    ("method", "lines", "demands"),
    [
        ("PUT", [(MATCH, '"a"'), ("if-match", '"b"')], {"if_match": ('"a"', '"b"')}),
        ("PUT", [(b"if-match", b'"a"')], {"if_match": ('"a"',)}),
        ("PUT", [(MATCH, STAR)], {"if_match": "*"}),
        ("PUT", [(NONE_MATCH, STAR)], {"if_none_match": "*"}),
        ("PATCH", [(NONE_MATCH, STAR)], {"if_none_match": "*"}),
        ("DELETE", [(NONE_MATCH, STAR)], {"if_match": ()}),
        ("PUT", [(MATCH, STAR), (NONE_MATCH, STAR)], {"if_match": ()}),
        ("PUT", [(MATCH, '"a"'), (NONE_MATCH, STAR)], {"if_match": ()}),
        ("PUT", [(MATCH, 'W/"a"')], {"if_match": ()}),
        ("PUT", [(MATCH, '"a", "b"'), (NONE_MATCH, '"b"')], {"if_match": ('"a"',)}),
        ("PUT", [(MATCH, STAR), (NONE_MATCH, '"b"')], {"if_match": "*"}),
        ("PUT", [], {"if_match": "*"}),
    ],
)
def test_demands_are_arguments_of_the_operations(
    method: str, lines: list[Any], demands: dict[str, Any]
) -> None:
    found = of(method, *lines).demands
    assert found.pop("etags") is PLAIN
    assert {name: found[name] for name in demands} == demands
    assert set(found) - set(demands) <= {"if_none_match"}


def test_tags_that_must_not_be_there_are_never_left_out() -> None:
    assert of("PUT", (MATCH, STAR), (NONE_MATCH, '"b"')).demands["if_none_match"] == ('"b"',)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST", "BREW"])
def test_what_a_client_got_wrong_is_an_error_before_any_row_is_looked_at(method: str) -> None:
    for lines, status in (([], 428), ([(MATCH, "x")], 400), ([(MATCH, "")], 400)):
        with pytest.raises(BadPrecondition) as caught:
            of(method, *lines, policy=Policy())
        assert caught.value.status == status
        assert isinstance(caught.value, PreconditionRequired) is (status == 428)
        assert caught.value.detail


def test_a_policy_is_what_required_takes() -> None:
    with pytest.raises(PreconditionRequired):
        of("PUT", (MATCH, STAR), policy=Policy(allow_star=False))
    assert of("PUT", (MATCH, '"a-gzip"'), policy=Policy(proxies=("-gzip",))).expected == ('"a"',)
    assert of("PUT", (MATCH, "a"), policy=Policy(profile="azure")).expected == ('"a"',)


def test_tags_are_what_expect_and_apply_take() -> None:
    assert of("PATCH", (MATCH, '"a"')).expected == ('"a"',)
    for lines in ([], [(MATCH, STAR)], [(NONE_MATCH, STAR)], [(MATCH, '"a"'), (NONE_MATCH, STAR)]):
        with pytest.raises(PreconditionRequired):
            _ = of("PATCH", *lines).expected


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ([], False),
        ([(NONE_MATCH, '"a"')], True),
        ([(NONE_MATCH, 'W/"a"')], True),
        ([(NONE_MATCH, '"b"')], False),
        ([(NONE_MATCH, STAR)], True),
    ],
)
def test_a_read_is_told_whether_the_client_knows_it_already(lines: list[Any], known: bool) -> None:
    assert of("GET", *lines).not_modified('"a"') is known


def test_a_read_of_another_version_has_failed() -> None:
    with pytest.raises(PreconditionFailed) as caught:
        of("GET", (MATCH, '"b"')).not_modified('"a"')
    assert caught.value.etag == '"a"'


def test_what_no_where_holds_needs_a_look_at_the_row() -> None:
    date = "Sun, 21 Oct 2007 23:21:47 GMT"
    assert of("PUT", ("If-Unmodified-Since", date)).needs_a_look
    assert of("PUT", (NONE_MATCH, '"a"')).needs_a_look
    for lines in ([], [(MATCH, '"a"'), ("If-Unmodified-Since", date)], [(NONE_MATCH, STAR)]):
        assert not of("PUT", *lines).needs_a_look


def test_the_write_after_a_look_names_the_version_that_was_seen() -> None:
    asked = of("DELETE", (NONE_MATCH, '"b"'))
    assert asked.seen('"a"') == {"if_match": '"a"', "etags": PLAIN}
    assert asked.seen('"own"', version=3)["if_match"] == Version(3)
    assert asked.seen(None, exists=False) == {"if_none_match": "*", "etags": PLAIN}
    with pytest.raises(PreconditionFailed):
        asked.seen('"b"')


def test_signed_tags_are_handed_on() -> None:
    etags = ETags(keys=["k" * 32])
    assert Conditions.of("PUT", [(MATCH, STAR)], etags=etags).demands["etags"] is etags


@pytest.mark.parametrize(
    "name",
    [
        "fastapi",
        *(
            pytest.param(n, marks=pytest.mark.full)
            for n in ("flask", "litestar", "sqladmin", "starlette")
        ),
    ],
)
@pytest.mark.full
def test_a_framework_that_is_not_installed_is_named_with_its_extra(name: str) -> None:
    program = f"""
try:
    import optilock.web.{name}
except ModuleNotFoundError as missing:
    print(missing, missing.name)
"""
    done = run(program, without=[name])
    said = f'{name}, which is not installed: pip install "optilock[{name}]"'
    assert done.stdout.startswith(f"optilock's part for {name} needs {said}"), done.stderr


@pytest.mark.full
def test_the_rest_of_the_layer_needs_no_framework() -> None:
    frameworks = ["fastapi", "flask", "litestar", "sqladmin", "starlette", "werkzeug"]
    done = run(
        "import optilock.web.conditions, optilock.web.problems, optilock.web.units",
        without=frameworks,
    )
    assert (done.returncode, done.stderr) == (0, "")
