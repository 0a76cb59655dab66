"""An order with its lines, which two people edit: lines are merged as rows are."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, ForeignKey, String, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import ConfigurationError, UnitOfWork, Versioned, watch
from optilock.errors import BadEntity, NotFound
from optilock.preconditions import EditForm, FilledLines, FormWithLines
from optilock.preconditions.entity_tags import ETags

TAGS = ETags(keys=["a secret of sixteen bytes or more"])


class Base(DeclarativeBase):
    pass


class Order(Versioned, Base):
    __tablename__ = "orders_of_forms"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(50))


class Line(Versioned, Base):
    __tablename__ = "lines_of_forms"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders_of_forms.id"))
    position: Mapped[int]
    product: Mapped[str] = mapped_column(String(50))


FORM = FormWithLines(
    EditForm(Order, ["customer"], etags=TAGS),
    EditForm(Line, ["position", "product"], etags=TAGS),
    parent="order_id",
)


@pytest.fixture
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(Order(id=1, customer="C"), Order(id=2, customer="D"))
    for number, product in enumerate("abc", 1):
        store(Line(id=UUID(int=number), order_id=1, position=number, product=product))
    store(Line(id=UUID(int=9), order_id=2, position=1, product="z"))
    return watch(sessionmaker(engine))


def shown(sessions: Any) -> dict[str, str]:
    with sessions() as session:
        return fields(FORM.of(session, 1))


def fields(filled: FilledLines) -> dict[str, str]:
    """What a browser sends of a page."""
    found = {**filled.form.texts, "seen": filled.form.seen}
    for line in filled.lines:
        found |= {line.name(name): text for name, text in line.form.texts.items()}
        found[line.name("seen")] = line.form.seen
        found |= {line.name("remove"): "on"} if line.removed else {}
    return found


def at(number: int, name: str) -> str:
    return f"lines-{UUID(int=number)}-{name}"


def new(page: dict[str, str], name: str) -> str:
    [key] = [one[:-4] for one, text in page.items() if one.endswith("-seen") and not text]
    return key + name


def send(sessions: Any, page: dict[str, str], **edits: str) -> FilledLines | None:
    with UnitOfWork(sessions) as session:
        return FORM.save(session, 1, {**page, **edits})


def stored(sessions: Any) -> tuple[str, list[tuple[int, str]]]:
    with sessions() as session:
        rows = session.scalars(select(Line).where(Line.order_id == 1))
        lines = sorted((one.position, one.product) for one in rows)
        return session.get(Order, 1).customer, lines


def test_lines_of_two_people_are_added_removed_changed_and_moved(sessions: Any) -> None:
    ada, bob = shown(sessions), shown(sessions)
    added = {new(ada, "position"): "4", new(ada, "product"): "ada"}
    assert send(sessions, {**ada, **added, at(1, "remove"): "on", at(2, "position"): "9"}) is None
    for _ in range(2):  # a form that comes twice adds its line once
        added = {new(bob, "position"): "5", new(bob, "product"): "bob"}
        again = send(sessions, {**bob, **added, at(2, "product"): "B"}, customer="Bob's")
        assert again is None
    assert stored(sessions) == ("Bob's", [(3, "c"), (4, "ada"), (5, "bob"), (9, "B")])


def test_a_line_that_both_have_touched_is_shown_and_nothing_is_stored(sessions: Any) -> None:
    ada, bob = shown(sessions), shown(sessions)
    assert send(sessions, {**ada, at(1, "product"): "A", at(2, "product"): "ada"}) is None
    with sessions.begin() as session:
        session.delete(session.get(Line, UUID(int=3)))
    edits = {at(1, "remove"): "on", at(2, "product"): "bob", at(3, "product"): "C"}
    new_line = {new(bob, "position"): "4", new(bob, "product"): "new"}
    again = send(sessions, {**bob, **edits, **new_line}, customer="Bob's")
    assert again is not None
    assert again.status == 409
    assert stored(sessions) == ("C", [(1, "A"), (2, "ada")])
    for told in ("line that you remove", "Both of you have changed product", "add it again"):
        assert told in again.sentence
    assert send(sessions, fields(again)) is None
    assert stored(sessions) == ("Bob's", [(2, "bob"), (3, "C"), (4, "new")])


def test_a_bad_text_gives_all_of_it_back(sessions: Any) -> None:
    ada = shown(sessions)
    with sessions.begin() as session:
        session.add(Line(id=uuid4(), order_id=1, position=7, product="theirs"))
    added = {new(ada, "position"): "", new(ada, "product"): "new"}
    again = send(sessions, {**ada, **added, at(1, "position"): "x"}, customer="Mine")
    assert again is not None
    assert (again.status, again.form.texts["customer"]) == (400, "Mine")
    texts = [(one.form.texts["position"], one.form.texts["product"]) for one in again.lines]
    assert texts == [("x", "a"), ("2", "b"), ("3", "c"), ("", "new"), ("7", "theirs")]
    assert stored(sessions)[0] == "C"
    page = {**fields(again), at(1, "position"): "1"}
    [name] = [one for one, text in page.items() if one.endswith("position") and text == ""]
    assert send(sessions, {**page, name: "5"}) is None
    assert stored(sessions)[1] == [(1, "a"), (2, "b"), (3, "c"), (5, "new"), (7, "theirs")]


def test_a_line_of_another_order_and_a_forged_one_are_refused(sessions: Any) -> None:
    page, line = shown(sessions), FORM.line
    with sessions() as session:
        foreign = line.of(session.get(Line, UUID(int=9))).seen
    forged = {
        "foreign": {at(9, "seen"): foreign, at(9, "product"): "stolen"},
        "removed": {at(9, "seen"): foreign, at(9, "remove"): "on"},
        "known key": {at(9, "seen"): "", at(9, "position"): "1", at(9, "product"): "stolen"},
        "no key": {"lines-x-seen": "", "lines-x-product": "stolen"},
    }
    for name, edits in forged.items():
        with pytest.raises(BadEntity):
            send(sessions, {**page, **edits})
        assert stored(sessions)[1] == [(1, "a"), (2, "b"), (3, "c")], name
    again = send(sessions, {**page, at(1, "seen"): "A" * 50, at(1, "product"): "stolen"})
    assert again is not None
    assert again.status in (400, 409)
    with sessions() as session:
        assert session.get(Line, UUID(int=9)).product == "z"


def test_an_order_that_is_not_there_or_named_by_a_wrong_key_has_no_form(sessions: Any) -> None:
    with sessions() as session:
        with pytest.raises(NotFound):
            FORM.of(session, 7)
        with pytest.raises(ConfigurationError, match=r"FormWithLines\.of\b"):
            FORM.of(session, (1, 2))


def test_untouched_lines_send_no_statement(sessions: Any, engine: Engine) -> None:
    page, sent = shown(sessions), []
    event.listen(engine, "before_cursor_execute", lambda *told: sent.append(told[2]))
    assert send(sessions, page, customer="Mine") is None
    assert not any("lines_of_forms" in one for one in sent)


def test_a_key_that_the_database_makes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Uuid or String"):
        FormWithLines(FORM.form, EditForm(Order, ["customer"], etags=TAGS), parent="id")
