"""A model of pydantic as the form of a FastAPI route: a field can be emptied, and no other is."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from fastapi import FastAPI, Form
from fastapi.testclient import TestClient
from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool

from optilock import UnitOfWork, Versioned, watch
from optilock.preconditions import EditForm
from optilock.preconditions.entity_tags import ETags
from optilock.web.fastapi import install


class Base(DeclarativeBase):
    pass


class Event(Versioned, Base):
    __tablename__ = "events_of_pydantic"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    day: Mapped[date | None]
    public: Mapped[bool]


class SentEvent(BaseModel):
    seen: str = ""
    title: str = ""
    day: date | None = None
    public: bool = False


FORM = EditForm(
    Event,
    ["title", "day", "public"],
    etags=ETags(keys=["at least 16 bytes, the same in all processes"]),
    kinds={"public": "checkbox"},
)
GIVEN = {
    "model": lambda sent: sent,
    "dump": lambda sent: sent.model_dump(),
    "exclude_unset": lambda sent: sent.model_dump(exclude_unset=True),
}


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("give", GIVEN.values(), ids=GIVEN)
def test_a_field_is_emptied_if_it_came_empty_and_kept_if_it_did_not_come(
    installed: bool, give: Any
) -> None:
    engine = sa.create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    Base.metadata.create_all(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(Event(id=1, title="Old", day=date(2024, 5, 1), public=True))
    app = FastAPI()
    if installed:
        install(app)

    def save(sent: Any) -> int:
        with UnitOfWork(sessions) as session:
            again = FORM.save(session, 1, give(sent))
        return 200 if again is None else again.status

    save.__annotations__["sent"] = Annotated[SentEvent, Form()]
    app.add_api_route("/", save, methods=["POST"])

    def stored() -> tuple[Any, ...]:
        with sessions() as session:
            event = session.get_one(Event, 1)
            return event.title, event.day, event.public

    with sessions() as session:
        seen = FORM.of(session.get_one(Event, 1)).seen
    with TestClient(app) as client:
        absent = client.post("/", data={"title": "New", "public": "true", "seen": seen}).json()
        if installed:
            assert (absent, stored()) == (200, ("New", date(2024, 5, 1), True))
        else:
            assert stored()[1] == date(2024, 5, 1)
        with sessions() as session:
            seen = FORM.of(session.get_one(Event, 1)).seen
        empty = client.post("/", data={"title": "", "day": "", "seen": seen}).json()
    if installed:
        assert (empty, stored()) == (200, ("", None, False))
    else:  # it cannot be known, and no text is lost
        assert stored()[:2] in {("Old", date(2024, 5, 1)), ("New", date(2024, 5, 1))}
    engine.dispose()
