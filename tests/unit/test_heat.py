"""Which rows are hot: values in, values out, and the clock of the test."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from optilock import ConfigurationError, UnitOfWork, events
from optilock.unit import Adaptive
from optilock.unit.heat import Decision, Key, Memory
from optilock.unit.options import Options

ROW, OTHER = Key("db", "accounts", (1,)), Key("db", "accounts", (2,))
GIVEN = Adaptive()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def memory(clock):
    return Memory(clock=clock, chance=lambda least, most: most)


@pytest.fixture
def heard():
    found = []
    events.listen(found.append, written=False)
    yield found
    events.unlisten(found.append)


def conflicts(memory, times=1, key=ROW, given=GIVEN):
    for _ in range(times):
        memory.conflict(key, given, "somebody was first")


def readings(memory, times, key=ROW, given=GIVEN):
    return [memory.decide(key, given) for _ in range(times)]


def test_a_row_without_conflicts_is_not_remembered(memory):
    memory.success(ROW, GIVEN)
    assert memory.decide(ROW, GIVEN) is Decision.PLAIN
    assert len(memory) == 0


def test_one_conflict_makes_a_row_hot_and_no_other(memory):
    conflicts(memory)
    assert memory.decide(ROW, GIVEN) is Decision.LOCK
    assert memory.decide(OTHER, GIVEN) is Decision.WATCHED


def test_a_higher_threshold_takes_more_conflicts(memory):
    given = Adaptive(threshold=0.5)
    conflicts(memory, 3, given=given)
    assert memory.decide(ROW, given) is Decision.WATCHED
    conflicts(memory, given=given)  # 1 - 0.8 ** 4
    assert memory.decide(ROW, given) is Decision.LOCK


def test_now_and_then_a_hot_row_is_probed(memory):
    conflicts(memory)
    found = readings(memory, 200)
    assert 1 <= found.count(Decision.PROBE) <= 4


def test_a_probe_that_has_to_wait_is_due_at_the_next_reading(memory):
    """A unit that has locks begins none."""
    conflicts(memory)
    waits = {memory.decide(ROW, GIVEN, may_probe=lambda: False) for _ in range(3 * GIVEN.probe)}
    assert waits == {Decision.LOCK}
    assert memory.decide(ROW, GIVEN) is Decision.PROBE


def test_each_probe_that_conflicts_makes_probes_rarer_up_to_a_limit(memory):
    conflicts(memory)
    rare = []
    for _ in range(14):
        taken = 1
        while memory.decide(ROW, GIVEN) is Decision.LOCK:
            taken += 1
        conflicts(memory)
        rare.append(taken)
    assert rare == sorted(rare)
    assert rare[-1] == 2048


def test_probes_that_succeed_cool_a_row_and_nothing_else_does_at_once(memory):
    conflicts(memory)
    assert Decision.PLAIN not in readings(memory, 50)
    for _ in range(4):
        memory.success(ROW, GIVEN)  # a probe, or a cold row's write
    assert memory.decide(ROW, GIVEN) is Decision.WATCHED
    for _ in range(120):
        memory.success(ROW, GIVEN)
    assert memory.decide(ROW, GIVEN) is Decision.PLAIN


def test_a_row_cools_down_with_time(memory, clock):
    conflicts(memory, 30)
    clock.now = 3 * GIVEN.seconds
    assert memory.decide(ROW, GIVEN) is Decision.LOCK
    clock.now = 4 * GIVEN.seconds
    assert memory.decide(ROW, GIVEN) is Decision.WATCHED


def test_the_memory_is_bounded_and_forgets_who_was_changed_longest_ago():
    memory = Memory(most=10)
    conflicts(memory)
    for number in range(2, 30):
        conflicts(memory, key=Key("db", "accounts", (number,)))
        conflicts(memory)
    assert len(memory) == 10
    assert ROW in memory.rows
    assert Key("db", "accounts", (2,)) not in memory.rows


def test_events_say_why_a_row_is_hot_and_why_it_is_not_any_more(memory, clock, heard):
    conflicts(memory, 2)
    clock.now = 1000.0
    memory.decide(ROW, GIVEN)
    hot, cold = heard
    assert (type(hot), hot.table, hot.identity) == (events.Hot, "accounts", (1,))
    assert (hot.average, hot.conflicts, hot.because) == (0.2, 1, "somebody was first")
    assert type(cold) is events.Cold
    assert cold.conflicts == 2
    assert "for some time" in cold.because
    assert hot.as_dict()["identity"] == [1]
    assert Key("db", "accounts").identity is None


# -- tables of which many rows are wanted ----------------------------------------------------------

NEW = Key("db", "accounts", (99,))


def conflicts_of_the_table(memory, times=2):
    for number in range(times):
        conflicts(memory, key=Key("db", "accounts", (number,)))


def test_two_rows_that_conflict_make_their_table_hot(memory, heard):
    conflicts(memory)
    assert memory.decide(NEW, GIVEN) is Decision.WATCHED
    heard.clear()

    conflicts(memory, key=OTHER)

    assert memory.decide(NEW, GIVEN) is Decision.LOCK
    assert memory.decide(Key("db", "accounts"), GIVEN) is Decision.PLAIN  # what a query reads
    assert memory.decide(Key("db", "others", (1,)), GIVEN) is Decision.PLAIN
    assert [(event.table, event.identity) for event in heard] == [
        ("accounts", (2,)),
        ("accounts", ()),
    ]
    assert "several of its rows" in heard[1].because


def test_one_hot_row_says_little_of_its_table(memory):
    conflicts(memory, 50)
    assert memory.decide(NEW, GIVEN) is Decision.WATCHED


def test_conflicts_with_many_writes_between_them_say_nothing_of_the_table(memory):
    for number in range(20):
        conflicts(memory, key=Key("db", "accounts", (number,)))
        for _ in range(30):
            memory.success(NEW, GIVEN)
        assert memory.decide(NEW, GIVEN) is not Decision.LOCK


def test_conflicts_of_long_ago_say_nothing_of_the_table(memory, clock):
    for number in range(20):
        conflicts(memory, key=Key("db", "accounts", (number,)))
        clock.now += 2 * GIVEN.seconds
        assert memory.decide(NEW, GIVEN) is not Decision.LOCK


def test_a_hot_table_is_probed_and_is_cold_after_some_probes_that_succeed(memory, heard):
    conflicts_of_the_table(memory)
    taken = 0
    while memory.decide(NEW, GIVEN) is not Decision.PLAIN and taken < 10_000:
        taken += 1
        if memory.decide(NEW, GIVEN) in (Decision.PROBE, Decision.WATCHED):
            memory.success(NEW, GIVEN)
    assert 4 * GIVEN.probe < taken < 30 * GIVEN.probe
    (cold,) = (event for event in heard if isinstance(event, events.Cold))
    assert (cold.table, cold.identity) == ("accounts", ())


def test_a_table_is_probed_no_more_often_than_at_the_beginning(memory):
    conflicts_of_the_table(memory, 20)  # very hot, so that successes do not end it
    for _ in range(20):
        memory.success(NEW, GIVEN)
    readings(memory, 2 * GIVEN.probe, key=NEW)
    assert readings(memory, 20 * GIVEN.probe, key=NEW).count(Decision.PROBE) == 10


def test_probes_of_a_hot_table_that_conflict_become_rare(memory):
    given = Adaptive(weight=0.5)
    for number in range(200):
        conflicts(memory, key=Key("db", "accounts", (number,)), given=given)
    assert readings(memory, 2000, key=NEW, given=given).count(Decision.PROBE) <= 1


def test_a_hot_row_of_a_hot_table_is_read_without_a_lock_only_where_both_say_so(memory):
    conflicts_of_the_table(memory)
    row = Key("db", "accounts", (0,))
    assert readings(memory, 500, key=row).count(Decision.PROBE) < readings(
        memory, 500, key=NEW
    ).count(Decision.PROBE)


def test_a_hot_table_is_forgotten_with_all_else(memory):
    conflicts_of_the_table(memory)
    memory.forget()
    assert memory.decide(NEW, GIVEN) is Decision.PLAIN


# -- deadlocks -------------------------------------------------------------------------------------

PLACES = {ROW: "one", OTHER: "other"}
THIRD = Key("db", "accounts", (3,))


def test_after_a_deadlock_all_of_the_table_is_locked_and_of_no_other(memory):
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    assert readings(memory, 200, key=THIRD) == [Decision.LOCK] * 200
    assert memory.decide(Key("db", "accounts"), GIVEN) is Decision.LOCK  # what a query reads
    assert memory.decide(Key("db", "pages", (3,)), GIVEN) is Decision.PLAIN
    assert memory.decide(Key("elsewhere", "accounts", (3,)), GIVEN) is Decision.PLAIN


def test_in_a_crowded_table_no_hot_row_is_probed(memory):
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    assert Decision.WATCHED not in readings(memory, 5000)


def test_a_table_is_crowded_until_nothing_is_heard_of_deadlocks_for_some_time(memory, clock, heard):
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    clock.now = 3 * GIVEN.seconds
    assert memory.decide(THIRD, GIVEN) is Decision.LOCK
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    clock.now = 6 * GIVEN.seconds
    assert memory.decide(THIRD, GIVEN) is Decision.LOCK
    clock.now = 7 * GIVEN.seconds
    assert memory.decide(THIRD, GIVEN) is Decision.PLAIN
    of_the_table = [event for event in heard if event.identity == ()]
    assert [type(event) for event in of_the_table] == [events.Hot, events.Cold]
    assert all(event.table == "accounts" for event in of_the_table)
    assert "deadlocked" in of_the_table[0].because


def test_what_is_known_of_partners_outlasts_the_crowd(memory, clock):
    """The next deadlock after that is the only one."""
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    memory.deadlock(PLACES, [OTHER, ROW], GIVEN)
    clock.now = 5 * GIVEN.seconds
    assert memory.decide(ROW, GIVEN) is not Decision.LOCK
    assert memory.partners(ROW) == {"one", "other"}


def test_in_a_crowded_table_a_row_does_not_cool_down_by_itself(memory, clock, heard):
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    clock.now = 3 * GIVEN.seconds  # its own average is below the threshold
    assert memory.decide(ROW, GIVEN) is Decision.LOCK
    assert not [event for event in heard if isinstance(event, events.Cold)]


def test_a_crowd_is_over_by_the_limits_of_each_unit(memory, clock):
    brief = Adaptive(half_life=1)
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    clock.now = 5.0
    assert memory.decide(THIRD, brief) is Decision.PLAIN
    assert memory.decide(THIRD, GIVEN) is Decision.LOCK


def test_deadlocks_of_long_ago_prove_nothing(memory, clock):
    for _ in range(20):
        memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
        clock.now += 5 * GIVEN.seconds
    memory.deadlock(PLACES, [OTHER, ROW], GIVEN)
    assert not memory.partners(ROW)


def test_rare_deadlocks_of_one_crowd_are_counted_together(memory, clock):
    """By then the row itself has cooled down."""
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    clock.now += 2 * GIVEN.seconds
    memory.deadlock(PLACES, [OTHER, ROW], GIVEN)
    assert memory.partners(ROW)


def test_of_very_many_rows_the_order_of_the_first_ones_is_remembered(memory):
    keys = [Key("db", "accounts", (number,)) for number in range(5_000)]
    places = {key: key.identity for key in keys}
    memory.deadlock(places, keys, GIVEN)
    memory.deadlock(PLACES, [keys[2], keys[1]], GIVEN)
    assert memory.partners(keys[1])


def test_crowds_are_bounded_too_and_the_first_one_is_forgotten(clock):
    memory = Memory(most=3, clock=clock)
    for number in range(4):
        memory.crowd([Key("db", f"pages_{number}", (1,))], GIVEN, "a deadlock")
    found = [memory.decide(Key("db", f"pages_{number}", (4,)), GIVEN) for number in range(4)]
    assert found == [Decision.PLAIN, *3 * [Decision.LOCK]]


def test_rows_that_deadlock_in_one_order_are_no_partners(memory):
    """The other transactions had not locked them when they read them: it is the crowd's matter."""
    for _ in range(7):
        memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    assert not memory.partners(ROW)
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)  # and if that goes on, it is not
    assert memory.partners(ROW) == memory.partners(OTHER) == {"one", "other"}


