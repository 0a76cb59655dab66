"""The scenarios: Hermitage's, those of PostgreSQL's isolation specs that matter here, and one more.

Hermitage is Martin Kleppmann's (https://github.com/ept/hermitage, CC BY 4.0). Its order of steps
and its values are kept; its SELECT and UPDATE statements became objects that are read and changed.
The specs are in ``src/test/isolation/specs`` of PostgreSQL (PostgreSQL License). The order of their
steps is kept; their tables became the rows of :mod:`checks.guarantees.rows`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from sqlalchemy import true

from checks.guarantees.stepping import Criterion, Run, Scenario, Transaction

__all__ = ["HERMITAGE", "SCENARIOS"]

T1, T2, T3 = Transaction("T1"), Transaction("T2"), Transaction("T3")
_value: Criterion = attrgetter("value")


def _everything(model: Any) -> Any:
    return true()


def _first(model: Any) -> Any:
    return model.id == 1


def _value_is(number: int) -> Criterion:
    return lambda model: model.value == number


def _parent_is(number: int) -> Criterion:
    return lambda model: model.parent == number


def _multiple_of(number: int) -> Criterion:
    return lambda model: model.value % number == 0


def _more(number: int) -> Criterion:
    return lambda model: model.value + number


# -- what has happened -----------------------------------------------------------------------------


def _write_cycle(run: Run) -> bool:
    return run.all_committed("T1", "T2") and run.stored not in ({1: 11, 2: 21}, {1: 12, 2: 22})


def _vanished(run: Run) -> bool:
    """T3 has seen a write of T2, and afterwards one of T1 that T2 has overwritten."""
    one, two, two_again, one_again = (run.saw("T3", number) for number in range(4))
    return run.all_committed("T3") and (
        (one == {1: 12} and two == {2: 19})
        or (two == {2: 18} and one_again == {1: 11})
        or (two_again == {2: 18} and one_again == {1: 11})
    )


def _both_saw(*names: str, rows: dict[int, int]) -> Any:
    """Return whether these have committed, and all have read the same rows first."""
    return lambda run: run.all_committed(*names) and all(run.saw(name) == rows for name in names)


def _deleted_over(run: Run) -> bool:
    return _both_saw("T1", "T2", rows={1: 10})(run) and 1 not in run.stored


def _read_skew_of_delete(run: Run) -> bool:
    """T1 has read before T2, and has looked for the rows to delete after it."""
    return run.all_committed("T1", "T2") and run.saw("T1") == {1: 10} and 2 in run.stored


def _deleted_others(run: Run) -> bool:
    """T2 has deleted other rows than those which its query had shown."""
    return run.all_committed("T1", "T2") and {*run.stored} != {1, 2} - {*run.saw("T2")}


def _read_only_anomaly(run: Run) -> bool:
    before = run.saw("T1") == {1: 10, 2: 20}
    return run.all_committed("T1", "T2", "T3") and before and run.saw("T3") == {1: 10, 2: 25}


def _report_missed_a_receipt(run: Run) -> bool:
    closed = run.saw("T3") == {1: 11} and not run.saw("T3", 1)
    return run.all_committed("T1", "T2", "T3") and run.saw("T1") == {1: 10} and closed


def _manager_of_nothing(run: Run) -> bool:
    return run.all_committed("T1", "T2") and run.saw("T1") == {1: 10} and not run.saw("T2")


def _orphan(run: Run) -> bool:
    both = run.all_committed("T1", "T2") and run.saw("T1") == {1: 10} and not run.saw("T2", 1)
    return both and 1 not in run.stored and 3 in run.stored


# -- Hermitage -------------------------------------------------------------------------------------

HERMITAGE = (
    Scenario(
        "G0",
        "dirty write",
        (
            T1.write(1, 11),
            T2.write(1, 12),
            T1.write(2, 21),
            T1.commit(),
            T2.write(2, 22),
            T2.commit(),
        ),
        _write_cycle,
    ),
    Scenario(
        "G1a",
        "aborted read",
        (
            T1.write(1, 101),
            T2.find(_everything),
            T1.rollback(),
            T2.find(_everything),
            T2.commit(),
        ),
        lambda run: run.all_committed("T2") and run.saw("T2")[1] == 101,
    ),
    Scenario(
        "G1b",
        "intermediate read",
        (
            T1.write(1, 101),
            T2.find(_everything),
            T1.write(1, 11),
            T1.commit(),
            T2.find(_everything),
            T2.commit(),
        ),
        lambda run: run.all_committed("T2") and run.saw("T2")[1] == 101,
    ),
    Scenario(
        "G1c",
        "circular flow of information",
        (
            T1.write(1, 11),
            T2.write(2, 22),
            T1.read(2),
            T2.read(1),
            T1.commit(),
            T2.commit(),
        ),
        lambda run: (
            run.all_committed("T1", "T2") and run.saw("T1") == {2: 22} and run.saw("T2") == {1: 11}
        ),
    ),
    Scenario(
        "OTV",
        "observed transaction vanishes",
        (
            T1.write(1, 11),
            T1.write(2, 19),
            T2.write(1, 12),
            T1.commit(),
            T3.read(1),
            T2.write(2, 18),
            T3.read(2),
            T2.commit(),
            T3.read(2),
            T3.read(1),
            T3.commit(),
        ),
        _vanished,
    ),
    Scenario(
        "PMP",
        "phantom",
        (
            T1.find(_value_is(30)),
            T2.add(3, 30),
            T2.commit(),
            T1.find(_multiple_of(3)),
            T1.commit(),
        ),
        lambda run: run.all_committed("T1") and not run.saw("T1") and bool(run.saw("T1", 1)),
    ),
    Scenario(
        "PMP-write",
        "phantom of a DELETE",
        (
            T1.update_where(_everything, _more(10)),
            T2.find(_value_is(20)),
            T2.delete_where(_value_is(20)),
            T1.commit(),
            T2.commit(),
        ),
        _deleted_others,
    ),
    Scenario(
        "P4",
        "lost update",
        (
            T1.read(1),
            T2.read(1),
            T1.write(1, 11),
            T2.write(1, 11),
            T1.commit(),
            T2.commit(),
        ),
        _both_saw("T1", "T2", rows={1: 10}),
    ),
    Scenario(
        "G-single",
        "read skew",
        (
            T1.read(1),
            T2.read(1),
            T2.read(2),
            T2.write(1, 12),
            T2.write(2, 18),
            T2.commit(),
            T1.read(2),
            T1.commit(),
        ),
        lambda run: (
            run.all_committed("T1") and run.saw("T1") == {1: 10} and run.saw("T1", 1) == {2: 18}
        ),
    ),
    Scenario(
        "G-single-predicate",
        "read skew of two queries",
        (
            T1.find(_multiple_of(5)),
            T2.update_where(_value_is(10), lambda model: 12),
            T2.commit(),
            T1.find(_multiple_of(3)),
            T1.commit(),
        ),
        lambda run: (
            run.all_committed("T1") and run.saw("T1").get(1) == 10 and 1 in run.saw("T1", 1)
        ),
    ),
    Scenario(
        "G-single-write",
        "read skew of a DELETE",
        (
            T1.read(1),
            T2.find(_everything),
            T2.write(1, 12),
            T2.write(2, 18),
            T2.commit(),
            T1.delete_where(_value_is(20)),
            T1.commit(),
        ),
        _read_skew_of_delete,
    ),
    Scenario(
        "G2-item",
        "write skew",
        (
            T1.find(lambda model: model.id.in_([1, 2])),
            T2.find(lambda model: model.id.in_([1, 2])),
            T1.write(1, 11),
            T2.write(2, 21),
            T1.commit(),
            T2.commit(),
        ),
        _both_saw("T1", "T2", rows={1: 10, 2: 20}),
    ),
    Scenario(
        "G2",
        "write skew of two phantoms",
        (
            T1.find(_multiple_of(3)),
            T2.find(_multiple_of(3)),
            T1.add(3, 30),
            T2.add(4, 42),
            T1.commit(),
            T2.commit(),
        ),
        _both_saw("T1", "T2", rows={}),
    ),
    Scenario(
        "G2-read-only",
        "anomaly that a reader sees",
        (
            T1.find(_everything),
            T2.write(2, lambda value: value + 5),
            T2.commit(),
            T3.find(_everything),
            T3.commit(),
            T1.write(1, 0),
            T1.commit(),
        ),
        _read_only_anomaly,
    ),
)

# -- PostgreSQL's isolation specs ------------------------------------------------------------------

_SPECS = (
    Scenario(
        "swap",
        "two rules that swap values",
        (
            T1.write_found(_value_is(20), 10),
            T2.write_found(_value_is(10), 20),
            T1.commit(),
            T2.commit(),
        ),
        lambda run: run.all_committed("T1", "T2") and run.stored == {1: 20, 2: 10},
        spec="simple-write-skew",
    ),
    Scenario(
        "report",
        "receipt after the day's report",
        (
            T1.read(1),
            T1.add(3, 4, parent=10),
            T2.write(1, 11),
            T2.commit(),
            T3.read(1),
            T3.find(_parent_is(10)),
            T1.commit(),
            T3.commit(),
        ),
        _report_missed_a_receipt,
        spec="receipt-report",
    ),
    Scenario(
        "manager",
        "project of a former manager",
        (
            T1.read(1),
            T2.find(_parent_is(1)),
            T1.add(3, 101, parent=1),
            T2.write(1, 0),
            T1.commit(),
            T2.commit(),
        ),
        _manager_of_nothing,
        spec="project-manager",
    ),
    Scenario(
        "orphan",
        "child of a deleted row",
        (
            T1.read(1),
            T2.read(1),
            T2.find(_parent_is(1)),
            T1.add(3, 0, parent=1),
            T2.delete(1),
            T1.commit(),
            T2.commit(),
        ),
        _orphan,
        spec="referential-integrity",
    ),
    Scenario(
        "booking",
        "room that is booked twice",
        (
            T1.find(_value_is(13)),
            T2.find(_value_is(13)),
            T1.add(3, 13),
            T2.write(1, 13),
            T1.commit(),
            T2.commit(),
        ),
        _both_saw("T1", "T2", rows={}),
        spec="classroom-scheduling",
    ),
    Scenario(
        "same-key",
        "two rows with one key",
        (
            T1.find(_everything),
            T2.find(_everything),
            T1.add(3, 42),
            T2.add(3, 42),
            T1.commit(),
            T2.commit(),
        ),
        _both_saw("T1", "T2", rows={1: 10, 2: 20}),
        spec="read-write-unique",
    ),
    Scenario(
        "increment",
        "lost increment in SQL",
        (
            T1.update_where(_first, _more(1)),
            T2.update_where(_first, _more(1)),
            T1.commit(),
            T2.commit(),
        ),
        lambda run: run.all_committed("T1", "T2") and run.stored[1] != 12,
        spec="eval-plan-qual",
    ),
)

# -- one more --------------------------------------------------------------------------------------

_DELETE = Scenario(
    "P4-delete",
    "update lost to a DELETE",
    (
        T1.read(1),
        T2.read(1),
        T1.write(1, 11),
        T2.delete(1),
        T1.commit(),
        T2.commit(),
    ),
    _deleted_over,
)

SCENARIOS = {one.key: one for one in (*HERMITAGE, *_SPECS, _DELETE)}
