"""One tree of errors: each can be caught as what it is, sent elsewhere, and says what to do."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm.exc import StaleDataError

import optilock
from optilock import errors
from optilock.errors import (
    AlreadyExists,
    BadEntity,
    BadPrecondition,
    BatchFailed,
    CannotMerge,
    CommitOutcomeUnknown,
    ConcurrencyError,
    ConfigurationError,
    Entry,
    LinkGone,
    NotFound,
    NotWritten,
    OptilockError,
    PreconditionFailed,
    PreconditionRequired,
    UnguardedStatement,
)
from optilock.queue import errors as queue_errors


class Account:
    pass


def entry(number: int = 7, **different: Any) -> Entry[Account]:
    values: dict[str, Any] = {
        "model": Account,
        "identity": (number,),
        "kind": "updated",
        "action": "update",
        "original": {"owner": "secret-original", "version": 3},
        "current": {"owner": "secret-current", "version": 3},
        "database": {"owner": "secret-database", "version": 5},
        "changes": {"owner": "secret-current"},
        "conflicting": frozenset({"owner"}),
        "token": "version",
    }
    return Entry(**{**values, **different})


EVERY = [
    OptilockError("root"),
    ConfigurationError("write this instead"),
    BadPrecondition("If-Match is empty"),
    BadPrecondition("name a version", 428),
    PreconditionRequired("name a version"),
    BadEntity("there is no such column", ["colour"]),
    NotFound(Account, (7,)),
    AlreadyExists(Account, (7, "a"), {"owner": "secret-database"}, 412),
    BatchFailed(1, NotFound(Account, (7,))),
    ConcurrencyError([entry(1), entry(2)]),
    ConcurrencyError(),
    ConcurrencyError([entry()], "in other words"),
    PreconditionFailed([entry()]),
    CommitOutcomeUnknown("nobody knows"),
    LinkGone("post_tags", [{"post_id": 1, "tag_id": 2}], 0),
    NotWritten("a trigger keeps the row"),
    UnguardedStatement("SQL text writes accounts"),
    CannotMerge("at line 3"),
    queue_errors.MessageNotFound("mails", [7]),
    queue_errors.ReceiptExpired("mails", [7, 8]),
    queue_errors.MessageTooLarge("too long"),
    queue_errors.QueueNotFound("optilock_message"),
]
copies = pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)


# -- the tree --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BadPrecondition("what to do", 428),
        PreconditionRequired("what to do"),
        BadEntity("what to do", ["colour"]),
    ],
)
def test_an_error_shows_its_message_alone(error: OptilockError) -> None:
    assert str(error) == "what to do"


@pytest.mark.parametrize(
    "name",
    sorted(
        name for name in (*errors.__all__, *queue_errors.__all__) if not name.endswith("Warning")
    ),
)
def test_every_error_is_an_optilock_error(name: str) -> None:
    place = errors if hasattr(errors, name) else queue_errors
    assert issubclass(getattr(place, name), OptilockError)


def test_the_tree_at_the_head_of_the_errors_is_the_tree_of_the_classes() -> None:
    for module in pkgutil.walk_packages(optilock.__path__, "optilock."):
        if module.name.endswith(("errors", "request", "worker_state", "interleave")):
            importlib.import_module(module.name)

    def names(parent: type[OptilockError], depth: int) -> Iterator[tuple[str, int]]:
        for one in parent.__subclasses__():
            if not one.__module__.startswith("optilock."):
                continue
            hidden = one.__name__.startswith("_")
            if not hidden:
                yield one.__name__, depth
            yield from names(one, depth if hidden else depth + 1)

    head = str(errors.__doc__)
    drawn = re.findall(r"^    ([│ ]*)[├└]── (\w+)", head, re.MULTILINE)
    assert {(name, len(bars) // 4) for bars, name in drawn} == {*names(OptilockError, 0)}


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (ConfigurationError, ValueError),
        (ConcurrencyError, StaleDataError),
        (ConcurrencyError, SQLAlchemyError),
        (NotWritten, StaleDataError),
        (PreconditionFailed, ConcurrencyError),
    ],
)
def test_the_clause_that_people_already_have_catches_it(
    error: type[Exception], known: type[Exception]
) -> None:
    with pytest.raises(known):
        raise error


def test_a_link_that_is_gone_is_a_conflict_without_entries() -> None:
    """Who catches conflicts to run the work again, or to tell of them, means this one, too."""
    error = LinkGone("post_tags", [{"post_id": 1}], 0)

    assert isinstance(error, ConcurrencyError)
    assert error.entries == ()
    assert error.as_dict()["error"] == "LinkGone"


def test_a_link_that_is_gone_is_told_by_its_keys() -> None:
    links = [{"post_id": 1, "tag_id": number} for number in range(7)]

    assert "removed the link (post_id 1, tag_id 0) before" in str(LinkGone("t", links[:1], 0))
    assert "removed 2 of these links (post_id 1, tag_id 0; " in str(LinkGone("t", links, 5))
    assert "and 2 more" in str(LinkGone("t", links, 5))


def test_an_unknown_outcome_is_no_conflict() -> None:
    """Who catches conflicts to run the work again must not run it twice."""
    assert not issubclass(CommitOutcomeUnknown, ConcurrencyError)


# -- copies ----------------------------------------------------------------------------------------


@copies
@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_a_copy_says_and_carries_the_same(copied: Callable[[Any], Any], error: Any) -> None:
    twin = copied(error)

    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert getattr(twin, "entries", None) == getattr(error, "entries", None)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_notes_attributes_and_the_cause_are_pickled(error: Any) -> None:
    error = copy.copy(error)
    error.add_note("after 3 attempts")
    error.attempts = 3
    error.__cause__ = OperationalError("UPDATE", {}, Exception("40001"))

    twin = pickle.loads(pickle.dumps(error))

    assert twin.__notes__ == ["after 3 attempts"]
    assert twin.attempts == 3
    assert type(twin.__cause__) is OperationalError
    assert str(twin.__cause__.orig) == "40001"


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_a_cause_that_cannot_be_pickled_does_not_keep_the_error_from_it(error: Any) -> None:
    error = copy.copy(error)
    error.__cause__ = Exception(lambda: None)

    twin = pickle.loads(pickle.dumps(error))

    assert str(twin) == str(error)
    assert twin.__cause__ is None


# -- what they say ---------------------------------------------------------------------------------


def test_a_conflict_names_row_columns_versions_and_the_ways_out() -> None:
    assert str(ConcurrencyError([entry()])) == (
        "1 row was changed by another transaction after this one had read it:\n"
        "  Account 7: we tried to update it, it was updated; both sides changed owner"
        " (we read version 3, stored is 5)\n"
        "Your edits were not written. Refresh the objects (session.refresh(obj,"
        " with_for_update=True)) and apply the edits again, set on_conflict= to a resolver"
        " (merge_fields, client_wins, store_wins), or run the whole unit of work again with"
        " optilock.retry."
    )


def test_a_failed_precondition_does_not_advise_a_resolver() -> None:
    """A demanded version is never resolved."""
    message = str(PreconditionFailed([entry()]))

    assert "on_conflict" not in message
    assert "demand the version" in message


def test_a_transaction_ended_without_a_moved_row_advises_to_run_again() -> None:
    assert str(ConcurrencyError()).endswith("Run the whole unit of work again.")


def test_of_many_rows_five_are_told_and_all_are_carried() -> None:
    error = ConcurrencyError(entry(number) for number in range(1_000))

    assert len(error.entries) == 1_000
    assert str(error).startswith("1000 rows were changed")
    assert "... and 995 more" in str(error)
    assert str(error).count("Account") == 5


@pytest.mark.parametrize("error", [ConcurrencyError([entry()]), PreconditionFailed([entry()])])
def test_no_message_shows_a_column_value_or_sql(error: ConcurrencyError) -> None:
    for text in (str(error), repr(error)):
        assert "secret" not in text
        assert "UPDATE" not in text
        assert "WHERE" not in text


@pytest.mark.parametrize("kind", [ConcurrencyError, PreconditionFailed])
def test_a_conflict_of_ones_own_says_its_text_as_the_message(kind: type[ConcurrencyError]) -> None:
    assert str(kind(message="the shelf is empty")) == "the shelf is empty"
    with pytest.raises(
        ConfigurationError, match=r"takes entries first: write \w+\(message=\.\.\.\)"
    ):
        kind("the shelf is empty")
