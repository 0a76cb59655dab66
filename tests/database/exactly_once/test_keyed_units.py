"""A key: its work is stored once, its result comes back, and another call under it is refused."""

from __future__ import annotations

import threading
import warnings
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    ConfigurationError,
    Isolation,
    OptilockError,
    UnitOfWork,
    repeatable_read,
    serializable,
    unit_of_work,
)
from optilock.errors import SeparateUnitWarning, TransactionEnded
from optilock.exactly_once import AlreadyDone, KeyInUse, KeyReused, Once, committed
from optilock.tables.names import commit_tokens
from tests.support.ids import told
from tests.support.models import Account

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def increase(session: Session, by: int = 1) -> int:
    account = session.get_one(Account, 1)
    account.balance += by
    return account.balance


def test_a_second_call_with_the_key_gets_the_stored_result_and_runs_nothing(counter, balance):
    bodies = []

    @unit_of_work(counter, exactly_once=lambda order, by: f"order-{order}")
    def pay(session: Session, order: int, by: int) -> dict[str, object]:
        bodies.append(order)
        return {"balance": increase(session, by), "wörds": ["'", "\\", "\u2028", None, True, 1.5]}

    first = pay(7, by=3)
    assert pay(order=7, by=3) == pay(7, 3) == first
    assert first["wörds"] == ["'", "\\", "\u2028", None, True, 1.5]
    assert (pay(8, 3)["balance"], balance(), bodies) == (6, 6, [7, 8])


def test_a_key_of_other_arguments_or_of_another_function_is_refused(counter, balance):
    @unit_of_work(counter, exactly_once="migration-7")
    def one(session: Session, by: int = 1) -> int:
        return increase(session, by)

    @unit_of_work(counter, exactly_once="migration-7")
    def other(session: Session, by: int = 1) -> int:
        return increase(session, by)

    assert one() == one(1) == one(by=1) == 1
    for call in (lambda: one(2), lambda: one(True), lambda: other(), lambda: other(1)):
        with pytest.raises(KeyReused, match="migration-7") as refused:
            call()
        assert refused.value.status == 422
    with pytest.raises(KeyReused), UnitOfWork(counter, exactly_once="migration-7"):
        pass
    assert balance() == 1


def test_of_says_what_must_be_the_same(counter, balance):
    @unit_of_work(
        counter, exactly_once=lambda key, body, trace: Once(key, of={"body": body, "by": 1})
    )
    def pay(session: Session, key: str, body: str, trace: object) -> int:
        return increase(session)

    @unit_of_work(counter, exactly_once=Once(lambda key, trace: key, of=lambda key, trace: key))
    def later(session: Session, key: str, trace: object) -> int:
        return increase(session)

    assert pay("a", "x", object()) == pay("a", "x", object()) == 1
    with pytest.raises(KeyReused):
        pay("a", "y", object())
    assert later("b", object()) == later("b", object()) == 2


def test_a_key_of_one_principal_is_none_of_another(counter, tokens):
    @unit_of_work(counter, exactly_once=lambda user, key: (user, key))
    def pay(session: Session, user: str, key: str) -> str:
        increase(session)
        return user

    assert [pay("ada", "k"), pay("bob", "k"), pay("ada", "k")] == ["ada", "bob", "ada"]
    assert all(token.startswith("#") and "ada" not in token for token in tokens())
    assert len({pay("a", "bc"), pay("ab", "c")}) == 2


def test_without_a_key_this_time_the_function_runs_as_with_true(counter, balance, tokens):
    @unit_of_work(counter, exactly_once=lambda key: key)
    def pay(session: Session, key: str | None) -> object:
        increase(session)
        return object()

    assert pay(None) is not pay(None)
    assert (balance(), [token[0] for token in tokens()]) == (2, ["~", "~"])


def test_a_failure_is_not_remembered(counter, balance, tokens):
    failing = [True]

    @unit_of_work(counter, exactly_once="once")
    def pay(session: Session) -> int:
        done = increase(session)
        if failing:
            raise ValueError(failing.pop())
        return done

    with pytest.raises(ValueError, match="True"):
        pay()
    assert tokens() == {}
    assert (pay(), pay(), balance()) == (1, 1, 1)


@pytest.mark.engines("mariadb")
def test_a_unit_that_fails_after_ddl_is_not_taken_for_done(counter, balance, tokens):
    """DDL commits what came before it, the key among it; the unit can then store nothing more."""
    bodies = []

    @unit_of_work(counter, exactly_once=lambda key: Once(key, of=None))
    def pay(session: Session, key: str) -> None:
        bodies.append(increase(session))
        session.flush()
        session.execute(text("CREATE INDEX made_late ON optilock_commit_tokens (result(9))"))

    with pytest.raises(TransactionEnded, match=r"\(CREATE\)"):
        pay("a")
    for again in (lambda: pay("a"), lambda: committed(counter, "a")):
        with pytest.raises(ConfigurationError, match=r"'a' is in .* without a result"):
            again()
    assert (tokens()["a"].result, bodies, balance()) == (None, [1], 1)