def test_rows_that_were_locked_in_two_orders_are_partners_until_they_are_not_needed(memory):
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    assert not memory.partners(ROW)
    memory.deadlock(PLACES, [OTHER, ROW], GIVEN)
    assert memory.partners(ROW) == memory.partners(OTHER) == {"one", "other"}
    for _ in range(8):
        assert memory.partners(ROW)
        memory.dissolve_partners(ROW)
    assert not memory.partners(ROW)
    assert memory.partners(OTHER)
    memory.deadlock(PLACES, [ROW, OTHER], GIVEN)
    assert memory.partners(ROW)  # of the other one it is known what was locked after it


def test_the_order_of_two_rows_is_known_when_others_are_locked_between_them(memory):
    memory.deadlock({**PLACES, THIRD: "third"}, [ROW, THIRD, OTHER], GIVEN)
    memory.deadlock(PLACES, [OTHER, ROW], GIVEN)
    assert memory.partners(ROW) == {"one", "other"}
    assert not memory.partners(THIRD)


def test_threads_may_share_it():
    memory = Memory(most=50)

    def work(number):
        for turn in range(300):
            key = Key("db", "accounts", ((number * turn) % 90,))
            memory.conflict(key, GIVEN, "")
            memory.decide(key, GIVEN)
            memory.success(key, GIVEN)
            memory.deadlock({key: number, ROW: 1}, [key, ROW], GIVEN)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(memory) <= 50


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": 0}, "threshold=0"),
        ({"threshold": 1.5}, "threshold=1.5"),
        ({"threshold": True}, "threshold=True"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"weight": -0.1}, "weight=-0.1"),
        ({"weight": "0.5"}, "weight='0.5'"),
        ({"half_life": 0}, "half_life=0"),
        ({"half_life": timedelta(seconds=-1)}, "half_life"),
        ({"half_life": float("inf")}, "half_life=inf"),
        ({"probe": 0}, "probe=0"),
        ({"probe": 1.5}, "probe=1.5"),
    ],
)
def test_limits_that_cannot_work_are_refused_by_name(options, said):
    with pytest.raises(ConfigurationError, match=said):
        Adaptive(**options)


