"""``expect(obj, version)``: a row that must still be what a client saw."""

from __future__ import annotations

import pickle
import uuid
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    PreconditionFailed,
    UnitOfWork,
    apply,
    client_wins,
    entities,
    etag_of,
    expect,
    is_transient,
    retrying,
    store_wins,
    unit_of_work,
)
from optilock.errors import BadPrecondition
from optilock.preconditions.rfc9110 import required
from optilock.resolvers import OnDelete
from optilock.testing import count_statements
from optilock.web.problems import problem_of
from tests.support.models import Account, Note, Tag, Timed
from tests.support.tags import tag
from tests.support.two_writers import Do

pytestmark = pytest.mark.modes(full=True)

OWN = tag(Account, 1, 1)


# -- now -------------------------------------------------------------------------------------------


def test_the_expected_version_may_be_written(
    account: Any, watched: Do, stored: Do, engine: Engine
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    with count_statements(engine) as sent:
        expect(mine, OWN)
        expect(mine, 1)
    assert sent.count == 0
    mine.owner = "Eve"
    with count_statements(engine) as sent:
        session.commit()
    assert sent.count == 1
    assert stored(Account, 1)["owner"] == "Eve"


def test_another_version_fails_at_once_and_sends_nothing(
    account: Any, watched: Do, other: Do, engine: Engine
) -> None:
    other(Account, 1, owner="Eve")
    session = watched()
    mine = session.get(Account, 1)
    with count_statements(engine) as sent, pytest.raises(PreconditionFailed) as caught:
        expect(mine, OWN)
    assert sent.count == 0
    (entry,) = caught.value.entries
    assert (entry.kind, entry.action, entry.identity) == ("updated", "verify", (1,))
    assert entry.original == {"version": 1}
    assert entry.database is not None
    assert (entry.database["version"], entry.database["owner"]) == (2, "Eve")
    assert not is_transient(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).entries[0].original == {"version": 1}


def test_a_row_that_is_gone_fails_at_once(account: Any, watched: Do, gone: Do) -> None:
    session = watched()
    mine = session.get(Account, 1)
    session.commit()
    gone(Account, 1)
    with pytest.raises(PreconditionFailed) as caught:
        expect(mine, OWN)
    assert caught.value.entries[0].kind == "deleted"


def test_the_tag_that_etag_of_gave_is_expected_for_a_random_version(
    store: Do, watched: Do, other: Do
) -> None:
    store(Note(id=1, text="a"))
    session = watched()
    mine = session.get(Note, 1)
    expect(mine, etag_of(mine))
    expect(mine, mine.version)
    for text in (str(mine.version), mine.version.hex, mine.version.urn, f"{{{mine.version}}}"):
        expect(mine, version=text)
    with pytest.raises(PreconditionFailed):
        expect(mine, tag(Note, 1, uuid.UUID(int=0)))
    with pytest.raises(PreconditionFailed):
        expect(mine, version="00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize(
    "sent",
    [
        f"W/{OWN}",
        '""',
        '"1"',
        OWN.replace('1"', '01"'),
        OWN.replace('1"', '9223372036854775808"'),
        OWN.replace('1"', 'x"'),
        OWN.lower() if OWN.lower() != OWN else OWN.upper(),
        tag(Account, 2, 1),
        tag(Note, 1, 1),
        f'{tag(Account, 2, 1)}, "1"',
    ],
)
def test_a_tag_that_is_another_one_never_matches(account: Any, watched: Do, sent: str) -> None:
    """DJ-13"""
    mine = watched().get(Account, 1)
    with pytest.raises(PreconditionFailed):
        expect(mine, sent)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (f"W/{OWN}", r"^Account 1: only weak tags .* never match"),
        (tag(Account, 2, 1), r"^Account 1: no tag that was sent names a version of this row"),
    ],
    ids=["weak", "of another row"],
)
def test_a_tag_that_names_no_version_of_the_row_is_no_update_by_others(
    account: Any, watched: Do, sent: str, says: str
) -> None:
    mine = watched().get(Account, 1)
    with pytest.raises(PreconditionFailed, match=says) as caught:
        expect(mine, sent)
    assert "it was updated" not in str(caught.value)


def test_a_time_without_a_zone_is_told_from_one_that_has_it(store: Do, watched: Do) -> None:
    store(Timed(id=1))
    mine = watched().get(Timed, 1)
    with pytest.raises(ConfigurationError, match=r"without a time zone.* with a time zone"):
        expect(mine, version=datetime(2024, 5, 1))


def test_one_tag_of_a_list_is_enough(account: Any, watched: Do) -> None:
    mine = watched().get(Account, 1)
    expect(mine, f'"x,y", {OWN}')


