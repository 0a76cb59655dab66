"""A version that no row of the class can have is refused, and nothing is sent."""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Numeric, String, select, update
from sqlalchemy.orm import Mapped

from optilock import ConfigurationError, Versioned, bulk_delete, bulk_update
from optilock.testing import count_statements
from optilock.tokens import Manual
from tests.support.models import Account, Base, Note, Timed, key


class Release(Versioned, Base):
    """Its versions are text."""

    __tablename__ = "vt_releases"
    __version_token__ = Manual(String(20))
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Weighed(Versioned, Base):
    """Its versions are decimal numbers."""

    __tablename__ = "vt_weighed"
    __version_token__ = Manual(Numeric(10, 2))
    id: Mapped[int] = key()
    name: Mapped[str | None]


def execute(session, model, rows):
    session.execute(update(model), rows)


def mappings(session, model, rows):
    session.bulk_update_mappings(model, rows)


def delete(session, model, rows):
    bulk_delete(session, model, [{"id": row["id"], "version": row["version"]} for row in rows])


WRONG: list[tuple[Any, list[Any]]] = [
    (Account, ["1", "x", 1.0, True, Decimal(1), uuid.UUID(int=1), b"1", [1], 1 << 63, {"a": 1}]),
    (Note, [1, "x", str(uuid.UUID(int=1)), b"x", datetime(2024, 5, 1)]),
    (Timed, [1, "2024-05-01T00:00:00+00:00", datetime(2024, 5, 1), True]),
]
CASES = [(model, version) for model, versions in WRONG for version in versions]
every_call = pytest.mark.parametrize("call", [bulk_update, delete, execute, mappings])


@every_call
@pytest.mark.parametrize(
    ("model", "version"), CASES, ids=[f"{m.__name__}-{v!r:.20}" for m, v in CASES]
)
def test_a_version_of_another_type_is_refused(store, watched, engine, call, model, version):
    store(*(model(id=n) for n in range(3)))
    session = watched()
    good = session.scalars(select(model.version).order_by(model.id)).all()
    values = {"text" if model is Note else "owner": "mine"}
    rows = [{"id": n, "version": good[n], **values} for n in range(3)]
    rows[1]["version"] = version

    with count_statements(engine) as sent, pytest.raises(ConfigurationError) as caught:
        call(session, model, rows)

    assert sent.count == 0
    said = str(caught.value)
    assert "Row 1" in said
    assert f"the version of {model.__name__} is" in said


@pytest.mark.parametrize("call", [execute, mappings])
@pytest.mark.parametrize(
    ("model", "good", "wrong"), [(Release, "a", 1), (Weighed, Decimal("1.5"), "1.5")]
)
def test_versions_of_the_application_have_a_type_too(
    store, watched, engine, call, model, good, wrong
):
    store(model(id=1, version=good))
    session = watched()

    with count_statements(engine) as sent, pytest.raises(ConfigurationError):
        call(session, model, [{"id": 1, "version": wrong, "name": "mine"}])

    assert sent.count == 0


@pytest.mark.parametrize("call", [bulk_update, execute, mappings])
def test_the_version_as_it_was_read_is_taken(store, watched, stored, call):
    store(Account(id=1), Note(id=1), Timed(id=1))
    for model, name in [(Account, "owner"), (Note, "text"), (Timed, "owner")]:
        session = watched()
        version = session.scalar(select(model.version))
        call(session, model, [{"id": 1, "version": version, name: "mine"}])
        session.commit()
        assert stored(model, 1)[name] == "mine"
