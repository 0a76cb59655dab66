"""Errors as problem documents: the status, what is told, and what is never told."""

from __future__ import annotations

from optilock.http.errors import NotFound, PreconditionRequired
from optilock.web.problems import problem_of


class Page:
    pass


def test_each_error_of_a_client_has_its_status_and_type() -> None:
    missing = problem_of(NotFound(Page, (7,)))
    assert missing is not None
    assert (missing.status, missing.body["type"]) == (404, "urn:optilock:not-found")
    required = problem_of(PreconditionRequired("merge() of Page needs if_match"))
    assert required is not None
    assert (required.status, required.body["status"]) == (428, 428)
    assert "Page" not in str(required.body)
