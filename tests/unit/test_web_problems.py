"""Errors as problem documents: the status, what is told, and what is never told."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import JSON, create_engine
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers, mapped_column
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, ConfigurationError, PreconditionFailed, Versioned, entities
from optilock.errors import (
    AlreadyExists,
    BadEntity,
    BadPrecondition,
    BatchFailed,
    CannotMerge,
    CommitOutcomeUnknown,
    Computed,
    ConditionNotCompared,
    Entry,
    LinkGone,
    NotFound,
    NotWritten,
    OptilockError,
    PreconditionRequired,
    SelfDeadlock,
    TransactionEnded,
    UnguardedStatement,
)
from optilock.exactly_once import AlreadyDone, KeyInUse, KeyReused, NotCommitted
from optilock.leases import LeaseHeld, LeaseLost
from optilock.preconditions.entity_tags import PLAIN
from optilock.queue.errors import (
    MessageNotFound,
    MessageTooLarge,
    QueueError,
    QueueNotFound,
    ReceiptExpired,
)
from optilock.shares import (
    AccessDenied,
    DeletePending,
    HandleLost,
    NameNotFound,
    ReadOnlyName,
    SharingViolation,
)
from optilock.web import fastapi, litestar
from optilock.web.conditions import Conditions, ProblemDocument, openapi_responses
from optilock.web.problems import Problem, problem_of


class Base(DeclarativeBase):
    pass


class Colour(StrEnum):
    RED = "#f00"


class Page(Versioned, Base):
    __tablename__ = "problem_pages"
    __problem_fields__ = ("title", "body")
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    body: Mapped[Any] = mapped_column(JSON)
    secret: Mapped[str]


def entry(**changed: Any) -> Entry[Page]:
    whole = {"id": 7, "version": 3, "title": "Base", "body": None, "secret": "hidden"}
    return Entry(
        Page,
        (7,),
        "updated",
        "update",
        original={"version": 3},
        current={"title": "Mine", "secret": "mine, too"},
        changes={"title": "Mine", "secret": "mine, too"},
        database=changed.get("database", {**whole, "version": 4, "title": "Theirs"}),
        conflicting=frozenset({"title"}),
        token="version",
    )


GONE = entry(database=None)
CASES: list[tuple[Exception, int | None, str | None]] = [
    (BadPrecondition("of Page"), 400, "bad-precondition"),
    (PreconditionRequired("merge() of Page"), 428, "precondition-required"),
    (BadPrecondition("of Page", 428), 428, "precondition-required"),
    (ConditionNotCompared("of Page"), 501, "condition-not-compared"),
    (BadEntity("Page has secret"), 400, "bad-entity"),
    (NotFound(Page, (7,)), 404, "not-found"),
    (AlreadyExists(Page, (7,)), 409, "already-exists"),
    (AlreadyExists(Page, (7,), {"secret": "hidden"}, 412), 412, "already-exists"),
    (ConcurrencyError([entry()]), 409, "conflict"),
    (ConcurrencyError([entry(), entry()]), 409, "conflict"),
    (ConcurrencyError(), 409, "conflict"),
    (LinkGone("links", [{"page_id": 7}], 0), 409, "conflict"),
    (StaleDataError("UPDATE of pages"), 409, "conflict"),
    (PreconditionFailed([entry()]), 412, "precondition-failed"),
    (PreconditionFailed([entry(), GONE]), 412, "precondition-failed"),
    (PreconditionFailed(message="UPDATE"), 412, "precondition-failed"),
    (PreconditionFailed([GONE]), 404, "not-found"),
    (LeaseHeld("Page 7", "leased"), 412, "lease-held"),
    (LeaseLost("Page 7", "expired", status=409), 409, "lease-lost"),
    (SharingViolation("Page", "RW", "R", ()), 409, "sharing-violation"),
    (DeletePending("Page"), 409, "delete-pending"),
    (HandleLost("Page"), 412, "handle-lost"),
    (AccessDenied("Page"), 403, "access-denied"),
    (ReadOnlyName("Page"), 412, "read-only"),
    (ReadOnlyName("Page", 403), 403, "read-only"),
    (NameNotFound("Page"), 404, "not-found"),
    (MessageNotFound("pages", [7]), 404, "message-not-found"),
    (ReceiptExpired("pages", [7]), 400, "receipt-expired"),
    (MessageTooLarge("of pages"), 413, "message-too-large"),
    (QueueNotFound("pages"), None, None),
    (QueueError("of pages"), None, None),
    (CommitOutcomeUnknown("COMMIT"), 500, "outcome-unknown"),
    (NotCommitted("COMMIT"), 503, "try-again"),
    (KeyReused("secret"), 422, "key-reused"),
    (KeyInUse("secret"), 409, "key-in-use"),
    (AlreadyDone("secret"), None, None),
    (BatchFailed(3, NotFound(Page, (7,))), 404, "not-found"),
    (BatchFailed(3, ValueError("SELECT")), None, None),
    (ConfigurationError("of the program"), None, None),
    (UnguardedStatement("UPDATE"), None, None),
    (NotWritten("a trigger"), 403, "not-written"),
    (CannotMerge("title"), None, None),
    (TransactionEnded("COMMIT in SQL text"), None, None),
    (SelfDeadlock("a unit would wait for itself"), None, None),
    (IntegrityError("INSERT", {}, Exception("UNIQUE")), None, None),
    (OperationalError("SELECT", {}, Exception("?")), None, None),
    (ValueError("?"), None, None),
]


@pytest.mark.parametrize(
    ("error", "status", "kind"), CASES, ids=lambda one: type(one).__name__ if one else "none"
)
def test_each_error_has_its_status_and_its_type_and_tells_nothing_of_the_program(
    error: Exception, status: int | None, kind: str | None
) -> None:
    problem = problem_of(error)
    if problem is None:
        assert status is None
        return
    told = json.loads(problem.content())
    assert (problem.status, told["status"], told["type"]) == (
        status,
        status,
        f"urn:optilock:{kind}",
    )
    assert told["title"]
    assert told["detail"]
    for word in ("Page", "secret", "hidden", "UPDATE", "COMMIT", "pages", "merge"):
        assert word not in problem.content().decode()
    assert len(problem.content()) < 600


def test_every_error_of_the_tree_has_been_thought_of() -> None:
    def below(kind: type[Exception]) -> set[type[Exception]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    tools = ("optilock_apps.demo", "optilock.testing")
    whole = {one for one in below(OptilockError) if one.__module__.startswith("optilock.")}
    ours = {one for one in whole if not one.__module__.startswith(tools)}
    known = {type(error) for error, _, _ in CASES}
    raised = {one for one in ours if not one.__name__.startswith("_")}  # others are their bases
    rest = {one.__name__ for one in raised if not any(issubclass(one, kind) for kind in known)}
    assert rest == {"OptilockError"}


# -- tags and values -------------------------------------------------------------------------------


def body_of(error: Exception) -> tuple[Problem, dict[str, Any]]:
    problem = problem_of(error)
    assert problem is not None
    return problem, json.loads(problem.content())


def test_the_tag_of_what_is_stored_is_told_and_is_a_header_of_412() -> None:
    tag = PLAIN.tag(Page.__mapper__, (7,), 4)
    failed, told = body_of(PreconditionFailed([entry()]))
    assert told["etag"] == failed.headers["ETag"] == tag
    conflict, told = body_of(ConcurrencyError([entry()]))
    assert (told["etag"], conflict.headers) == (tag, {})
    exists = AlreadyExists(Page, (7,), {}, 412)
    exists.etag = tag
    problem, told = body_of(exists)
    assert told["etag"] == problem.headers["ETag"] == tag
    batch, told = body_of(BatchFailed(2, PreconditionFailed([entry()])))
    assert (told["index"], told["etag"], batch.headers) == (2, tag, {})


def test_only_listed_fields_are_shown_and_only_of_one_row() -> None:
    _, told = body_of(PreconditionFailed([entry()]))
    assert told["conflicts"] == {
        "title": {"current": "Mine", "database": "Theirs"},
        "body": {"database": None},
    }
    _, told = body_of(PreconditionFailed([entry(), entry()]))
    assert "conflicts" not in told
    assert "etag" not in told


def test_a_field_about_which_there_is_no_conflict_is_not_listed() -> None:
    """C11: what is wanted is stored; nor is one listed that the client had seen so."""
    stored = {"id": 7, "version": 4, "title": "Same", "body": "b", "secret": "hidden"}
    same = replace(entry(database=stored), current={"title": "Same", "version": 3})
    _, told = body_of(PreconditionFailed([same]))
    assert told["conflicts"] == {"body": {"database": "b"}}
    seen = replace(same, original={"title": "Before", "version": 3})
    _, told = body_of(PreconditionFailed([seen]))
    assert told["conflicts"]["title"] == {
        "original": "Before", "current": "Same", "database": "Same",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda session: merge(session, {"size": 10**30}), "of another kind, too long, or out of"),
        (lambda session: merge(session, {"size": "big"}), "of another kind, too long, or out of"),
        (lambda session: merge(session, {"title": None}), "is null, and cannot be"),
        (lambda session: merge(session, {"colour": 1}), "a name that is unknown"),
        (lambda session: merge(session, {"version": 1}), "a name that is unknown, or not to be"),
        (lambda session: merge(session, [1]), "no object of names and values"),
        (lambda session: entities.insert(session, Sized, 1, {}), "lacks values that are needed"),
    ],
)
def test_the_answer_to_a_bad_body_says_what_is_wrong_with_it(call: Any, says: str) -> None:
    """C11: a number out of range is no unknown name."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        with pytest.raises(BadEntity) as caught:
            call(session)
        _, told = body_of(caught.value)
        _, copied = body_of(pickle.loads(pickle.dumps(caught.value)))
    assert says in told["detail"]
    assert told["detail"].endswith("Nothing was stored.")
    assert copied == told
    engine.dispose()


