"""Aggregates of every kind of class and relationship: the root moves by one, whatever they are."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import JSON, ForeignKey, select
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DynamicMapped,
    Mapped,
    Session,
    WriteOnlyMapped,
    mapped_column,
    relationship,
)

from optilock import Versioned
from optilock.statements import no_bump
from tests.support.models import Base, key


class Case(Versioned, Base):
    """A root with subclasses."""

    __tablename__ = "ak_cases"
    __version_root_of__ = ("steps", "people", "logs", "marks", "hints")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "case"}
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column()
    steps: Mapped[list[Step]] = relationship(back_populates="case")
    people: Mapped[list[Role]] = relationship(back_populates="case", cascade="all, delete-orphan")
    logs: WriteOnlyMapped[Log] = relationship()
    marks: DynamicMapped[Mark] = relationship()
    hints: Mapped[list[Hint]] = relationship(post_update=True)


class Trial(Case):
    """A joined root with a child of its own."""

    __tablename__ = "ak_trials"
    __version_root_of__ = ("days",)
    __mapper_args__ = {"polymorphic_identity": "trial"}
    id: Mapped[int] = mapped_column(ForeignKey("ak_cases.id"), primary_key=True)
    court: Mapped[str | None]
    days: Mapped[list[Day]] = relationship(back_populates="trial")


class Inquiry(Case):
    """A root in its parent's table."""

    __mapper_args__ = {"polymorphic_identity": "inquiry"}


class Step(Base):
    """A child with subclasses."""

    __tablename__ = "ak_steps"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "step"}
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column()
    text: Mapped[str | None]
    data: Mapped[dict[str, Any] | None] = mapped_column(MutableDict.as_mutable(JSON))
    case_id: Mapped[int | None] = mapped_column(ForeignKey("ak_cases.id"))
    case: Mapped[Case | None] = relationship(back_populates="steps")


class Call(Step):
    """In its parent's table."""

    __mapper_args__ = {"polymorphic_identity": "call"}
    number: Mapped[str | None]


class Visit(Step):
    """In a table of its own."""

    __tablename__ = "ak_visits"
    __mapper_args__ = {"polymorphic_identity": "visit"}
    id: Mapped[int] = mapped_column(ForeignKey("ak_steps.id"), primary_key=True)
    place: Mapped[str | None]


class Role(Base):
    """An association object: the foreign key is in the primary key."""

    __tablename__ = "ak_roles"
    case_id: Mapped[int] = mapped_column(ForeignKey("ak_cases.id"), primary_key=True)
    person: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None]
    case: Mapped[Case] = relationship(back_populates="people")


class _Child:
    id: Mapped[int] = key()
    text: Mapped[str | None]
    case_id: Mapped[int | None] = mapped_column(ForeignKey("ak_cases.id"))


class Log(_Child, Base):
    __tablename__ = "ak_logs"


class Mark(_Child, Base):
    __tablename__ = "ak_marks"


class Hint(_Child, Base):
    __tablename__ = "ak_hints"


class Day(Base):
    __tablename__ = "ak_days"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("ak_trials.id"))
    trial: Mapped[Trial | None] = relationship(back_populates="days")


@pytest.fixture(params=["watched", "plain"])
def session(request, store, tables, watched, engine):
    """A case, a trial and an inquiry, each with a step."""
    tables(Case, Trial, Step, Visit)
    store(
        Case(id=1, steps=[Step(id=1, data={}), Call(id=2), Visit(id=3)], people=[Role(person=1)]),
        Trial(id=2, steps=[Step(id=4)], days=[Day(id=1)]),
        Inquiry(id=3, steps=[Step(id=5)]),
        Log(id=1, case_id=None),
    )
    store(Log(id=2, case_id=1), Mark(id=1, case_id=1), Hint(id=1, case_id=1))
    if request.param == "watched":
        yield watched()
    else:
        with Session(engine) as plain:
            yield plain


@pytest.fixture
def moved(engine, session):
    """By how much the versions moved since the first call."""

    def versions():
        with Session(engine) as fresh:
            return {case.id: case.version for case in fresh.scalars(select(Case))}

    before = versions()

    def moved():
        return {n: now - before[n] for n, now in versions().items() if now != before[n]}

    return moved


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize(
    ("model", "identity", "name", "root"),
    [
        (Call, 2, "number", 1),
        (Visit, 3, "place", 1),
        (Role, (1, 1), "text", 1),
        (Log, 2, "text", 1),
        (Mark, 1, "text", 1),
        (Hint, 1, "text", 1),
        (Day, 1, "text", 2),
        (Step, 4, "text", 2),
        (Step, 5, "text", 3),
    ],
)
def test_a_changed_child_of_any_kind_moves_its_root(
    session, moved, model, identity, name, root, loaded
):
    kept = session.get(Case, root) if loaded else None
    setattr(child := session.get(model, identity), name, "mine")
    session.commit()
    assert moved() == {root: 1}
    del child, kept


def test_a_value_that_is_changed_in_place_moves_the_root(session, moved):
    step = session.get(Step, 1)
    step.data["a"] = 1
    session.commit()
    assert moved() == {1: 1}


@pytest.mark.parametrize("what", ["people", "logs", "marks", "hints"])
def test_a_child_that_comes_and_goes_moves_its_root(session, moved, what):
    case = session.get(Case, 1)
    new = {"people": Role(person=2), "logs": Log(id=9), "marks": Mark(id=9), "hints": Hint(id=9)}
    children = getattr(case, what)
    getattr(children, "append", getattr(children, "add", None))(new[what])
    session.commit()
    assert moved() == {1: 1}

    getattr(case, what).remove(new[what])
    session.commit()
    assert moved() == {1: 2}


def test_a_root_that_changes_in_both_tables_and_has_changed_children_moves_by_one(session, moved):
    trial = session.get(Trial, 2)
    [step], [day] = trial.steps, trial.days
    trial.court, step.text, day.text = "c", "s", "d"
    trial.days.append(Day(id=2))
    session.commit()
    assert moved() == {2: 1}


def test_collections_that_change_places_move_both_roots(session, moved):
    one, two = session.get(Case, 1), session.get(Case, 3)
    one.steps, two.steps = list(two.steps), list(one.steps)
    session.commit()
    assert moved() == {1: 1, 3: 1}


def test_a_child_that_is_held_still_does_not_move_its_root(session, watched, moved):
    with watched() as mine:
        step = mine.get(Step, 1)
        with no_bump(mine, Step):
            step.text = "seen"
        mine.commit()
        assert moved() == {}
        step.text = "mine"
        mine.commit()
    assert moved() == {1: 1}
