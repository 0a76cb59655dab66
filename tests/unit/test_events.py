"""Listeners, the conflicts that all are reported, the page of events, and what they cost."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool

from optilock import ConfigurationError, UnitOfWork, Versioned, events, unit_of_work, watch
from tests.support.work import calls_of

ROOT = Path(__file__).parents[2]
EVENTS = get_args(events.Event)
DONE = events.Committed(1, 0.5)


class Base(DeclarativeBase):
    pass


class Leaf(Versioned, Base):
    __tablename__ = "event_leaves"
    id: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def sessions() -> Iterator[sessionmaker[Session]]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    made = watch(sessionmaker(engine, expire_on_commit=False))
    with made.begin() as session:
        session.add(Leaf(id=1))
    yield made
    engine.dispose()


# -- listeners -------------------------------------------------------------------------------------


def test_a_listener_that_raises_is_logged_and_the_others_run(caplog):
    """B4: neither the work nor the other listeners are disturbed."""
    heard: list[Any] = []

    def broken(event: events.Event) -> None:
        raise LookupError

    caplog.set_level(logging.ERROR, "optilock")
    with events.listening(broken), events.listening(heard.append):
        events.emit(lambda: DONE)

    assert heard == [DONE]
    assert "a listener failed on Committed" in caplog.text


def test_a_listener_that_is_registered_twice_is_called_once():
    """B4: it was called twice, and unlisten() left one of them."""
    heard: list[Any] = []

    def hear(event: events.Event) -> None:
        heard.append(event)

    events.listen(hear)
    events.listen(hear)
    with events.listening(hear):
        events.emit(lambda: DONE)
    events.emit(lambda: DONE)
    events.unlisten(hear)
    events.emit(lambda: DONE)

    assert heard == [DONE, DONE]


def test_a_block_listens_until_its_end_also_by_an_error_or_beside_another():
    """B4: ``listening`` as a context manager."""
    heard: list[Any] = []

    with pytest.raises(LookupError), events.listening(heard.append) as hear:
        assert hear == heard.append
        with events.listening(heard.append):
            events.emit(lambda: DONE)
        events.emit(lambda: DONE)
        raise LookupError
    events.emit(lambda: DONE)

    assert heard == [DONE, DONE]
    assert events.listeners == ()


def test_objects_without_a_hash_can_listen():
    """B4: a list of names has no hash, an object that is called may have none either."""

    class Recorder(list[Any]):
        def __call__(self, event: events.Event) -> None:
            self.append(event)

    recorder = Recorder()
    with events.listening(recorder):
        events.emit(lambda: DONE)
    assert recorder == [DONE]


@pytest.mark.parametrize("register", [events.listen, lambda f: events.listening(f).__enter__()])
def test_what_cannot_be_called_at_once_is_refused(register):
    """B4: a listener whose result must be awaited would never run."""

    async def later(event: events.Event) -> None: ...

    class Later:
        async def __call__(self, event: events.Event) -> None: ...

    for given in (None, "name", later, Later()):
        with pytest.raises(ConfigurationError, match=r"events\.listen"):
            register(given)
    assert events.listeners == ()


@pytest.mark.parametrize("name", ["", 7, b"x"])
def test_a_unit_has_a_text_as_its_name(sessions, name):
    """B4: bad names are refused before anything is sent."""
    with pytest.raises(ConfigurationError, match="name="):
        UnitOfWork(sessions, name=name)


# -- every conflict is reported --------------------------------------------------------------------

MAKERS = {
    "ConcurrencyError",
    "PreconditionFailed",
    "MovedByOwnStatement",
    "WouldOverwrite",
    "LinkGone",
    "conflict_of",
    "_would_overwrite",
}
#: Functions that make a conflict, and who reports it.
REPORTED_BY = {
    "version_error": "itself, once it has the tag of the stored row",
    "conflict_of": "its callers",
    # Settled or refused with others: the end of the flush reports all of its rows before.
    "decide": "settle",
    "told_as_own": "settle",
    "ask_resolver": "settle",
    "_refused": "settle",
    "_rejected": "settle",
    "_decide": "settle",
    "_not_corrected": "settle",
    "_without_parents": "refusals._settle",
    "_settled": "client_merges._settled",
    "judge_links": "conclude",
    "_would_overwrite": "judge",
    # Inside of session.merge(), whose end reports all stale copies.
    "gone_error": "_all_or_none",
    "moved_error": "_all_or_none",
    "undone_error": "_all_or_none",
    "_conflict": "_all_or_none",
    "_read_and_merge": "_all_or_none",
    "refuse_unseen": "_all_or_none",
    "_conflict_in_flush": "raise_conflict",
    "_gone_in_flush": "raise_conflict",
    "_refused_sum": "raise_conflict",
    "version_mismatch": "version_mismatch",
}


def made_conflicts() -> Iterator[tuple[str, str, bool]]:
    """File, function, and whether ``report`` gets it, of each place that makes a conflict."""
    for path in sorted((ROOT / "optilock").rglob("*.py")):
        if path.parent.name in ("errors", "testing"):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            reported = {id(n) for c in calls if name_of(c) == "report" for n in ast.walk(c)}
            for call in calls:
                if name_of(call) in MAKERS:
                    yield path.name, function.name, id(call) in reported


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "id", None) or getattr(call.func, "attr", "")


def test_every_place_that_makes_a_conflict_reports_it():
    """B4: a new place must report its conflict, or its function must name what does."""
    found = list(made_conflicts())
    silent = {(file, name) for file, name, reported in found if not reported}

    assert len(found) > 25
    assert {one for one in silent if one[1] not in REPORTED_BY} == set()
    assert REPORTED_BY.keys() - {name for _, name in silent} == set()


# -- the page --------------------------------------------------------------------------------------


def test_the_page_has_every_event_with_its_fields():
    """B4: one reference page, as the source is."""
    page = (ROOT / "docs/how-to/operate/events.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", page, re.M)

    assert {name: re.findall(r"`(\w+)`", listed) for name, listed in rows} == {
        kind.__name__: [field.name for field in fields(kind)] for kind in EVENTS
    }
    assert {kind.__name__ for kind in EVENTS} <= {*events.__all__}


# -- what it costs ---------------------------------------------------------------------------------


def block(sessions: Any) -> None:
    with UnitOfWork(sessions) as session:
        session.get_one(Leaf, 1).size += 1


def decorated(sessions: Any) -> None:
    @unit_of_work(sessions)
    def grow(session: Session) -> None:
        session.get_one(Leaf, 1).size += 1

    grow()


def plain(sessions: Any) -> None:
    with sessions.begin() as session:
        session.get_one(Leaf, 1).size += 1


@pytest.mark.parametrize(("work", "most"), [(block, 1), (decorated, 1), (plain, 0)])
def test_a_unit_without_a_listener_calls_emit_once_and_nothing_else(sessions, work, most):
    """B4: the events of failures, names and sessions cost nothing when nothing listens."""
    work(sessions)
    called = [name for file, name in calls_of(lambda: work(sessions)) if is_of_events(file)]

    assert called == ["emit"] * most


def is_of_events(file: str) -> bool:
    return file.endswith(("optilock/events.py", "unit/failures.py")) or "/telemetry/" in file