class Sized(Versioned, Base):
    __tablename__ = "problem_sizes"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    size: Mapped[int | None]


def merge(session: Session, values: Any) -> None:
    entities.merge(session, Sized, 1, values, if_match="*")


def test_a_lost_server_is_no_other_writer() -> None:
    """C11: 503 says nothing of who was writing."""
    lost = OperationalError("SELECT", {}, Exception("?"), connection_invalidated=True)
    problem, told = body_of(lost)
    assert problem.status == 503
    assert "nother change" not in told["detail"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (True, True),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (Colour.RED, "RED"),
        (b"\xff", "/w=="),
        ({"a": [Decimal(1), {"b": None}]}, {"a": ["1", {"b": None}]}),
        ("\ud800", "\ud800"),
    ],
)
def test_values_are_shown_as_json_has_them(value: object, shown: object) -> None:
    _, told = body_of(PreconditionFailed([entry(database={"version": 4, "body": value})]))
    assert told["conflicts"]["body"] == {"database": shown}


@pytest.mark.parametrize("value", [Computed("body"), object()])
def test_what_is_no_value_is_not_shown(value: object) -> None:
    _, told = body_of(PreconditionFailed([entry(database={"version": 4, "body": value})]))
    assert told["conflicts"] == {"title": {"current": "Mine"}}


