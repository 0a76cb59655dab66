"""Starlette: an answer by itself, without a server that would mend it."""

from __future__ import annotations

from optilock.errors import NotFound
from optilock.web.problems import problem_of
from optilock.web.starlette import ProblemResponse, not_modified


def test_an_answer_to_head_has_the_length_of_a_body_and_none() -> None:
    problem = problem_of(NotFound(object, (1,)))
    assert problem is not None
    whole, head = ProblemResponse(problem), ProblemResponse(problem, "HEAD")
    assert (head.body, head.status_code) == (b"", 404)
    assert head.headers["content-length"] == str(len(whole.body))
    assert head.headers["content-type"] == "application/problem+json"


def test_what_is_not_modified_has_its_tag_and_no_body() -> None:
    answer = not_modified('"a"')
    assert (answer.status_code, answer.body, answer.headers["etag"]) == (304, b"", '"a"')
    assert "etag" not in not_modified(None).headers