def test_the_tags_that_a_request_requires_are_taken(account: Any, watched: Do) -> None:
    """Where a proxy on the way has written into them, too."""
    mine = watched().get(Account, 1)
    sent = [("If-Match", '"x"'), ("If-Match", OWN.replace('1"', '1-gzip"'))]
    expect(mine, required("PUT", sent, proxies=("-gzip",)).versions)
    with pytest.raises(PreconditionFailed):
        expect(mine, required("PUT", sent).versions)
    with pytest.raises(PreconditionFailed):
        expect(mine, required("PUT", {"If-Match": f"W/{OWN}"}).versions)
    with pytest.raises(BadPrecondition):
        expect(mine, required("PUT", {"If-None-Match": "*"}).versions)


class Parsed:
    """What werkzeug makes of If-Match, as far as it is asked."""

    def __init__(self, *strong: str, star: bool = False) -> None:
        self.strong, self.star_tag = strong, star

    def to_header(self) -> str:
        return "*" if self.star_tag else ", ".join(f'"{one}"' for one in self.strong)


def test_tags_that_werkzeug_has_parsed_are_taken(account: Any, watched: Do) -> None:
    mine = watched().get(Account, 1)
    expect(mine, Parsed("x", OWN[1:-1]))
    with pytest.raises(PreconditionFailed):
        expect(mine, Parsed("x"))
    for none in (Parsed(), Parsed(star=True)):
        with pytest.raises(BadPrecondition) as caught:
            expect(mine, none)
        assert caught.value.status == 428


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (None, 428),
        ("*", 428),
        ("1", 400),
        ("", 400),
        ('"1', 400),
        ('1"', 400),
        ('w/"1"', 400),
        ('"a b"', 400),
        (f"*, {OWN}", 400),
        (True, 400),
        (1.0, 400),
        ([1], 400),
    ],
)
def test_what_a_client_got_wrong_is_no_mistake_of_the_program(
    account: Any, watched: Do, wrong: object, status: int
) -> None:
    """DJ-13"""
    session = watched(client_wins)
    mine = session.get(Account, 1)
    with pytest.raises(BadPrecondition, match="Account") as caught:
        expect(mine, wrong)
    assert caught.value.status == status
    assert not isinstance(caught.value, ConfigurationError)
    mine.owner = "Eve"
    session.commit()


@pytest.mark.parametrize("wrong", [b"1", object()])
def test_what_can_be_no_version_is_refused_and_promises_nothing(
    account: Any, watched: Do, wrong: object
) -> None:
    session = watched(client_wins)
    mine = session.get(Account, 1)
    for given in ({"etag_or_version": wrong}, {"version": wrong}, {"version": "1"}, {}):
        with pytest.raises(ConfigurationError, match="Account"):
            expect(mine, **given)
    with pytest.raises(ConfigurationError, match="either"):
        expect(mine, 1, version=1)
    mine.owner = "Eve"
    session.commit()


def test_expect_is_refused_for_objects_that_nobody_would_check(
    account: Any, store: Do, watched: Do, engine: Engine
) -> None:
    """HB-27"""
    store(Tag(id=1))
    session = watched()
    with pytest.raises(ConfigurationError, match="no version"):
        expect(session.get(Tag, 1), OWN)
    with pytest.raises(ConfigurationError, match="not stored yet"):
        expect(Account(id=9), OWN)
    with pytest.raises(ConfigurationError, match="mapped class"):
        expect(Account, OWN)
    with Session(engine) as plain:
        mine = plain.get(Account, 1)
        with pytest.raises(ConfigurationError, match="not watched"):
            expect(mine, OWN)
        plain.expunge_all()
        with pytest.raises(ConfigurationError, match="detached"):
            expect(mine, OWN)


# -- at the write ----------------------------------------------------------------------------------


@pytest.mark.parametrize("resolver", [client_wins, store_wins, None])
def test_an_expected_row_that_moved_is_never_resolved(
    account: Any, watched: Do, other: Do, stored: Do, refused: Do, resolver: Any
) -> None:
    """RL-16"""
    session = watched(resolver)
    mine = session.get(Account, 1)
    expect(mine, OWN)
    mine.owner = "Eve"
    other(Account, 1, note="theirs")
    error = refused(session)
    assert isinstance(error, PreconditionFailed)
    (entry,) = error.entries
    assert (entry.action, entry.kind) == ("update", "updated")
    assert entry.original["owner"] == "Ada"
    assert entry.changes == {"owner": "Eve"}
    session.rollback()
    assert stored(Account, 1)["owner"] == "Ada"


