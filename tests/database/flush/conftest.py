"""``form``: on PostgreSQL a few rows of one shape have a form of their own.

A module that asks for it runs there once more, with a few rows written as many are.
"""

from __future__ import annotations

import pytest

from optilock.dialects.postgresql import few_rows

MANY = "as many rows"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "form" in metafunc.fixturenames:
        forms = ["few rows", pytest.param(MANY, marks=pytest.mark.full)]
        metafunc.parametrize("form", forms, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _says_nothing_new(item)]


def _says_nothing_new(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    return (
        given is not None
        and given.params.get("form") == MANY
        and given.params.get("database") != "postgresql"
    )


@pytest.fixture
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == MANY:
        monkeypatch.setattr(few_rows, "MOST", 1)
