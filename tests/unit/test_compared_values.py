"""``CompareValues`` as a value, and what is refused while a class is being mapped."""

from __future__ import annotations

import copy
import pickle

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    registry,
    sessionmaker,
)

from optilock import (
    ConfigurationError,
    Versioned,
    apply,
    bulk_update,
    etag_of,
    expect,
    touch,
    verify,
    watch,
)
from optilock.statements import unchanged
from optilock.tokens import CompareValues, Counter, Unique


def base() -> type[DeclarativeBase]:
    class Base(DeclarativeBase):
        registry = registry()

    return Base


def mapped(token, ignored=()):
    class Row(Versioned, base()):
        __tablename__ = "rows"
        __version_token__ = token
        __version_ignore__ = ignored
        id: Mapped[int] = mapped_column(primary_key=True)
        a: Mapped[str]
        b: Mapped[str]
        late: Mapped[str] = mapped_column(deferred=True)

    return Row


TOKENS = [CompareValues("a", "b"), CompareValues.all(), CompareValues.changed()]


@pytest.mark.parametrize("token", TOKENS)
def test_it_is_a_value(token):
    assert pickle.loads(pickle.dumps(token)) == token == copy.copy(token)
    assert hash(copy.deepcopy(token)) == hash(token)
    assert sum(token == other for other in TOKENS) == 1
    assert eval(repr(token)) == token


@pytest.mark.parametrize("token", TOKENS)
def test_the_table_gets_no_column(token):
    row = mapped(token)
    assert "version" not in row.__table__.columns
    assert row.__mapper__.version_id_col is None


def test_a_version_beside_it_is_the_version():
    row = mapped((CompareValues("a"), Counter(name="revision")))
    assert row.__mapper__.version_id_col is row.__table__.c.revision


@pytest.mark.parametrize("names", [(), ("",), (1,), (None,)])
def test_names_are_texts(names):
    with pytest.raises(ConfigurationError, match="CompareValues"):
        CompareValues(*names)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (CompareValues("none"), "not a column attribute"),
        (CompareValues("id"), "primary key"),
        (CompareValues("late"), "deferred"),
        ((Counter(), CompareValues("version")), "the version"),
        ((), "at most one"),
        ((Counter(), Unique()), "at most one"),
        ((CompareValues("a"), CompareValues("b")), "at most one"),
        ((Counter(), "a"), "not a token"),
        (CompareValues, "not a token"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_mapping_time(token, why):
    with pytest.raises(ConfigurationError, match=why):
        mapped(token)


def test_a_compared_column_cannot_be_ignored():
    with pytest.raises(ConfigurationError, match="__version_ignore__"):
        mapped(CompareValues("a"), ignored=("a",))


def test_a_subclass_compares_as_its_parent_does():
    parent = mapped(CompareValues("a"))

    class Child(parent):
        c: Mapped[str | None]

    assert Child.__mapper__.version_id_col is None
    with pytest.raises(ConfigurationError, match="inherits"):

        class Other(parent):
            __version_token__ = Counter()


@pytest.mark.parametrize(
    "call",
    [
        lambda session, row: apply(session, type(row), 1, {}, expected=1),
        lambda session, row: bulk_update(session, type(row), [{"id": 1, "version": 1, "a": "x"}]),
        lambda session, row: etag_of(row),
        lambda session, row: expect(row, 1),
        lambda session, row: touch(row),
        lambda session, row: unchanged(row),
        lambda session, row: verify(row),
    ],
    ids=["apply", "bulk_update", "etag_of", "expect", "touch", "unchanged", "verify"],
)
def test_what_names_a_version_asks_for_a_token_that_has_one(call):
    model = mapped(CompareValues("a"))
    engine = create_engine("sqlite://")
    model.metadata.create_all(engine)
    with watch(sessionmaker(engine))() as session:
        row = model(id=1, a="a", b="b", late="late")
        session.add(row)
        session.flush()
        with pytest.raises(ConfigurationError, match=r"with a token that has a column: Counter"):
            call(session, row)
    engine.dispose()