def test_a_keyed_unit_inside_of_itself_is_not_taken_for_done(counter, balance):
    sessions = sessionmaker(counter)
    with (
        pytest.raises(ConfigurationError, match="open around it"),
        UnitOfWork(sessions, exactly_once="k") as session,
    ):
        increase(session)
        with UnitOfWork(sessions, exactly_once="k"):
            pass
    assert balance() == 0


def test_a_block_whose_key_is_done_is_not_run(counter, balance):
    with UnitOfWork(counter, exactly_once="order-4711") as session:
        increase(session)
    with (
        pytest.raises(AlreadyDone, match="order-4711") as done,
        UnitOfWork(counter, exactly_once="order-4711") as session,
    ):
        increase(session)
    assert (done.value.key, done.value.result, balance()) == ("order-4711", None, 1)


@pytest.mark.parametrize("unit", [serializable, repeatable_read, UnitOfWork])
def test_units_at_a_level_take_keys(counter, balance, unit):
    for _ in range(2):
        try:
            with unit(counter, exactly_once="k") as session:
                increase(session)
        except AlreadyDone:
            pass
    assert balance() == 1


@pytest.mark.parametrize("isolation", [None, Isolation.SERIALIZABLE])
def test_of_many_threads_with_one_key_one_runs_and_all_get_its_result(
    counter, database, balance, isolation
):
    engine, bodies, results = database.engine(pool_size=6), [], []

    @unit_of_work(engine, exactly_once="k", isolation=isolation, attempts=20)
    def pay(session: Session) -> int:
        bodies.append(1)
        return increase(session)

    threads = [threading.Thread(target=lambda: results.append(pay())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    assert (results, balance()) == ([1] * 6, 1)


@pytest.mark.engines("postgresql", "mariadb")
def test_a_key_in_an_open_transaction_is_in_use_after_the_wait(counter, database):
    second = database.engine()
    limits = {"mysql": "SELECT @@innodb_lock_wait_timeout"}
    ask = text(limits.get(counter.dialect.name, "SELECT current_setting('lock_timeout')"))
    with UnitOfWork(counter, exactly_once="k") as session:
        increase(session)
        for wait in (0, timedelta(milliseconds=20)):
            with (
                pytest.raises(KeyInUse, match="'k'") as refused,
                UnitOfWork(second, propagation="independent", exactly_once=Once("k", wait=wait)),
            ):
                pass
        with UnitOfWork(
            second, propagation="independent", exactly_once=Once("free", wait=0)
        ) as other:
            limit = other.scalar(ask)
        with second.connect() as connection:
            assert connection.scalar(ask) == limit  # the wait was for the key alone
    assert refused.value.status == 409
    second.dispose()


@pytest.mark.parametrize("propagation", ["independent", "join"])
def test_a_unit_of_its_own_does_not_wait_for_the_key_of_the_unit_around_it(
    counter, database, balance, propagation
):
    other = database.engine()
    sessions = counter if propagation == "independent" else other
    with UnitOfWork(counter, exactly_once="k") as session:
        increase(session)
        with (
            warnings.catch_warnings(action="ignore", category=SeparateUnitWarning),
            pytest.raises(ConfigurationError, match="would wait for ever"),
            UnitOfWork(sessions, exactly_once="k", propagation=propagation),
        ):
            pass
    assert balance() == 1
    other.dispose()


@pytest.mark.engines("sqlite-wal")
def test_on_sqlite_any_writer_of_the_file_has_the_key(counter, database):
    second = database.engine()
    with UnitOfWork(counter) as session:
        increase(session)
        session.flush()
        with (
            pytest.raises(KeyInUse, match="'k'"),
            UnitOfWork(second, propagation="independent", exactly_once=Once("k", wait=0)),
        ):
            pass
    second.dispose()


def test_a_keyed_unit_that_joins_lives_and_dies_with_the_outer_one(counter, balance, tokens):
    sessions = sessionmaker(counter)

    @unit_of_work(sessions, exactly_once=lambda message: f"message-{message}")
    def receive(session: Session, message: int) -> int:
        return increase(session)

    with pytest.raises(ValueError, match="outer"), UnitOfWork(sessions):
        assert receive(1) == 1
        raise ValueError("outer")
    assert tokens() == {}
    with UnitOfWork(sessions) as outer:
        assert [receive(1), receive(1), receive(2)] == [1, 1, 2]  # known in its own transaction
        increase(outer)
    assert (balance(), sorted(tokens())) == (3, ["message-1", "message-2"])
    with UnitOfWork(sessions, exactly_once="block") as session:
        increase(session)
    with UnitOfWork(sessions) as outer:
        increase(outer)
        with pytest.raises(AlreadyDone), UnitOfWork(sessions, exactly_once="block"):
            pass
        with pytest.raises(KeyReused), UnitOfWork(sessions, exactly_once="message-1"):
            pass
    assert balance() == 5  # the outer unit goes on


@pytest.mark.parametrize("propagation", ["join", "savepoint"])
def test_the_key_of_an_open_unit_is_refused_inside_of_it(counter, balance, propagation):
    sessions = sessionmaker(counter)
    with UnitOfWork(sessions, exactly_once="k") as outer:
        increase(outer)
        with (
            pytest.raises(ConfigurationError, match="open around it"),
            UnitOfWork(sessions, exactly_once="k", propagation=propagation),
        ):
            pass
    assert balance() == 1


def test_a_connection_of_binds_is_refused(counter, balance):
    with counter.connect() as connection:
        sessions = sessionmaker(binds={Account: connection})
        with (
            pytest.raises(ConfigurationError, match="bound to a Connection"),
            UnitOfWork(sessions, exactly_once=True) as session,
        ):
            increase(session)
    assert balance() == 0


def test_a_keyed_savepoint_is_undone_with_its_key(counter, balance, tokens):
    sessions = sessionmaker(counter)
    with UnitOfWork(sessions) as outer:
        increase(outer)
        with (
            pytest.raises(ValueError, match="inner"),
            UnitOfWork(sessions, propagation="savepoint", exactly_once="k") as inner,
        ):
            increase(inner)
            raise ValueError("inner")
        with UnitOfWork(sessions, propagation="savepoint", exactly_once="l") as inner:
            increase(inner)
    assert (balance(), list(tokens())) == (2, ["l"])


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["", "x" * 201, "~a", "#a", 7, b"k", None, "a\0b", "\ud800", ("a",), ("", "k"), ("a", 7), []],
    ids=repr,
)
def test_what_cannot_be_a_key_is_refused_before_anything_is_sent(counter, key):
    silent = create_engine("sqlite:////nowhere/at/all.db")  # connecting would fail
    for make in (
        lambda: UnitOfWork(silent, exactly_once=key),
        lambda: Once(key),
        lambda: unit_of_work(silent, exactly_once=lambda: key or "")(lambda session: 1)(),
    ):
        with pytest.raises(ConfigurationError):
            make()


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "1", True])
def test_a_wait_that_is_no_duration_is_refused(wait):
    with pytest.raises(ConfigurationError, match="wait="):
        Once("k", wait=wait)