def test_names_that_a_client_has_sent_come_back_shortened() -> None:
    _, told = body_of(BadEntity("?", ["x" * 5000, *map(str, range(50))]))
    assert told["names"] == ["x" * 64, *map(str, range(9))]


def test_what_is_wrong_with_a_condition_is_said() -> None:
    with pytest.raises(BadPrecondition) as caught:
        Conditions.of("PUT", [("If-Match", "mine")])
    _, told = body_of(pickle.loads(pickle.dumps(caught.value)))
    assert "If-Match" in told["detail"]
    assert "mine" not in told["detail"]


# -- the option of a class -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("title", "is a text, not a collection of names"),
        (("titel",), "names 'titel', which is not a column attribute"),
        (("version",), "which is the version itself"),
        (("id",), "which is the primary key"),
        ((1,), "write the names of attributes"),
    ],
)
def test_fields_to_show_are_checked_when_the_class_is_mapped(given: Any, said: str) -> None:
    class Own(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match=said):

        class Wrong(Versioned, Own):
            __tablename__ = "wrong"
            __problem_fields__ = given
            id: Mapped[int] = mapped_column(primary_key=True)
            title: Mapped[str]

        configure_mappers()


def test_the_option_is_not_misspelt_unnoticed() -> None:
    class Own(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match="__problem_fields__ was probably meant"):

        class Wrong(Versioned, Own):
            __tablename__ = "wrong"
            __problem_field__ = ("title",)
            id: Mapped[int] = mapped_column(primary_key=True)
            title: Mapped[str]

        configure_mappers()


