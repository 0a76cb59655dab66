"""What logs and other programs get of a conflict: names and versions, values where asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import OperationalError

from optilock import events
from optilock.errors import Computed, ConcurrencyError, Entry
from optilock.resolvers import Resolution
from optilock.serialize import as_json
from optilock.unit.retries import Policy

SECRET = "hunter2"


class User:
    pass


def entry(**different: Any) -> Entry[User]:
    values: dict[str, Any] = {
        "model": User,
        "identity": (7,),
        "kind": "updated",
        "action": "update",
        "original": {"password": SECRET, "version": 3},
        "current": {"password": SECRET + "x", "version": 3},
        "database": {"password": SECRET + "y", "version": 5},
        "changes": {"password": SECRET + "x"},
        "conflicting": {"password"},
        "token": "version",
    }
    return Entry(**{**values, **different})


def driver_error() -> OperationalError:
    return OperationalError("UPDATE users SET password=?", (SECRET,), Exception(SECRET))


CONFLICT = ConcurrencyError([entry()])
SHOWN = [
    entry(),
    CONFLICT,
    events.Conflict((entry(),)),
    events.Resolved((entry(),)),
    events.Retry(1, 0.5, CONFLICT),
    events.Retry(1, 0.5, driver_error()),
    events.Committed(2, 0.25),
    events.Failed(driver_error(), 2, 0.25, "transfer"),
    events.Failed(CONFLICT, 2, 0.25),
    events.SessionCommitted(0.25),
    events.Acquired("lease", "the lease on Page 7"),
    events.Lost("lease", "the lease on Page 7", driver_error()),
    events.Handled("work", 7, 1),
    events.HandlingFailed("work", 7, 1, driver_error()),
    events.DeadLetter("work", 7, 5),
]
shown = pytest.mark.parametrize("one", SHOWN, ids=lambda one: type(one).__name__)


def test_an_entry_names_the_row_the_columns_and_the_versions() -> None:
    assert entry().as_dict() == {
        "model": "User",
        "identity": [7],
        "kind": "updated",
        "action": "update",
        "changed": ["password"],
        "conflicting": ["password"],
        "compared": [],
        "versions": {"original": 3, "database": 5},
    }


def test_of_a_row_that_is_gone_there_is_one_version() -> None:
    gone = entry(database=None, kind="deleted")

    assert gone.as_dict()["versions"] == {"original": 3}
    assert gone.as_dict(values=True)["database"] is None


def test_values_come_where_they_are_asked_for() -> None:
    told = entry().as_dict(values=True)

    assert told["changes"] == {"password": "hunter2x"}
    assert told["database"] == {"password": "hunter2y", "version": 5}
    assert ConcurrencyError([entry()]).as_dict(values=True)["entries"] == [told]


@shown
def test_json_takes_all_of_it(one: Any) -> None:
    assert json.loads(json.dumps(one.as_dict())) == one.as_dict()
    assert json.loads(json.dumps(one.as_dict(values=True))) == one.as_dict(values=True)


@shown
@pytest.mark.parametrize("told", [repr, str, lambda one: json.dumps(one.as_dict())])
def test_no_value_is_shown_unless_asked_for(one: Any, told: Callable[[Any], str]) -> None:
    assert SECRET not in told(one)


def test_the_repr_of_a_resolution_names_what_it_writes_and_shows_no_values() -> None:
    assert repr(Resolution.write({"owner": "Ada", "pin": 4711})) == "<Resolution: write owner, pin>"
    assert repr(Resolution.keep_database()) == "<Resolution: keep_database>"
    assert repr(Resolution.reject(reason="both")) == "<Resolution: reject reason='both'>"


def test_the_repr_of_an_entry_names_the_row_the_columns_and_the_versions() -> None:
    shown = repr(entry())

    assert all(word in shown for word in ("User 7", "password", "3", "5"))


def test_an_event_names_itself_and_the_error() -> None:
    told = events.Retry(1, 0.5, driver_error(), "transfer").as_dict()

    assert told == {
        "event": "Retry",
        "attempt": 1,
        "wait": 0.5,
        "error": {"error": "OperationalError"},
        "name": "transfer",
    }
    assert events.Retry(1, 0.5, CONFLICT).as_dict()["error"] == CONFLICT.as_dict()


@pytest.mark.parametrize("one", [SHOWN[0], *SHOWN[2:]], ids=lambda one: type(one).__name__)
def test_dataclasses_turn_it_into_a_dict_of_its_own(one: Any) -> None:
    assert set(asdict(one)) == set(one.__dataclass_fields__)


def test_the_dict_of_an_entry_can_be_changed_and_the_entry_stays() -> None:
    one = entry()

    found = asdict(one)
    found["original"]["password"] = "other"

    assert type(found["original"]) is dict
    assert one.original["password"] == SECRET


class Color(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2024, 5, 1, tzinfo=UTC), "2024-05-01T00:00:00+00:00"),
        (timedelta(seconds=5), "0:00:05"),
        (b"ab", "YWI="),
        (bytearray(b"ab"), "YWI="),
        (Color.RED, "RED"),
        (float("nan"), "nan"),
        ({1: {2, 1}}, {"1": [1, 2]}),
        (Computed("views"), "<computed by the database: views>"),
    ],
    ids=repr,
)
def test_each_value_has_a_form_in_json(value: Any, told: Any) -> None:
    assert as_json(value) == told


# -- logs ------------------------------------------------------------------------------------------


def broken(event: object) -> None:
    raise ZeroDivisionError


@pytest.fixture
def broken_listener() -> Iterator[None]:
    events.listen(broken)
    yield
    events.unlisten(broken)


@pytest.mark.usefixtures("broken_listener")
def test_a_listener_that_breaks_is_logged_without_the_error_that_it_was_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A driver's error has the statement with its values."""
    policy = Policy(on=lambda error: True, attempts=2, sleep=lambda seconds: None)

    def work() -> None:
        raise driver_error()

    with caplog.at_level(logging.INFO, "optilock"), pytest.raises(OperationalError):
        policy.call(work)

    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text
