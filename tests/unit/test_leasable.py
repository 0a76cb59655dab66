"""What the mixin ``Leasable`` does to a class, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import uuid
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, create_engine, inspect, select
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, sessionmaker

from optilock import ConfigurationError, Versioned, leases, watch
from optilock._mapped import facts
from optilock._versioned import expected_tables
from optilock.errors import BadPrecondition
from optilock.leases import ENDLESS, Leasable, Lease, LeaseHeld, LeaseLost, LeasePolicy, Name
from optilock.leases.values import milliseconds, new_id
from optilock.tokens import CompareValues, RowVersion

COLUMNS = ["lease_id", "lease_since", "lease_until", "lease_length", "lease_fence", "lease_holder"]


def base() -> Any:
    class Base(DeclarativeBase):
        pass

    return Base


def page(*bases: type, **members: Any) -> Any:
    body = {"__tablename__": "leasable_pages", "id": mapped_column(Integer, primary_key=True)}
    return type("Page", (*(bases or (Leasable, Versioned)), base()), {**body, **members})


def test_the_columns_are_of_the_table_and_of_no_object() -> None:
    page_ = page()
    assert [name for name in page_.__table__.c if name.key in COLUMNS] == [
        page_.__table__.c[name] for name in COLUMNS
    ]
    assert inspect(page_).column_attrs.keys() == ["id", "version"]
    assert not any(hasattr(page_, name) for name in COLUMNS)
    assert {column.key for column in facts(inspect(page_)).ignored} == set(COLUMNS)


def test_subclasses_have_the_columns_of_their_base() -> None:
    page_ = page(kind=mapped_column(Integer), __mapper_args__={"polymorphic_on": "kind"})
    single = type("Single", (page_,), {"__mapper_args__": {"polymorphic_identity": 1}})
    joined = type(
        "Joined",
        (page_,),
        {
            "__tablename__": "joined",
            "id": Column(ForeignKey(page_.id), primary_key=True),
            "__mapper_args__": {"polymorphic_identity": 2},
        },
    )
    for cls in (single, joined):
        assert not set(COLUMNS) & set(inspect(cls).column_attrs.keys())
    assert not set(COLUMNS) & set(joined.__table__.columns.keys())


def test_a_guard_trigger_leaves_them_alone() -> None:
    page_ = page(__version_guard__="reject", text=mapped_column(Integer))
    guard = expected_tables([page_.__table__])[page_.__table__].guard
    assert guard is not None
    assert set(COLUMNS) <= set(guard.ignore)


@pytest.mark.parametrize("token", [RowVersion(xmin=True), RowVersion()])
def test_a_version_that_every_update_moves_is_refused(token: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a RowVersion is moved by every UPDATE"):
        page(__version_token__=token)


def test_compared_values_are_not_those_of_the_lease() -> None:
    page_ = page(__version_token__=CompareValues.all(), text=mapped_column(Integer))
    assert facts(inspect(page_)).comparable == {"text"}


def test_a_column_of_the_class_may_not_be_called_so() -> None:
    with pytest.raises(ConfigurationError, match="has a column 'lease_id' of its own"):
        page(lease_id=mapped_column(Integer))


def test_only_the_class_whose_row_stands_for_the_whole_can_be_leased() -> None:
    page_ = page(Versioned)
    with pytest.raises(ConfigurationError, match="put the mixin on Page"):
        type("Sub", (Leasable, page_), {})


def test_a_subclass_has_the_policy_of_its_base() -> None:
    page_ = page()
    with pytest.raises(ConfigurationError, match="one lease, so say it on Page only"):
        type("Sub", (page_,), {"__lease_policy__": LeasePolicy(longest=90)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"shortest": 0},
        {"shortest": 90},
        {"longest": "60"},
        {"longest_break": -1},
        {"guards": "update"},
        {"guards": ("read",)},
        {"guards": None},
        {"guards": ("update", ["delete"])},
        {"longest": 5e11},
        {"longest": float("nan")},
        {"longest_break": float("inf")},
    ],
)
def test_a_policy_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"LeasePolicy\("):
        LeasePolicy(**wrong)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"write LeasePolicy\("):
        page(__lease_policy__={"longest": 90})


WRONG = [0, 14.9, 61, -1, None, "30", True, float("nan"), 1e400, 10**400]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_duration_beyond_the_limits_is_refused(wrong: Any) -> None:
    policy = LeasePolicy(endless=False)
    with pytest.raises(ConfigurationError, match="15 to 60 seconds"):
        policy.length(wrong)


@pytest.mark.parametrize("wrong", [-1, 61, "10", ENDLESS, True])
def test_a_break_beyond_the_limits_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="after 0 to 60 seconds"):
        LeasePolicy().break_after(wrong)


def test_durations_are_milliseconds() -> None:
    assert (milliseconds(1.5), LeasePolicy().length(ENDLESS)) == (1500, 0)


# -- ids ------------------------------------------------------------------------------------------


def test_ids_have_128_random_bits() -> None:
    ids = [new_id().int for _ in range(200)]
    assert len(set(ids)) == 200
    always_one = always_zero = (1 << 128) - 1
    for one in ids:
        always_one &= one
        always_zero &= ~one
    assert always_one == always_zero == 0


def test_nobody_sees_the_id_of_a_lease_by_accident() -> None:
    secret = new_id()
    lease = Lease(Name("import"), secret, 7)
    shown = repr(lease) + str(lease) + repr([lease])
    assert secret.hex not in shown
    assert str(secret) not in shown
    assert pickle.loads(pickle.dumps(copy.copy(lease.id))) == secret


SENT = [
    "no-id",
    "",
    "0" * 31,
    "0" * 33,
    "x" * 10_000,
    7,
    None,
    b"0" * 32,
    ["0" * 32],
    "0" * 32 + "\n;--",
]


@pytest.fixture
def session() -> Any:
    page_ = page(text=mapped_column(Integer))
    engine = create_engine("sqlite://")
    page_.metadata.create_all(engine)
    with watch(sessionmaker(engine))() as session:
        session.add(page_(id=1, text=1))
        session.commit()
        session.info["page"] = page_
        yield session
    engine.dispose()


@pytest.mark.parametrize("sent", SENT, ids=range(len(SENT)))
def test_what_is_no_id_is_refused_and_not_told(session: Any, sent: Any) -> None:
    of = session.info["page"], 1
    for call in (leases.renew, leases.release, leases.change, leases.use):
        with pytest.raises(BadPrecondition) as raised:
            call(session, of, sent)
        assert raised.value.status == 400
        assert not sent or str(sent) not in str(raised.value)


@pytest.mark.parametrize("of", ["page", 7, None, (int, 7), type, object()])
def test_what_cannot_be_leased_is_refused(session: Any, of: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"leases\.acquire\(\) got"):
        leases.acquire(session, of, 30)
    with pytest.raises(ConfigurationError, match=r"leases\.look\(\) got"):
        leases.look(session, of)


def test_a_class_without_the_mixin_is_told_of_it(session: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"put the mixin optilock\.leases\.Leasable"):
        leases.acquire(session, (page(Versioned), 1), 30)


def test_a_plain_session_cannot_write_under_a_lease(session: Any) -> None:
    with Session() as plain, pytest.raises(ConfigurationError, match=r"optilock\.watch\(\)"):
        leases.use(plain, (session.info["page"], 1), uuid.UUID(int=1))


def test_the_errors_can_be_pickled(session: Any) -> None:
    of = session.info["page"], 1
    leases.acquire(session, of, ENDLESS)
    with pytest.raises(LeaseHeld) as held:
        leases.acquire(session, of, 30)
    with pytest.raises(LeaseLost) as lost:
        leases.renew(session, of, uuid.UUID(int=1))
    for error in (held.value, lost.value):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.status, again.since) == (str(error), 409, error.since)
        holder = session.scalar(select(of[0].__table__.c.lease_id))
        assert holder.hex not in repr(error.__dict__)
        assert str(holder) not in repr(error.__dict__)
