"""Who has changed a row last, and when: what the class declares, and the words for people."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import BigInteger, DateTime, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, configure_mappers, mapped_column, relationship

from optilock import ConcurrencyError, ConfigurationError, PreconditionFailed, Versioned
from optilock.errors import Entry
from optilock.preconditions import FilledForm, conflict_form
from optilock.serialize import last_change
from optilock.tokens import Timestamp
from optilock.web.problems import problem_of

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "signed_pages"
    __version_author__ = "by"
    __version_time__ = "at"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    by: Mapped[str | None] = mapped_column("updated_by")
    at: Mapped[datetime | None] = mapped_column("updated_at")


class Plain(Versioned, Base):
    __tablename__ = "unsigned_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    by: Mapped[str | None]


def entry(model: type[Any] = Page, **stored: Any) -> Entry[Any]:
    row = {"id": 1, "version": 2, "title": "Theirs", "by": "Ada", "at": NOON, **stored}
    database = None if stored.get("gone") else row
    kind = "deleted" if database is None else "updated"
    mine = {"title": "Mine"}
    return Entry(model, (1,), kind, "update", {"version": 1}, mine, database, mine, token="version")


def test_an_entry_has_who_and_when_of_the_stored_row() -> None:
    """B10: also after pickling; None where the row is gone, or nothing is declared."""
    found = pickle.loads(pickle.dumps(ConcurrencyError([entry()]))).entries[0]
    assert (found.changed_by, found.changed_at) == ("Ada", NOON)
    for other in (entry(gone=True), entry(by=None, at=None), entry(Plain)):
        assert (other.changed_by, other.changed_at) == (None, None)


def test_messages_and_dicts_have_them_only_if_the_class_declares_them() -> None:
    """B10: no other value of the row is in them."""
    error = ConcurrencyError([entry()])
    assert "last changed by 'Ada' at 2026-05-01T12:00:00+00:00" in str(error)
    shown = error.as_dict()["entries"][0]
    assert (shown["changed_by"], shown["changed_at"]) == ("Ada", "2026-05-01T12:00:00+00:00")
    plain = ConcurrencyError([entry(Plain)])
    assert "Ada" not in f"{plain} {plain.as_dict()}"
    assert "Theirs" not in f"{error} {error.as_dict()}"


@pytest.mark.parametrize("kind", [ConcurrencyError, PreconditionFailed])
def test_a_problem_document_has_them_only_if_the_class_declares_them(kind: Any) -> None:
    """B10: the declaration is the permission; an error about several rows shows no values."""
    body = problem_of(kind([entry()])).body
    assert (body["changed_by"], body["changed_at"]) == ("Ada", "2026-05-01T12:00:00+00:00")
    for other in (kind([entry(Plain)]), kind([entry(), entry()]), kind([entry(gone=True)])):
        assert "changed_by" not in problem_of(other).body


def test_a_form_says_who_was_first() -> None:
    """B10: in its sentence as well."""
    form = conflict_form(entry(at=datetime.now(UTC) - timedelta(minutes=2, seconds=5)))
    assert form.last_change == "changed by Ada, 2 minutes ago"
    assert "It was changed by Ada, 2 minutes ago." in form.sentence
    assert conflict_form(entry(Plain)).last_change == ""


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=59), "just now"),
        (timedelta(minutes=-90), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(minutes=59), "59 minutes ago"),
        (timedelta(hours=1), "1 hour ago"),
        (timedelta(hours=23.9), "23 hours ago"),
        (timedelta(days=2), "2 days ago"),
        (timedelta(days=45), "on 2026-03-17"),
    ],
)
def test_times_with_and_without_a_zone_are_told_in_words(ago: timedelta, words: str) -> None:
    """B10: one without a zone is UTC; a clock that is ahead makes no negative time."""
    at, tokyo = NOON - ago, timezone(timedelta(hours=9))
    now = NOON.astimezone(tokyo)
    for one in (at, at.replace(tzinfo=None), at.astimezone(tokyo)):
        assert last_change(None, one, now=now) == f"changed {words}"
        assert last_change("Ada", one, now=NOON.replace(tzinfo=None)) == f"changed by Ada, {words}"


def test_half_of_it_is_told_as_far_as_it_is_known() -> None:
    """B10: an author without a time, a number of one, a mere date, nothing at all."""
    assert last_change("Ada", None) == "changed by Ada"
    assert last_change(7, NOON.date()) == "changed by 7, on 2026-05-01"
    assert last_change(None, None) == ""


def test_the_names_are_inherited_and_may_be_those_of_a_joined_table() -> None:
    """B10: joined inheritance; a Timestamp is a time of its own."""

    class Own(DeclarativeBase):
        pass

    class Node(Versioned, Own):
        __tablename__ = "nodes"
        __version_token__ = Timestamp()
        __version_time__ = "version"
        __version_author__ = "by"
        __mapper_args__ = {"polymorphic_identity": "node", "polymorphic_on": "kind"}
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]
        by: Mapped[str]

    class Leaf(Node):
        __tablename__ = "leaves"
        __mapper_args__ = {"polymorphic_identity": "leaf"}
        id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True)

    class Signed(Node):
        __tablename__ = "signed"
        __version_author__ = "own"
        __mapper_args__ = {"polymorphic_identity": "signed"}
        id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
        own: Mapped[str]

    configure_mappers()
    row = {"version": NOON, "own": "Eve"}
    assert (entry(Leaf, **row).changed_by, entry(Leaf, **row).changed_at) == ("Ada", NOON)
    assert entry(Signed, **row).changed_by == "Eve"


@pytest.mark.parametrize(
    ("author", "time", "said"),
    [
        ("nowhere", None, "__version_author__ names 'nowhere', which is not a column attribute"),
        ("id", None, "which is the primary key"),
        ("version", None, "which is the version itself"),
        ("parent", None, "not a column attribute"),
        (("by",), None, "write the name of one attribute as a text"),
        (None, "by", r"of type String\(\): a time is a column of type DateTime"),
        (None, "number", "a time is a column of type DateTime"),
        (None, "version", "which is the version itself"),
    ],
)
def test_the_names_are_checked_when_the_class_is_mapped(author: Any, time: Any, said: str) -> None:
    """B10: a name that is wrong would show nothing, silently."""

    class Own(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match=said):

        class Wrong(Versioned, Own):
            __tablename__ = "wrong"
            __version_author__ = author
            __version_time__ = time
            id: Mapped[int] = mapped_column(primary_key=True)
            by: Mapped[str]
            number: Mapped[int] = mapped_column(BigInteger)
            at: Mapped[datetime] = mapped_column(DateTime)
            parent_id: Mapped[int] = mapped_column(ForeignKey("wrong.id"))
            parent: Mapped[Any] = relationship("Wrong")


def test_a_misspelt_option_is_refused() -> None:
    """B10: it names the option that was meant."""

    class Own(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match="__version_author__ was probably meant"):

        class Wrong(Versioned, Own):
            __tablename__ = "wrong"
            __version_auhtor__ = "by"
            id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_form_without_a_clash_asks_for_a_look_unless_the_row_is_gone(deleted: bool) -> None:
    form = FilledForm({"title": "Mine"}, deleted=deleted)
    assert ("The form has the edits of both" in form.sentence) is not deleted
    clash = FilledForm({"title": "Mine"}, theirs={"title": "Theirs"}, deleted=deleted)
    assert "The form has the edits of both" not in clash.sentence
