"""Each kind of field, each way in which it comes back, and each change by another user meanwhile.

Stored is what was typed, and the other's edits; nothing else changes, and nothing that was not
stored is answered with 200.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from tests.web.form_pages import (
    COLUMNS,
    FORM,
    SERVED,
    Row,
    as_stored,
    as_written,
    sender,
    sessions_of,
)

WAYS = ("untouched", "changed", "emptied", "absent", "repeated")
MEANWHILE = ("nobody", "another field", "the same field")
#: Of the quick run: each framework has a few columns, and each column has one framework.
FEW = {"flask": ("tags", "moment"), "litestar": ("tags", "flag"), "fastapi": ("flag", "missing")}


@pytest.fixture(params=SERVED)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, Any]]:
    engine = sa.create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    sessions = sessions_of(engine)
    yield request.param, sessions, sender(request.param, SERVED[request.param](sessions))
    engine.dispose()


def reset(sessions: Any) -> dict[str, Any]:
    """Store the row as it was; return its form."""
    values = {name: as_written(name, 0) for name in COLUMNS}
    with sessions.begin() as session:
        session.execute(sa.delete(Row))
    with sessions.begin() as session:
        session.add(Row(id=1, title="old", other="old", **values))
    with sessions() as session:
        form = FORM.of(session.get_one(Row, 1))
    return {**form.texts, **form.lists, "seen": form.seen}


def sent(shown: dict[str, Any], name: str, way: str) -> list[tuple[str, str]]:
    """Return the fields that a browser sends."""
    column = COLUMNS[name]
    found: list[tuple[str, str]] = []
    for one, text in {**shown, "title": "mine"}.items():
        texts = text if isinstance(text, list) else [text]
        if one == name:
            mine = column.texts[1] if isinstance(column.texts[1], list) else [column.texts[1]]
            empty = [] if column.html in ("multiple", "checkbox") else [""]
            texts = {
                "untouched": texts,
                "changed": mine,
                "emptied": empty,
                "absent": [],
                "repeated": [*texts, *mine],
            }[way]
        if one in COLUMNS and COLUMNS[one].html == "checkbox" and one != name:
            texts = ["true"] if texts == ["true"] else []
        found += [(one, each.replace("\r\n", "\n").replace("\n", "\r\n")) for each in texts]
    return found


def wanted(name: str, way: str) -> Any:
    """Return the value that the sender wants: ``None`` inside of a tuple stands for no edit."""
    column = COLUMNS[name]
    match way:
        case "changed":
            return (as_stored(name, 1),)
        case "repeated":
            if column.html == "multiple":
                return ([*column.values[0], *column.values[1]],)
            return (
                (as_stored(name, 1),)
                if isinstance(column.column, type) and issubclass(column.column, sa.Boolean)
                else "refused"
            )
        case "emptied" | "absent" if column.html in ("multiple", "checkbox"):
            return ([] if column.html == "multiple" else False,)
        case "emptied":
            if column.values[0] is None:
                return None
            if column.html in ("color", "range"):  # such a field cannot be emptied
                return ("",) if column.html == "color" else (None,)
            return (column.empty,)
    return None


def stored(sessions: Any, name: str) -> tuple[Any, str, str]:
    with sessions() as session:
        row = session.get_one(Row, 1)
        value = getattr(row, name)
        if isinstance(value, str):
            value = value.replace("\r\n", "\n")
        return value, row.title, row.other


def plain(value: Any) -> Any:
    return value.replace("\r\n", "\n") if isinstance(value, str) else value


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_what_was_typed_is_stored_or_shown(
    served: tuple[str, Any, Any], meanwhile: str, request: pytest.FixtureRequest
) -> None:
    framework, sessions, send = served
    full = request.config.getoption("--full")
    columns = COLUMNS if full or framework == "starlette" else FEW[framework]
    wrong = []
    for name in columns:
        for way in WAYS:
            shown = reset(sessions)
            with sessions.begin() as session:
                row = session.get_one(Row, 1)
                if meanwhile == "another field":
                    row.other = "theirs"
                if meanwhile == "the same field":
                    setattr(row, name, as_written(name, 2))
            status = send(sent(shown, name, way))
            mine, theirs = wanted(name, way), meanwhile == "the same field"
            now = plain(as_stored(name, 2 if theirs else 0))
            clash = theirs and isinstance(mine, tuple) and plain(mine[0]) != now
            kept = mine == "refused" or clash
            value = now if kept or not isinstance(mine, tuple) else plain(mine[0])
            title = "old" if kept else "mine"
            other = "theirs" if meanwhile == "another field" else "old"
            statuses = (400,) if mine == "refused" else (409,) if clash else (200,)
            found = stored(sessions, name)
            if found != (value, title, other) or status not in statuses:
                wrong.append((name, way, status, found, "instead of", statuses, value, title))
    assert wrong == []


@pytest.mark.parametrize("bad", ["forged", "cut", "foreign", "huge", "nul", "none", "fields"])
def test_bad_input_is_400_with_the_text_and_no_write(
    served: tuple[str, Any, Any], bad: str
) -> None:
    _, sessions, send = served
    shown = reset(sessions)
    seen = shown["seen"]
    texts = {
        "forged": "A" * 22 + seen[22:],
        "cut": seen[:-5],
        "foreign": seen.replace(".", ".A", 1),
        "huge": "x" * 300_000,
        "nul": "\0",
    }
    fields = sent({**shown, "seen": texts.get(bad, seen)}, "line", "changed")
    if bad == "none":
        fields = [one for one in fields if one[0] != "seen"]
    if bad == "fields":
        fields += [("title", f"{number}") for number in range(900)]
    status = send(fields)
    assert status == (428 if bad == "none" else 400)
    assert stored(sessions, "line") == ("one\ntwo", "old", "old")