def test_a_half_life_is_known_in_seconds_however_it_was_given():
    given, same = Adaptive(half_life=timedelta(minutes=1)), Adaptive(half_life=60)
    assert (given.seconds, given, hash(given)) == (60, same, hash(same))
    assert "half_life=datetime.timedelta(seconds=60)" in repr(given)
    assert given != Adaptive()


@pytest.mark.parametrize("strategy", ["pesimistic", True, 0.5, Adaptive, "ADAPTIVE"])
def test_a_strategy_that_nobody_knows_is_refused(strategy):
    with pytest.raises(ConfigurationError, match="is no strategy"):
        Options(strategy=strategy)


@pytest.mark.parametrize("option", ["read_only", "verify_reads"])
def test_what_is_only_read_is_not_locked(option):
    with pytest.raises(ConfigurationError, match=option):
        Options(strategy="pessimistic", **{option: True})
    assert not Options(strategy="adaptive", **{option: True}).locks


def test_the_default_is_adaptive_where_a_unit_is_run_again():
    assert Options().all_parts == Options(strategy="optimistic").all_parts == ()
    assert Options().of_attempts.strategy == "adaptive"
    assert Options(strategy="optimistic").of_attempts.strategy == "optimistic"
    assert not Options(read_only=True).of_attempts.locks


def test_an_inner_unit_has_the_strategy_of_the_outer_one():
    outer = Options(strategy="adaptive")
    Options(strategy="optimistic").require_room_in(outer)
    Options(strategy="adaptive").require_room_in(outer)
    with pytest.raises(ConfigurationError, match="strategy='adaptive'"):
        Options(strategy="pessimistic").require_room_in(outer)
    Options().require_room_in(outer)
    assert UnitOfWork.__signature__.parameters["strategy"].default is None
