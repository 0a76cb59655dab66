"""A form that two people edit: what both have changed is shown, and all else is stored."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import ARRAY, JSON, DateTime, Engine, String, Text
from sqlalchemy import event as events
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import (
    ConfigurationError,
    UnitOfWork,
    Versioned,
    apply,
    entities,
    reject,
    watch,
)
from optilock.errors import BadEntity
from optilock.preconditions import EditForm, FilledForm, merge_changes, sign_seen
from optilock.preconditions.entity_tags import ETags
from optilock.resolvers import add_delta, merge_text, per_field

TAGS = ETags(keys=["a secret of sixteen bytes or more"])
BODY = "".join(f"line {number}\n" for number in range(40))


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages_of_forms"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(100))
    note: Mapped[str | None] = mapped_column(String(100))
    copies: Mapped[int]
    body: Mapped[str] = mapped_column(Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb"))
    secret: Mapped[str] = mapped_column(String(10), default="s")


FORM = EditForm(
    Page, ["title", "note", "copies", "body"], etags=TAGS, on_conflict=per_field(body=merge_text)
)


@pytest.fixture
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(Page(id=1, title="Tea", copies=2, body=BODY))
    return watch(sessionmaker(engine))


def shown(sessions: sessionmaker[Session]) -> FilledForm:
    with sessions() as session:
        return FORM.of(session.get(Page, 1))


def send(sessions: sessionmaker[Session], form: FilledForm, **edits: str) -> FilledForm | None:
    """As a browser does it."""
    sent = {**form.texts, "seen": form.seen, **edits, "secret": "stolen"}
    with UnitOfWork(sessions) as session:
        return FORM.save(session, 1, {n: text.replace("\n", "\r\n") for n, text in sent.items()})


def test_different_fields_and_different_places_are_stored_at_once(sessions: Any) -> None:
    """A4: nothing goes back to what it was, and nobody is asked."""
    ada, bob = shown(sessions), shown(sessions)
    edited = BODY.replace("line 1\n", "ADA 1\n").replace("line 30\n", "ADA 30\n")
    assert send(sessions, ada, title="Ada's", body=edited) is None
    assert send(sessions, bob, copies="3", body=BODY.replace("line 20\n", "BOB 20\n")) is None
    now = shown(sessions).values
    assert (now["title"], now["copies"], now["note"]) == ("Ada's", 3, None)
    assert now["body"] == edited.replace("line 20\n", "BOB 20\n")
    with sessions() as session:
        assert session.get(Page, 1).secret == "s"  # no field of the form


def test_after_a_conflict_the_form_has_theirs_and_over_it_only_what_i_changed(
    sessions: Any,
) -> None:
    """A4: a second Save writes nothing back that its author has not touched."""
    ada, bob = shown(sessions), shown(sessions)
    send(sessions, ada, title="Ada's", note="hers", copies="5")
    again = send(sessions, bob, title="Bob's")
    assert again is not None
    assert again.theirs == {"title": "Ada's"}
    assert again.texts == {"title": "Bob's", "note": "hers", "copies": "5", "body": BODY}
    assert "title. It is stored as “Ada's" in again.sentence
    assert shown(sessions).values["title"] == "Ada's"  # nothing was saved
    assert send(sessions, again) is None
    assert shown(sessions).texts == again.texts


def test_in_a_text_only_what_both_have_changed_is_left_open(sessions: Any) -> None:
    """A4, A5: both sides stand in the box, the edits elsewhere are in it, and open it is kept."""
    ada, bob = shown(sessions), shown(sessions)
    send(sessions, ada, body=BODY.replace("line 3\n", "ADA 3\n").replace("line 30\n", "ADA 30\n"))
    again = send(sessions, bob, body=BODY.replace("line 3\n", "BOB 3\n"))
    assert again is not None
    assert again.open == {"body": [4, 6, 8]}
    assert again.theirs == {}
    marked = "<<<<<<< yours, not saved\nBOB 3\n======= theirs, stored\nADA 3\n>>>>>>> end\n"
    assert again.texts["body"] == BODY.replace("line 3\n", marked).replace("line 30\n", "ADA 30\n")

    still = send(sessions, again)
    assert still is not None
    assert (still.open, still.texts["body"]) == (
        again.open,
        again.texts["body"].replace("\n", "\r\n"),
    )
    assert "BOB 3" not in shown(sessions).texts["body"]
    settled = again.texts["body"].replace(marked, "both 3\n")
    assert send(sessions, still, body=settled) is None
    assert shown(sessions).texts["body"] == settled


def test_a_third_writer_between_both_saves_is_merged_or_shown(sessions: Any) -> None:
    """A4: the form goes on from what it has shown."""
    ada, bob = shown(sessions), shown(sessions)
    send(sessions, ada, title="Ada's")
    again = send(sessions, bob, title="Bob's")
    assert again is not None
    send(sessions, shown(sessions), title="Eve's", copies="7")
    third = send(sessions, again)
    assert third is not None
    assert (third.theirs, third.texts["copies"]) == ({"title": "Eve's"}, "7")
    assert send(sessions, third) is None
    assert shown(sessions).texts["title"] == "Bob's"


def test_marks_that_a_text_had_before_are_text(sessions: Any) -> None:
    """A5: a page about conflicts can be edited, too."""
    about = "<<<<<<< yours, not saved\na\n======= theirs, stored\n>>>>>>> end\n"
    with sessions.begin() as session:
        session.get(Page, 1).body = about
    assert send(sessions, shown(sessions), body=about + "more\n") is None
    assert shown(sessions).texts["body"] == about + "more\n"


def test_a_row_that_moves_between_the_merge_and_the_write_is_merged_once_more(
    sessions: Any,
) -> None:
    """A4: two presses of Save, or two people in one moment, are no conflict about nothing."""
    bob = shown(sessions)
    for note, title, is_stored in (("theirs", None, True), (None, "Eve's", False)):
        with UnitOfWork(sessions) as session:

            @events.listens_for(session, "before_flush", once=True)
            def somebody_else(*_: Any, note: Any = note, title: Any = title) -> None:
                with sessions.begin() as other:  # ours is read, and not yet written
                    page = other.get(Page, 1)
                    page.note, page.title = note or page.note, title or page.title

            sent = {**bob.texts, "seen": bob.seen, "title": f"Bob's {is_stored}"}
            again = FORM.save(session, 1, sent)
        assert (again is None) is is_stored
        bob = again or shown(sessions)
    assert (bob.texts["title"], bob.theirs) == ("Bob's False", {"title": "Eve's"})
    assert send(sessions, bob) is None
    assert (shown(sessions).texts["title"], bob.texts["note"]) == ("Bob's False", "theirs")


def test_a_row_that_is_gone_leaves_what_was_typed(sessions: Any) -> None:
    """A4: there is nothing to save it to, and nothing is lost."""
    bob = shown(sessions)
    with sessions.begin() as session:
        session.delete(session.get(Page, 1))
    again = send(sessions, bob, title="Bob's")
    assert again is not None
    assert again.deleted
    assert (again.texts["title"], again.texts["body"]) == ("Bob's", BODY)
    repeated = send(sessions, again)  # by a template that still has a button
    assert repeated is not None
    assert (repeated.deleted, repeated.texts["title"]) == (True, "Bob's")


def test_a_field_that_is_missing_is_not_emptied(sessions: Any) -> None:
    """F: a form without the body leaves the body alone."""
    form = shown(sessions)
    with UnitOfWork(sessions) as session:
        assert FORM.save(session, 1, {"title": "Mine", "seen": form.seen}) is None
    assert shown(sessions).texts == {**form.texts, "title": "Mine"}


def test_a_form_without_its_seen_shows_what_was_typed_and_writes_nothing(sessions: Any) -> None:
    """A4: a form without ``seen`` is 428, one with a text that nobody signed 400."""
    for sent, status in (({}, 428), ({"seen": "junk"}, 400), ({"seen": "*"}, 400)):
        with UnitOfWork(sessions) as session:
            again = FORM.save(session, 1, {"title": "?", **sent})
        assert again is not None
        assert (again.status, again.texts["title"], again.theirs) == (status, "?", {"title": "Tea"})
        assert shown(sessions).texts["title"] == "Tea"
    assert send(sessions, again) is None
    assert shown(sessions).texts["title"] == "?"


def test_a_text_that_is_no_value_comes_back_with_a_sentence(sessions: Any) -> None:
    """B7: what was typed is in the form, whatever it is; and it can be corrected."""
    form = shown(sessions)
    again = send(sessions, form, title="Mine", copies="1,5", body="mine")
    assert again is not None
    assert (again.status, again.texts["copies"], again.texts["title"]) == (400, "1,5", "Mine")
    assert "copies: “1,5” is not a whole number" in again.sentence
    for bad in ("", "\0", "9" * 5000, "\ud800"):
        worse = send(sessions, again, copies=bad)
        assert worse is not None
        assert (worse.status, [*worse.errors]) == (400, ["copies"])
        worse.texts["copies"].encode()
    assert send(sessions, again, copies="3") is None
    assert shown(sessions).values == {"title": "Mine", "note": None, "copies": 3, "body": "mine"}


def test_a_check_of_the_program_keeps_what_was_typed(sessions: Any) -> None:
    form = shown(sessions)
    sent = {**form.texts, "title": "Mine", "copies": "x", "seen": form.seen}
    for seen in (form.seen, None):
        with UnitOfWork(sessions) as session:
            again = FORM.save(session, 1, {**sent, "seen": seen}, errors={"note": "is missing."})
        assert again is not None
        assert (again.texts["title"], {*again.errors}) == ("Mine", {"copies", "note"})
        assert again.status == (428 if seen is None else 400)
    assert shown(sessions).texts["title"] == "Tea"


def test_every_field_can_be_emptied(sessions: Any) -> None:
    for name in ("note", "title", "body"):
        assert send(sessions, shown(sessions), **{name: "text"}) is None
        assert send(sessions, shown(sessions), **{name: ""}) is None
        assert shown(sessions).texts[name] == ""


def test_a_page_of_another_release_loses_nothing(sessions: Any) -> None:
    """B5: only what was on the page is written, and what was typed there is never dropped."""
    old, new = (EditForm(Page, names, etags=TAGS) for names in (["title"], ["title", "note"]))
    with sessions.begin() as session:
        page = session.get(Page, 1)
        page.note = "stored"
        session.flush()
        of_old, of_new = old.of(page), new.of(page)
    for note, is_stored in ((None, True), ("", True), ("default", False)):
        with UnitOfWork(sessions) as session:
            sent = {"title": "Tea", "note": note, "seen": of_old.seen}
            again = new.save(session, 1, sent)
        assert (again is None) is is_stored
    assert again is not None
    assert again.theirs["note"] == "stored"
    for note, is_stored in (("typed", False), ("stored", True)):
        with UnitOfWork(sessions) as session:
            again = old.save(session, 1, {"title": "New", "note": note, "seen": of_new.seen})
        assert (again is None) is is_stored
        assert again is None or "“typed”" in again.sentence
    with UnitOfWork(sessions) as session:
        assert (session.get(Page, 1).title, session.get(Page, 1).note) == ("New", "stored")


def test_an_older_server_stores_the_rest_at_the_second_press(sessions: Any) -> None:
    """Its page has no checkbox, so this field does not come back: that is no edit of it."""
    names, kinds = ["title", "copies"], {"copies": "multiple"}
    readers = {"copies": (lambda value: [str(value)], lambda texts: int(texts[-1]))}
    new = EditForm(Page, names, etags=TAGS, kinds=kinds, readers=readers)
    old = EditForm(Page, names[:1], etags=TAGS)
    with sessions() as session:
        seen = new.of(session.get(Page, 1)).seen
    with UnitOfWork(sessions) as session:
        again = old.save(session, 1, {"title": "New", "copies": ["9"], "seen": seen})
        assert again is not None
        assert again.unknown == {"copies": ["9"]}
    with UnitOfWork(sessions) as session:
        assert old.save(session, 1, {**again.texts, "seen": again.seen}) is None
        assert (session.get(Page, 1).title, session.get(Page, 1).copies) == ("New", 2)


def test_a_page_with_old_fields_and_the_new_seen_is_told_what_it_did_not_show(
    sessions: Any,
) -> None:
    """B6: a form library fills the fields with what was sent, beside the seen of the new form."""
    ada, bob = shown(sessions), shown(sessions)
    send(sessions, ada, title="Ada's", note="hers")
    again = send(sessions, bob, title="Bob's")
    assert again is not None
    third = send(sessions, again, note="")  # as his first page had it
    assert third is not None
    assert (third.theirs, shown(sessions).texts["note"]) == ({"note": "hers"}, "hers")
    assert send(sessions, third) is None
    assert shown(sessions).texts["note"] == ""  # he has seen hers, and sent his again


def test_a_page_that_stays_open_goes_on_from_what_it_shows(sessions: Any) -> None:
    """B6: the answer to an autosave has a ``seen`` for the box, which shows nothing of Bob's."""
    form, lines = shown(sessions), BODY.replace("line 1\n", "ADA\n")
    seen = form.seen
    for typed in ("ADA\n", "ADA more\n", "ADA more and more\n"):
        with UnitOfWork(sessions) as session:
            sent = {**form.texts, "body": BODY.replace("line 1\n", typed), "seen": seen}
            assert FORM.save(session, 1, sent) is None
            seen = FORM.of(session.get(Page, 1)).seen
        if typed == "ADA\n":
            with sessions.begin() as session:
                session.get(Page, 1).body = lines.replace("line 30\n", "BOB\n")
    body = shown(sessions).texts["body"]
    assert body == BODY.replace("line 1\n", typed).replace("line 30\n", "BOB\n")