def test_a_function_makes_keys_for_functions_alone():
    for key in (lambda: "k", Once(lambda: "k")):
        block = unit_of_work(create_engine("sqlite://"), exactly_once=key)
        with pytest.raises(ConfigurationError, match="no arguments"), block:
            pass
        async_block = unit_of_work(_async_engine(), exactly_once=key)
        with pytest.raises(ConfigurationError, match="no arguments"):
            async_block.__aenter__().send(None)


def _async_engine():
    from sqlalchemy.ext.asyncio import create_async_engine

    return create_async_engine("sqlite+aiosqlite://")


def test_arguments_without_a_stable_text_are_refused_before_anything_is_sent():
    silent = create_engine("sqlite:////nowhere/at/all.db")

    @unit_of_work(silent, exactly_once="k")
    def pay(session: Session, order: object) -> None: ...

    for order in (object(), [object()], {"a": Account()}, float):
        with pytest.raises(ConfigurationError, match="of="):
            pay(order)


class Colour(Enum):
    RED = 1


def test_plain_arguments_of_every_kind_are_told_apart(counter):
    made = []

    @unit_of_work(counter, exactly_once="k")
    def pay(session: Session, given: object) -> None: ...

    values = [
        None,
        True,
        1,
        1.0,
        "1",
        b"1",
        Decimal(1),
        UUID(int=1),
        date(2026, 1, 1),
        datetime(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        timedelta(1),
        Colour.RED,
        [1],
        [[1]],
        ["1"],
        {"1": 1},
        {1: "1"},
        {1},
        ["a", "b"],
        ["ab"],
    ]
    from optilock.exactly_once.keys import fingerprint_of

    made = [fingerprint_of("f", value) for value in values]
    assert len({*made}) == len(values)
    assert fingerprint_of("f", {"a": 1, "b": {2, 3}}) == fingerprint_of("f", {"b": {3, 2}, "a": 1})
    assert fingerprint_of("f", 1) != fingerprint_of("g", 1)
    pay(None)
    with pytest.raises(KeyReused):
        pay(0)


@pytest.mark.parametrize(
    "result",
    [(1, 2), {"a": (1,)}, {1: "a"}, date(2026, 1, 1), float("nan"), {1, 2}, b"a", object(), 1j],
    ids=told,
)
def test_a_result_that_json_would_change_is_refused_before_commit(counter, balance, tokens, result):
    @unit_of_work(counter, exactly_once="k")
    def pay(session: Session) -> object:
        increase(session)
        return result

    with pytest.raises(ConfigurationError, match="JSON"):
        pay()
    assert (balance(), tokens()) == (0, {})


def test_what_a_later_call_may_not_read_is_refused(counter, balance, tokens):
    """Arguments and results have one depth, whatever the stack of the caller is."""

    def nested(levels: int) -> Any:
        return [nested(levels - 1)] if levels else 1

    @unit_of_work(counter, exactly_once=lambda value, levels: f"k{levels}")
    def pay(session: Session, value: Any, levels: int) -> Any:
        increase(session)
        return nested(levels)

    assert pay(nested(199), 200) == pay(nested(199), 200) == nested(200)
    for value, levels in ((1, 201), (nested(200), 1)):
        with pytest.raises(ConfigurationError, match="200 "):
            pay(value, levels)
    assert (balance(), [*tokens()]) == (1, ["k200"])


@pytest.mark.parametrize(
    "stored", ["{", "NaN", "[" * 20_000 + "]" * 20_000], ids=["cut", "nan", "deep"]
)
def test_a_stored_result_that_cannot_be_read_runs_nothing_again(counter, balance, stored):
    @unit_of_work(counter, exactly_once="k")
    def pay(session: Session) -> int:
        increase(session)
        return 7

    assert pay() == 7
    with counter.begin() as connection:
        connection.execute(commit_tokens.update().values(result=stored))
    with pytest.raises(ConfigurationError, match="'k' is stored already, and its result cannot be"):
        pay()
    assert balance() == 1


def test_a_result_that_is_too_long_is_refused_before_commit(counter, balance):
    @unit_of_work(counter, exactly_once=lambda length: f"k{length}")
    def pay(session: Session, length: int) -> str:
        increase(session)
        return "x" * length

    assert pay(65_533) == pay(65_533)
    with pytest.raises(ConfigurationError, match="characters"):
        pay(65_534)
    assert balance() == 1


@pytest.mark.parametrize("key", [True, "k"])
def test_an_option_that_leaves_no_room_for_a_token_is_refused(key):
    silent = create_engine("sqlite:////nowhere/at/all.db")
    for unit in (UnitOfWork, unit_of_work):
        with pytest.raises(ConfigurationError, match="exactly_once"):
            unit(silent, exactly_once=key, read_only=True)


@pytest.mark.parametrize("key", [True, "k"])
def test_two_phases_and_foreign_transactions_are_refused_before_anything_is_sent(engine, key):
    silent = create_engine("sqlite:////nowhere/at/all.db")
    with (
        pytest.raises(ConfigurationError, match="twophase"),
        UnitOfWork(sessionmaker(silent, twophase=True), exactly_once=key),
    ):
        pass
    with (
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match="bound to a Connection"),
        UnitOfWork(sessionmaker(connection), exactly_once=key),
    ):
        pass