def test_one_expected_row_among_conflicts_makes_all_of_them_fail(
    account: Any, watched: Do, other: Do, stored: Do, refused: Do
) -> None:
    session = watched(client_wins)
    expected, free = session.get(Account, 1), session.get(Account, 2)
    expect(expected, OWN)
    expected.owner = free.owner = "Eve"
    other(Account, 1, note="theirs")
    other(Account, 2, note="theirs")
    error = refused(session)
    assert isinstance(error, PreconditionFailed)
    assert {entry.identity for entry in error.entries} == {(1,), (2,)}
    session.rollback()
    assert stored(Account, 2)["owner"] == "Bob"


def test_an_expected_row_is_not_deleted_in_another_version_whatever_the_policy(
    account: Any, watched: Do, other: Do, stored: Do, engine: Engine, refused: Do
) -> None:
    from optilock import watch

    with watch(sessionmaker(engine), on_delete=OnDelete.IGNORE_VERSION)() as session:
        mine = session.get_one(Account, 1)
        expect(mine, OWN)
        session.delete(mine)
        other(Account, 1, note="theirs")
        error = refused(session)
        assert isinstance(error, PreconditionFailed)
        assert error.entries[0].action == "delete"
    assert stored(Account, 1)["note"] == "theirs"


@pytest.mark.needs("resolves-in-place")  # elsewhere nobody sees the newer version
def test_reading_the_row_again_does_not_lift_the_expectation(
    account: Any, watched: Do, other: Do, stored: Do, refused: Do, engine: Engine
) -> None:
    session = watched(client_wins)
    mine = session.get(Account, 1)
    expect(mine, OWN)
    other(Account, 1, note="theirs")
    session.refresh(mine, with_for_update=True)
    mine.owner = "Eve"
    error = refused(session)
    assert isinstance(error, PreconditionFailed)
    assert error.entries[0].original == {"version": 1}
    session.rollback()
    assert stored(Account, 1)["owner"] == "Ada"


def test_after_our_own_write_the_row_is_ours(account: Any, watched: Do, stored: Do) -> None:
    session = watched()
    mine = session.get(Account, 1)
    expect(mine, OWN)
    mine.owner = "Eve"
    session.flush()
    mine.owner = "Eva"
    session.flush()
    expect(mine, tag(Account, 1, 3))
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Eva", 3)


# -- before COMMIT ---------------------------------------------------------------------------------


def test_an_expected_row_that_is_only_read_is_looked_at_before_commit(
    account: Any, watched: Do, other: Do, stored: Do, refused: Do, engine: Engine, collect: Do
) -> None:
    session = watched(client_wins)
    expect(session.get(Account, 1), OWN)
    collect()
    session.get(Account, 2).owner = "Eve"
    other(Account, 1, note="theirs")
    error = refused(session, session.commit)
    assert isinstance(error, PreconditionFailed)
    (entry,) = error.entries
    assert (entry.identity, entry.action, entry.kind) == ((1,), "verify", "updated")
    assert entry.original["version"] == 1
    assert entry.database is not None
    assert entry.database["note"] == "theirs"
    session.rollback()
    assert stored(Account, 2)["owner"] == "Bob"


def test_the_look_before_commit_is_one_locking_read(
    account: Any, watched: Do, engine: Engine
) -> None:
    session = watched()
    first, second = session.get(Account, 1), session.get(Account, 2)
    expect(first, 1)
    expect(second, 1)
    with count_statements(engine) as sent:
        session.commit()
    selects = [s.text for s in sent.statements if s.text.startswith("SELECT")]
    assert len(selects) == 1
    if engine.dialect.name == "postgresql":
        assert "FOR SHARE" in selects[0]
    if engine.dialect.name in ("mysql", "mariadb"):
        assert "LOCK IN SHARE MODE" in selects[0]