def test_what_a_rollback_takes_back_is_no_page(sessions: Any) -> None:
    form = shown(sessions)
    with sessions() as session:
        assert FORM.save(session, 1, {**form.texts, "title": "undone", "seen": form.seen}) is None
        session.rollback()
        again = FORM.of(session.get(Page, 1))
        assert again.texts["title"] == "Tea"


@pytest.mark.parametrize("letters", ["лорем ипсум 😀 ", ""], ids=["prose", "noise"])
def test_a_long_text_opens_saves_and_merges_or_says_why(sessions: Any, letters: str) -> None:
    """B8: 500 kB; what is too long to be carried is compared by its digest."""
    random = Random(7)
    noise = ["".join(random.choices("абвгдеёжзийклмно😀", k=70)) for _ in range(3500)]
    lines = [f"{letters}{n}" for n in range(16_000)] if letters else noise
    text = "\n".join(lines)
    assert len(text.encode()) > 400_000
    with sessions.begin() as session:
        session.get(Page, 1).body = text
    ada, bob = shown(sessions), shown(sessions)
    assert len(bob.seen) <= 0.4 * len(text.encode())
    assert send(sessions, ada, title="Ada's", body=text.replace(lines[5], "ADA")) is None
    again = send(sessions, bob, body=text.replace(lines[3000], "BOB"))
    assert (again is None) is bool(letters)
    assert again is None or again.theirs.keys() == {"body"}
    untouched = send(sessions, bob, copies="9")
    assert untouched is None
    assert shown(sessions).texts["copies"] == "9"