def test_a_unit_of_two_databases_is_refused_and_stores_nothing(counter, database, balance):
    second = database.engine()
    sessions = sessionmaker(counter)
    with (
        pytest.raises(ConfigurationError, match="second"),
        UnitOfWork(sessions, exactly_once=True) as session,
    ):
        increase(session)
        session.flush()
        session.execute(select(1), bind_arguments={"bind": second})
    assert balance() == 0
    second.dispose()


@pytest.mark.parametrize("key", [True, "k"])
def test_a_missing_table_is_told_before_anything_of_the_unit_is_sent(engine, account, key):
    @unit_of_work(engine, exactly_once=key)
    def pay(session: Session) -> int:
        return increase(session)

    with pytest.raises(ConfigurationError, match="0005"):
        pay()
    with engine.connect() as connection:
        assert connection.scalar(select(Account.balance).where(Account.id == 1)) == 10


def test_true_does_not_join_a_unit_without_it(counter):
    sessions = sessionmaker(counter)

    @unit_of_work(sessions, exactly_once=True)
    def pay(session: Session) -> int:
        return increase(session)

    with pytest.raises(OptilockError), UnitOfWork(sessions):
        with pytest.raises(ConfigurationError, match='propagation="independent"'):
            pay()
        raise OptilockError
    for outer in (True, "k"):
        with UnitOfWork(sessions, exactly_once=outer):
            pay()