def test_the_expectation_ends_with_the_transaction(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    session = watched(client_wins)
    mine = session.get(Account, 1)
    expect(mine, 1)
    session.rollback()
    assert mine.owner == "Ada"
    other(Account, 1, note="theirs")
    session.rollback()
    mine = session.get(Account, 1)
    expect(mine, 2)
    session.commit()
    other(Account, 1, note="again")
    session.get(Account, 2).owner = "Eve"
    session.commit()


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")  # a journal's reader keeps writers out
def test_a_savepoint_is_released_without_a_look_and_commit_looks(
    account: Any, watched: Do, other: Do, refused: Do, engine: Engine
) -> None:
    session = watched()
    expect(session.get(Account, 1), 1)
    with count_statements(engine) as sent, session.begin_nested():
        session.get(Account, 2)
    assert sum("SELECT" in s.text for s in sent.statements) <= 1
    session.begin_nested()  # left open: COMMIT releases it
    other(Account, 1, note="theirs")
    assert isinstance(refused(session, session.commit), PreconditionFailed)


@pytest.mark.engines("postgresql")  # the others keep the row locked after the savepoint
def test_a_write_that_a_savepoint_took_back_does_not_meet_the_expectation(
    account: Any, watched: Do, other: Do, refused: Do, engine: Engine
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    expect(mine, 1)
    savepoint = session.begin_nested()
    mine.owner = "Eve"
    session.flush()
    savepoint.rollback()
    other(Account, 1, note="theirs")
    assert isinstance(refused(session, session.commit), PreconditionFailed)


# -- units, and transactions that the database ends ------------------------------------------------


def test_a_unit_does_not_run_again_for_an_expected_row(
    account: Any, engine: Engine, other: Do
) -> None:
    runs = []

    @unit_of_work(sessionmaker(engine), retry=retrying(attempts=3, wait_initial=0))
    def edit(session: Session) -> None:
        runs.append(1)
        mine = session.get_one(Account, 1)
        expect(mine, OWN)
        other(Account, 1, note="theirs")
        mine.owner = "Eve"

    with pytest.raises(PreconditionFailed):
        edit()
    assert len(runs) == 1


@pytest.mark.parametrize("writes", [True, False], ids=["written", "read"])
@pytest.mark.engines("postgresql", "sqlite-wal", "mariadb")  # elsewhere a reader keeps writers out
def test_a_transaction_that_the_database_ends_fails_for_the_expected_row(
    account: Any, engine: Engine, other: Do, writes: bool
) -> None:
    with (
        pytest.raises(PreconditionFailed) as caught,
        UnitOfWork(
            sessionmaker(engine), isolation=Isolation.REPEATABLE_READ, on_conflict=client_wins
        ) as session,
    ):
        mine = session.get_one(Account, 1)
        expect(mine, OWN)
        if writes:
            mine.owner = "Eve"
        other(Account, 1, note="theirs")
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert caught.value.entries[0].identity == (1,)


def test_conflicts_of_other_rows_stay_ordinary_ones(
    account: Any, watched: Do, other: Do, refused: Do
) -> None:
    session = watched()
    expect(session.get(Account, 1), 1)
    free = session.get(Account, 2)
    free.owner = "Eve"
    other(Account, 2, note="theirs")
    assert type(refused(session)) is ConcurrencyError


def test_expect_costs_no_statement_when_it_is_not_used(
    account: Any, watched: Do, engine: Engine
) -> None:
    session = watched()
    session.scalars(select(Account)).all()
    with count_statements(engine) as sent:
        session.commit()
    assert sent.count == 0


# -- what is told ----------------------------------------------------------------------------------


def test_a_version_that_was_demanded_is_not_told_as_one_that_was_read(
    account: Any, watched: Do
) -> None:
    """C11: nobody has updated the row, and nobody has read 99."""
    session = watched()
    with pytest.raises(PreconditionFailed) as caught:
        expect(session.get_one(Account, 1), 99)
    told = str(caught.value)
    assert "version 99 was demanded, stored is 1" in told
    assert "we read" not in told
    assert "it was updated" not in told
    assert caught.value.entries[0].demanded
    assert pickle.loads(pickle.dumps(caught.value)).entries[0].demanded


def test_a_column_that_only_the_client_changed_is_not_told_as_changed_by_both(
    account: Any, watched: Do, other: Do
) -> None:
    """C11: the other side changed owner; nobody has said what the client had seen of note."""
    other(Account, 1, owner="theirs")
    with pytest.raises(PreconditionFailed) as caught:
        apply(watched(), Account, 1, {"note": "mine"}, expected=OWN)
    assert "both sides" not in str(caught.value)
    assert "we changed note" in str(caught.value)


@pytest.mark.parametrize("sent", [tag(Account, 2, 1), "W/" + tag(Account, 1, 1)])
def test_of_a_tag_that_is_none_of_the_row_nobody_says_that_somebody_has_written(
    account: Any, watched: Do, sent: str
) -> None:
    """C11: nor does the answer to the client, which has no conflicts where nothing differs."""
    Account.__problem_fields__ = ("owner", "note")  # type: ignore[attr-defined]
    try:
        session, errors = watched(), []
        with pytest.raises(PreconditionFailed) as caught:
            expect(session.get_one(Account, 1), sent)
        errors.append(caught.value)
        with pytest.raises(PreconditionFailed) as caught:
            entities.merge(session, Account, 1, {"owner": "Ada"}, if_match=sent)
        errors.append(caught.value)
        for error in errors:
            problem = problem_of(error)
            assert problem is not None
            for told in (str(error), problem.content().decode()):
                assert "written since" not in told
                assert "it was updated" not in told
            assert "owner" not in problem.body.get("conflicts", {})
    finally:
        del Account.__problem_fields__  # type: ignore[attr-defined]