def test_a_name_or_a_column_without_a_text_is_refused_when_the_form_is_made() -> None:
    class Odd(Versioned, Base):
        __tablename__ = "odd_of_forms"
        id: Mapped[int] = mapped_column(primary_key=True)
        data: Mapped[Any] = mapped_column(JSON)

    for names, options, said in (
        (["titel"], {}, "titel"),
        (["id"], {}, "primary key"),
        (["data"], {}, "readers="),
        (["data"], {"kinds": {"date": "date"}, "readers": {"data": (str, str)}}, "date"),
        (["data"], {"kinds": {"data": "dropdown"}}, "dropdown"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            EditForm(Odd, names, etags=TAGS, **options)  # type: ignore[arg-type]


def test_policies_make_the_value_of_a_form_too(sessions: Any) -> None:
    """A4: a number that both have moved is moved by both, and no resolver hides an edit."""
    counted = EditForm(
        Page, ["copies", "title"], etags=TAGS, on_conflict=per_field(copies=add_delta)
    )
    strict = EditForm(Page, ["title"], etags=TAGS, on_conflict=reject)
    with sessions() as session:
        page = session.get(Page, 1)
        mine, other = counted.of(page), strict.of(page)
    send(sessions, shown(sessions), title="Ada's", copies="5")
    with UnitOfWork(sessions) as session:
        sent = {"title": "Bob's", "copies": "3", "seen": mine.seen}
        again = counted.save(session, 1, sent)
    assert again is not None
    assert (again.values, again.theirs) == ({"title": "Bob's", "copies": 6}, {"title": "Ada's"})
    with UnitOfWork(sessions) as session:
        again = strict.save(session, 1, {"title": "Tea", "seen": other.seen})
    assert again is not None
    assert again.values == {"title": "Ada's"}


def test_a_resolver_that_names_another_attribute_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="bodi"):
        EditForm(Page, ["title", "body"], etags=TAGS, on_conflict=per_field(bodi=merge_text))


@pytest.mark.engines("postgresql", "postgresql-asyncpg")
def test_what_a_server_would_guess_is_refused_by_every_call(engine: Engine) -> None:
    """B1, B3: a moment without a zone is one of the server's session, a text a list of letters."""

    class Event(Versioned, Base):
        __tablename__ = "events_of_forms"
        id: Mapped[int] = mapped_column(primary_key=True)
        at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
        tags: Mapped[list[str]] = mapped_column(ARRAY(String(10)))

    Event.metadata.tables["events_of_forms"].drop(engine, checkfirst=True)
    Event.metadata.tables["events_of_forms"].create(engine)
    made = watch(sessionmaker(engine))
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    with made.begin() as session:
        session.add(Event(id=1, at=noon, tags=["a"]))
    bare = noon.replace(tzinfo=None)
    for values in ({"at": "2024-05-01T12:00"}, {"at": bare}, {"at": "2024-05-01"}, {"tags": "ab"}):
        with made() as session:
            event = session.get(Event, 1)
            seen = sign_seen(event, values, etags=TAGS)
            with pytest.raises(BadEntity):
                apply(session, Event, 1, values, version=event.version)
            with pytest.raises(BadEntity):
                merge_changes(session, Event, 1, values, seen=seen, etags=TAGS)
            with pytest.raises(BadEntity):
                entities.merge(session, Event, 1, values, if_match="*")
    form = EditForm(
        Event, ["at", "tags"], etags=TAGS, kinds={"tags": "multiple"}, zone=ZoneInfo("Asia/Tokyo")
    )
    with made() as session:
        shown = form.of(session.get(Event, 1))
    assert (shown.texts, shown.lists) == ({"at": "2024-05-01T21:00"}, {"tags": ["a"]})
    with UnitOfWork(made) as session:
        sent = {"at": "2024-05-01T22:00", "tags": ["b", "c"], "seen": shown.seen}
        assert form.save(session, 1, sent) is None
    with made() as session:
        event = session.get(Event, 1)
        assert (event.at, event.tags) == (noon.replace(hour=13), ["b", "c"])
    Event.metadata.tables["events_of_forms"].drop(engine)
