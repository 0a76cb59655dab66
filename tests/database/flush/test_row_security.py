"""Rows that a user may read and not write: row-level security of PostgreSQL."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, String, event, text, update
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, relationship, sessionmaker
from sqlalchemy.sql.schema import ForeignKey

from optilock import (
    ConcurrencyError,
    UnitOfWork,
    Versioned,
    bulk_delete,
    bulk_update,
    client_wins,
    entities,
    etag_of,
    is_transient,
    lock,
    merge_fields,
    store_wins,
    verify,
    watch,
)
from optilock.errors import BatchFailed, NotWritten
from optilock.resolvers import OnDelete
from optilock.web.problems import problem_of

pytestmark = pytest.mark.engines("postgresql")
Sessions = sessionmaker[Session]


class Base(DeclarativeBase):
    pass


class Memo(Versioned, Base):
    """Everybody reads each memo, ada writes her own."""

    __tablename__ = "secured_memos"

    id = mapped_column(Integer, primary_key=True, autoincrement=False)
    owner = mapped_column(String(10))
    label = mapped_column(String(20), default="")
    lines = relationship("MemoLine", cascade="all, delete-orphan")


class MemoLine(Versioned, Base):
    __tablename__ = "secured_memo_lines"

    id = mapped_column(Integer, primary_key=True, autoincrement=False)
    memo_id = mapped_column(ForeignKey(Memo.id))


POLICIES = """
GRANT ALL ON secured_memos, secured_memo_lines TO optilock_app;
ALTER TABLE secured_memos ENABLE ROW LEVEL SECURITY;
CREATE POLICY r ON secured_memos FOR SELECT USING (true);
CREATE POLICY w ON secured_memos FOR UPDATE USING (owner = 'ada');
CREATE POLICY d ON secured_memos FOR DELETE USING (owner IN ('ada', 'cleo'))
"""
ROLE = "DO $$ BEGIN CREATE ROLE optilock_app; EXCEPTION WHEN duplicate_object THEN END $$"


@pytest.fixture
def sessions(engine: Engine) -> Iterator[Sessions]:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text(ROLE))
        schema = connection.scalar(text("SELECT quote_ident(current_schema())"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO optilock_app"))
        for policy in POLICIES.split(";"):
            connection.execute(text(policy))
    with watch(sessionmaker(engine)).begin() as session:
        session.add_all([Memo(id=n, owner="bob") for n in (1, 2, 3)])
        session.add_all([Memo(id=n, owner="ada") for n in range(11, 23)])
        session.add_all([Memo(id=n, owner="cleo") for n in (31, 32)])
    made = watch(sessionmaker(engine))
    event.listen(
        made, "after_begin", lambda s, t, c: c.execute(text("SET LOCAL ROLE optilock_app"))
    )
    yield made
    Base.metadata.drop_all(engine)


def owners(engine: Engine) -> dict[int, str]:
    with engine.connect() as connection:
        return {
            row.id: row.label
            for row in connection.execute(text("SELECT id, label FROM secured_memos"))
        }


def labelled(session: Session, *ids: int) -> None:
    for number in ids:
        session.get_one(Memo, number).label = "mine"


def deleted(session: Session, *ids: int) -> None:
    for number in ids:
        session.delete(session.get_one(Memo, number))


ACTS: dict[str, Callable[[Session], Any]] = {
    "update": lambda s: labelled(s, 1),
    "delete": lambda s: deleted(s, 1),
    "some updates": lambda s: labelled(s, 1, 2, 11),
    "many updates": lambda s: labelled(s, 1, *range(11, 23)),
    "some deletes": lambda s: deleted(s, 1, 11, 31),
    "many deletes": lambda s: deleted(s, 1, 2, *range(11, 23)),
    "replace": lambda s: entities.replace(s, Memo, 1, {"owner": "ada"}, if_match="*"),
    "merge": lambda s: entities.merge(
        s, Memo, 1, {"label": "mine"}, if_match=etag_of(s.get_one(Memo, 1))
    ),
    "delete by key": lambda s: entities.delete(s, Memo, 1, if_match="*"),
    "bulk_update": lambda s: bulk_update(
        s, Memo, [{"id": n, "label": "mine", "version": 1} for n in (1, 11, 12)]
    ),
    "bulk_delete": lambda s: bulk_delete(s, Memo, [{"id": n, "version": 1} for n in (1, 11)]),
    "verify": lambda s: verify(s.get_one(Memo, 1)),
    "lock": lambda s: lock(s.get_one(Memo, 1)),
}


@pytest.mark.parametrize("options", [{}, {"on_conflict": client_wins}, {"on_conflict": store_wins}])
@pytest.mark.parametrize("name", ACTS)
def test_a_row_that_can_only_be_read_is_told_as_that(
    engine: Engine, sessions: Sessions, name: str, options: Any
) -> None:
    """D3: not as deleted by somebody else, and nothing is committed."""
    before = owners(engine)
    with pytest.raises(NotWritten) as caught, UnitOfWork(sessions, **options) as session:
        ACTS[name](session)
    assert not is_transient(caught.value)
    assert not isinstance(caught.value, ConcurrencyError)
    assert "this is no conflict" in str(caught.value)
    assert "row-level security" in str(caught.value).lower()
    assert type(pickle.loads(pickle.dumps(caught.value))) is NotWritten
    problem = problem_of(caught.value)
    assert problem is not None
    assert problem.status == caught.value.status == 403
    assert owners(engine) == before


def test_a_delete_that_ignores_what_is_gone_does_not_ignore_this(
    engine: Engine, sessions: Sessions
) -> None:
    """D3"""
    with (
        pytest.raises(NotWritten),
        UnitOfWork(sessions, on_delete=OnDelete.IGNORE_GONE) as session,
    ):
        deleted(session, 1, 11)
    assert {1, 11} <= owners(engine).keys()


def test_a_batch_names_the_operation(sessions: Sessions) -> None:
    """D3"""
    with sessions.begin() as session, pytest.raises(BatchFailed) as caught:
        operations = [
            entities.Operation(entities.merge, Memo, n, {"label": "x"}, if_match="*")
            for n in (11, 1)
        ]
        entities.transaction(session, operations)
    assert (caught.value.index, caught.value.status) == (1, 403)


def test_rows_that_may_be_deleted_and_not_updated_are_deleted(
    engine: Engine, sessions: Sessions
) -> None:
    """D3: whoever may delete rows cannot lock them, so the plain statement decides."""
    with UnitOfWork(sessions) as session:
        deleted(session, 31, 32, 11)
    assert owners(engine).keys().isdisjoint({31, 32, 11})


@pytest.mark.parametrize("resolver", [client_wins, merge_fields])
def test_a_row_that_its_owner_has_moved_is_not_written_either(
    engine: Engine, sessions: Sessions, resolver: Any
) -> None:
    """D3: what a resolver wants cannot be written; without one it is the conflict that it is."""
    for options, expected in (({"on_conflict": resolver}, NotWritten), ({}, ConcurrencyError)):
        with pytest.raises(expected) as caught, UnitOfWork(sessions, **options) as session:
            row = session.get_one(Memo, 1)
            with engine.begin() as other:
                other.execute(text("UPDATE secured_memos SET owner = 'bo', version = version + 1"))
            row.label = "mine"
        if isinstance(caught.value, ConcurrencyError):
            assert [entry.kind for entry in caught.value.entries] == ["updated"]


def test_a_row_that_is_gone_is_told_as_gone(engine: Engine, sessions: Sessions) -> None:
    """D3: also where the user could not have written it."""
    with pytest.raises(ConcurrencyError) as caught, UnitOfWork(sessions) as session:
        row = session.get_one(Memo, 1)
        with engine.begin() as other:
            other.execute(text("DELETE FROM secured_memos WHERE id = 1"))
        row.label = "mine"
    assert [entry.kind for entry in caught.value.entries] == ["deleted"]


# -- rows that a policy hides ----------------------------------------------------------------------


@pytest.fixture
def hiding(engine: Engine, sessions: Sessions) -> Callable[[int], None]:
    """Return a function that hides a memo from its reader, as a new owner does."""
    with engine.begin() as connection:
        connection.execute(text("DROP POLICY r ON secured_memos"))
        connection.execute(text("CREATE POLICY r ON secured_memos USING (owner <> 'nobody')"))

    def hide(number: int) -> None:
        with engine.begin() as connection:
            moved = update(Memo).where(Memo.id == number).values(owner="nobody")
            connection.execute(moved)

    return hide


def relabelled(session: Session) -> None:
    for memo in session.query(Memo).where(Memo.id.between(11, 22)).all():
        memo.label += "!"


HIDDEN = {
    "update": (lambda s: labelled(s, 11), {}),
    "store_wins": (lambda s: labelled(s, 11), {"on_conflict": store_wins}),
    "many, store_wins": (lambda s: relabelled(s), {"on_conflict": store_wins}),
    "delete": (lambda s: deleted(s, 11), {}),
    "IGNORE_GONE": (lambda s: deleted(s, 11), {"on_delete": OnDelete.IGNORE_GONE}),
    "IGNORE_VERSION": (lambda s: deleted(s, 11), {"on_delete": OnDelete.IGNORE_VERSION}),
    "both": (
        lambda s: deleted(s, 11),
        {"on_delete": OnDelete.IGNORE_GONE, "on_conflict": store_wins},
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_row_that_a_policy_may_hide_is_not_settled_as_deleted(
    engine: Engine, sessions: Sessions, hiding: Callable[[int], None], name: str
) -> None:
    act, options = HIDDEN[name]
    with pytest.raises(ConcurrencyError) as caught, UnitOfWork(sessions, **options) as session:
        act(session)
        hiding(11)
    assert "row-level security hides it" in str(caught.value)
    [entry] = caught.value.entries
    assert entry.maybe_hidden
    assert entry.as_dict()["maybe_hidden"]
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert owners(engine)[11] == ""
    if options:
        with sessionmaker(engine).begin() as other:  # a role that sees every row
            other.delete(other.get_one(Memo, 11))
        with UnitOfWork(watch(sessionmaker(engine)), **options) as session:
            memo = session.get_one(Memo, 12)
            with engine.begin() as connection:
                connection.execute(text("DELETE FROM secured_memos WHERE id = 12"))
            if "on_delete" in options:
                session.delete(memo)
            else:
                memo.label = "mine"


def test_other_calls_tell_so_too(
    sessions: Sessions, hiding: Callable[[int], None], engine: Engine
) -> None:
    with sessions() as session:
        memo, other = session.get_one(Memo, 11), session.get_one(Memo, 12)
        hiding(11)
        hiding(12)
        found = bulk_update(session, Memo, [{"id": 11, "version": 1, "label": "mine"}]).conflicts
        found += bulk_delete(session, Memo, [{"id": 12, "version": 1}]).conflicts
        with pytest.raises(ConcurrencyError) as locked:
            lock(memo)
        verify(other)
        with pytest.raises(ConcurrencyError) as verified:
            session.commit()
    entries = [*found, *locked.value.entries, *verified.value.entries]
    assert [entry.maybe_hidden for entry in entries] == [True] * 4


def test_it_is_asked_only_when_a_row_is_missing(
    engine: Engine, sessions: Sessions, hiding: Callable[[int], None]
) -> None:
    asked = []
    event.listen(
        engine,
        "before_cursor_execute",
        lambda c, cursor, sql, *rest: asked.append("row_security_active" in sql),
    )
    with sessions() as session:
        relabelled(session)
        session.commit()
        assert not any(asked)
        relabelled(session)
        for number in (11, 12, 13):
            hiding(number)
        with pytest.raises(ConcurrencyError):
            session.commit()
    assert sum(asked) == 1
