"""What was loaded is known, or known to be unknown, whatever happens to a row in between.

One row is edited, flushed, rolled back, expired, merged and pickled by chance. The truth is asked
of the database at the moments when SQLAlchemy says that it has loaded something.
"""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import JSON, PickleType, create_engine, event, inspect, select
from sqlalchemy.ext.mutable import MutableDict, MutableList
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.orm.attributes import flag_modified, set_committed_value
from sqlalchemy.pool import StaticPool

from optilock import ConcurrencyError, ConfigurationError, Versioned, watch
from optilock._watched.rows.entries import attempt_of


class Base(DeclarativeBase):
    pass


class Thing(Versioned, Base):
    __tablename__ = "things"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    data: Mapped[Any] = mapped_column(MutableDict.as_mutable(JSON()))
    items: Mapped[Any] = mapped_column(MutableList.as_mutable(JSON()))
    plain: Mapped[Any] = mapped_column(JSON)
    stuff: Mapped[Any] = mapped_column(MutableDict.as_mutable(PickleType()))


NAMES = ("data", "items", "plain", "stuff")
names = st.sampled_from(NAMES)
numbers = st.integers(0, 3)


def value(name: str, number: int) -> Any:
    return [number] if name == "items" else {"n": number, "deep": {"m": number}}


class Row(RuleBasedStateMachine):
    @initialize(expire=st.booleans())
    def begin(self, expire):
        self.engine = create_engine("sqlite://", poolclass=StaticPool)
        Base.metadata.create_all(self.engine)
        self.raw = self.engine.raw_connection().driver_connection
        with Session(self.engine) as session, session.begin():
            session.add(Thing(id=1, name="a", **{name: value(name, 0) for name in NAMES}))
        self.session = watch(sessionmaker(self.engine, expire_on_commit=expire, autoflush=False))()
        self.truth: dict[str, Any] = {}
        self.points: list[Any] = []
        for name, heard in (("load", self.loaded), ("refresh", self.loaded)):
            event.listen(Thing, name, heard, raw=True)
        event.listen(Thing, "expire", self.expired, raw=True)
        self.row = self.session.get_one(Thing, 1)

    def teardown(self):
        event.remove(Thing, "load", self.loaded)
        event.remove(Thing, "refresh", self.loaded)
        event.remove(Thing, "expire", self.expired)
        self.session.close()
        self.engine.dispose()

    # -- the truth --------------------------------------------------------------------------------

    def stored(self) -> dict[str, Any]:
        """Read below SQLAlchemy's ORM; in a transaction, what that sees."""
        [row] = self.raw.execute("SELECT data, items, plain, stuff FROM things")
        return {
            n: pickle.loads(v) if n == "stuff" else json.loads(v)
            for n, v in zip(NAMES, row, strict=True)
        }

    def loaded(self, state, context, attrs=None):
        if state is inspect(getattr(self, "row", None), raiseerr=False) or not hasattr(self, "row"):
            now = self.stored()
            self.truth.update({n: now[n] for n in NAMES if attrs is None or n in attrs})

    def expired(self, state, attrs):
        if state is inspect(self.row):
            for name in NAMES if attrs is None else attrs:
                self.truth.pop(name, None)

    @invariant()
    def what_is_told_as_original_was_loaded(self):
        if not hasattr(self, "row"):
            return
        state = inspect(self.row)
        attempt = attempt_of(state, "update", None)
        for name in NAMES:
            if name in attempt.original:
                assert attempt.original[name] == self.truth[name], name
            if name in state.committed_state and name in self.truth:
                differs = self.truth[name] != state.dict[name]
                assert (name in attempt.changes) is differs, name
                assert name in attempt.original, name

    # -- what is done to the row ------------------------------------------------------------------

    @rule(name=names, number=numbers)
    def assign(self, name, number):
        setattr(self.row, name, value(name, number))

    @rule(name=st.sampled_from(["data", "items", "stuff"]), number=numbers)
    def change_in_place(self, name, number):
        held = getattr(self.row, name)
        if name == "items":
            held.append(number)
        else:
            held["n"] = number

    @rule(name=st.sampled_from(["data", "plain", "stuff"]), number=numbers, flag=st.booleans())
    def change_deep_inside(self, name, number, flag):
        """Nobody notices, unless it is flagged."""
        getattr(self.row, name)["deep"]["m"] = number
        if flag:
            flag_modified(self.row, name)

    @rule(name=names, number=numbers)
    def take_as_loaded(self, name, number):
        getattr(self.row, name)
        given = value(name, number)
        if name != "plain":  # as SQLAlchemy's mutable types ask for it
            kind = MutableList if name == "items" else MutableDict
            given = kind(given)
            given._parents[inspect(self.row)] = name
        set_committed_value(self.row, name, given)
        self.truth[name] = copy.deepcopy(given)

    @rule(number=numbers)
    def rename(self, number):
        self.row.name = f"name {number}"

    @rule()
    def flush(self):
        written = {n for n in NAMES if n in inspect(self.row).committed_state}
        try:
            self.session.flush()
        except (ConcurrencyError, ConfigurationError):  # such as pickled without a version
            return
        self.truth.update({n: copy.deepcopy(inspect(self.row).dict[n]) for n in written})

    @rule()
    def commit(self):
        self.flush()
        try:
            self.session.commit()
        except (ConcurrencyError, ConfigurationError):  # such as pickled without a version
            return
        self.points.clear()

    @rule()
    def rollback(self):
        self.session.rollback()
        self.points.clear()

    @rule()
    def savepoint(self):
        self.flush()
        if self.row not in self.session.dirty:
            self.points.append(self.session.begin_nested())

    @precondition(lambda self: getattr(self, "points", None))
    @rule()
    def back_to_the_savepoint(self):
        self.points.pop().rollback()

    @rule(name=st.sampled_from([None, *NAMES]))
    def expire(self, name):
        self.session.expire(self.row, [name] if name else None)

    @rule(name=st.sampled_from([None, *NAMES]))
    def refresh(self, name):
        with self.session.no_autoflush:
            self.session.refresh(self.row, [name] if name else None)

    @rule()
    def populate_existing(self):
        with self.session.no_autoflush:
            query = select(Thing).execution_options(populate_existing=True)
            assert self.session.scalars(query).one() is self.row

    @rule(name=names, number=numbers)
    def merge(self, name, number):
        with self.session.no_autoflush:
            self.session.merge(Thing(id=1, **{name: value(name, number)}))

    @rule()
    def pickle(self):
        """As a cache or a queue would."""
        self.session.expunge(self.row)
        self.row = pickle.loads(pickle.dumps(self.row))
        self.session.add(self.row)

    @precondition(lambda self: not self.session.in_transaction())
    @rule(name=names, number=numbers)
    def another_program(self, name, number):
        with Session(self.engine) as session, session.begin():
            row = session.get_one(Thing, 1)
            setattr(row, name, value(name, number))
            row.name = f"theirs {number}"


TestOriginals = pytest.mark.filterwarnings("ignore")(Row.TestCase)
TestOriginals.settings = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