def test_a_class_shows_nothing_unless_it_says_so() -> None:
    class Own(DeclarativeBase):
        pass

    class Quiet(Versioned, Own):
        __tablename__ = "quiet"
        id: Mapped[int] = mapped_column(primary_key=True)
        title: Mapped[str]

    engine = create_engine("sqlite://")
    Own.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Quiet(id=7, title="x"))
        session.flush()
    engine.dispose()
    error = PreconditionFailed(
        [Entry(Quiet, (7,), "updated", "update", {}, {"title": "a"}, {"title": "b"}, {})]
    )
    assert "conflicts" not in body_of(error)[1]


def test_what_openapi_says_of_a_document_has_every_member_that_one_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Page, "__version_author__", "title")
    monkeypatch.setattr(Page, "__version_time__", "title")
    unknown = BatchFailed(3, BadEntity("Page has colour", ["colour"]))
    found = [problem_of(error) for error in (unknown, PreconditionFailed([entry()]))]
    members = {name for problem in found if problem is not None for name in problem.body}
    (media,) = openapi_responses("PUT", 200)[412]["content"].values()
    assert set(media["schema"]["properties"]) == members == set(ProblemDocument.__annotations__)


def test_openapi_names_the_answers_of_a_route_with_an_idempotency_key() -> None:
    errors = [BadPrecondition("no key"), KeyInUse("k"), KeyReused("k"), NotFound(Page, (1,))]
    found = [problem_of(error) for error in errors]
    statuses = {problem.status for problem in found if problem is not None}
    assert set(openapi_responses("POST", 201, keyed=True)) == statuses == {400, 404, 409, 422}
    assert set(fastapi.responses("POST", status_code=201, keyed=True)) == statuses
    assert set(litestar.responses("POST", keyed=True)) == statuses
    assert 422 not in {*fastapi.responses("POST"), *litestar.responses("POST")}


def test_e4_a_client_is_not_shown_the_holder() -> None:
    """E4: the label is for programs that use the leases; a route shows it if it wants to."""
    problem = problem_of(LeaseHeld("Page 7", "leased", holder="ada"))
    assert problem is not None
    assert "ada" not in problem.content().decode()


def test_f_a_task_queue_that_speaks_json_keeps_the_kind_of_an_error() -> None:
    """Of class and text no error can be made again."""
    for error, kind in (
        (LeaseHeld("Page 7", "leased"), "lease-held"),
        (StaleDataError(), "conflict"),
    ):
        problem = problem_of(error)
        assert problem is not None
        assert json.loads(json.dumps(problem.body))["type"] == f"urn:optilock:{kind}"
