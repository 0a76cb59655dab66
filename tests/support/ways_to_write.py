"""Every way in which a session writes rows, for tests of what is demanded of each write.

A way reads its rows first, lets somebody take away what is demanded (``lose``), perhaps lets
another one change the first row (``moved``), and then writes. It names the classes ``Task``,
``Bug``, ``DemandedList``, ``Plain`` and ``Bare``, which the module of the test gives::

    CASES = over(Task=Task, Bug=Bug, DemandedList=DemandedList, Plain=Plain, Bare=Bare)
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.orm import Session

from optilock import bulk_update

Lose = Callable[[], None]
#: The classes of whoever asks.
Task: Any = None
Bug: Any = None
DemandedList: Any = None
Plain: Any = None
Bare: Any = None


def several(session: Session, of: Any) -> Any:
    return session.scalars(select(of).order_by(of.id)).all()


def one_row(session: Session, lose: Lose, moved: Lose) -> None:
    task = session.get_one(Task, 1)
    lose()
    task.title = "mine"


def a_batch(session: Session, lose: Lose, moved: Lose) -> None:
    tasks = several(session, Task)
    lose()
    for task in tasks:
        task.title = "mine"


def one_delete(session: Session, lose: Lose, moved: Lose) -> None:
    task = session.get_one(Task, 1)
    lose()
    session.delete(task)


def a_batch_of_deletes(session: Session, lose: Lose, moved: Lose) -> None:
    tasks = [task for task in several(session, Task) if type(task) is Task]
    lose()
    for task in tasks:
        session.delete(task)


def a_delete_with_dependents(session: Session, lose: Lose, moved: Lose) -> None:
    listed = session.get_one(DemandedList, 1)
    lose()
    session.delete(listed)


def only_an_ignored_column(session: Session, lose: Lose, moved: Lose) -> None:
    task = session.get_one(Task, 1)
    lose()
    task.views = 7


def only_an_ignored_column_of_a_child(session: Session, lose: Lose, moved: Lose) -> None:
    bug = session.get_one(Bug, 9)
    lose()
    bug.seen = 7


def one_row_of_compared_values(session: Session, lose: Lose, moved: Lose) -> None:
    plain = session.get_one(Plain, 1)
    lose()
    plain.size = 7


def a_batch_of_compared_values(session: Session, lose: Lose, moved: Lose) -> None:
    found = several(session, Plain)
    lose()
    for plain in found:
        plain.size = 7


def a_joined_child(session: Session, lose: Lose, moved: Lose) -> None:
    bug = session.get_one(Bug, 9)
    lose()
    bug.cause = "mine"


def rows_without_a_version(session: Session, lose: Lose, moved: Lose) -> None:
    bare = session.get_one(Bare, 1)
    lose()
    bare.title = "mine"


def an_update_statement(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.execute(update(Task).where(Task.id < 5).values(title="mine"))


def an_update_by_key(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.execute(update(Bare), [{"id": 1, "title": "mine"}])


def a_delete_statement(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.execute(delete(Bare).where(Bare.id < 5))


def a_bulk_update(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    rows = [{"id": 1, "version": 1, "title": "mine"}, {"id": 2, "version": 1, "title": "mine"}]
    bulk_update(session, Task, rows)


def an_update_of_a_table(session: Session, lose: Lose, moved: Lose) -> None:
    table = Task.__table__
    lose()
    session.execute(update(table).where(table.c.id < 5).values(title="mine"))


def an_update_of_a_table_without_a_version(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.execute(update(Bare.__table__).values(title="mine"))


def an_update_of_a_table_of_compared_rows(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.execute(update(Plain.__table__).values(size=7))


def an_update_of_the_table_of_a_child(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.execute(update(Bug.__table__).values(seen=7))


def a_delete_of_a_table(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.execute(delete(Bare.__table__).where(Bare.id == 1))


def an_update_on_the_connection(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.connection().execute(update(Task.__table__).values(title="mine"))


def a_delete_on_the_connection(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.connection().execute(delete(Bare.__table__).where(Bare.id < 5))


def updates_on_the_connection(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    one = update(Bare.__table__).where(Bare.id == bindparam("row")).values(title=bindparam("new"))
    rows = [{"row": 1, "new": "mine"}, {"row": 3, "new": "mine"}]
    session.connection().execute(one, rows)


def mappings_by_key(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.bulk_update_mappings(Task, [{"id": 1, "version": 1, "title": "mine"}])


def mappings_by_key_without_a_version(session: Session, lose: Lose, moved: Lose) -> None:
    lose()
    session.bulk_update_mappings(Bare, [{"id": 1, "title": "mine"}])


def saved_objects(session: Session, lose: Lose, moved: Lose) -> None:
    bare = session.get_one(Bare, 1)
    lose()
    bare.title = "mine"
    session.bulk_save_objects([bare])


def a_row_that_has_moved(session: Session, lose: Lose, moved: Lose) -> None:
    task = session.get_one(Task, 1)
    moved()
    lose()
    task.title = "mine"


_WAYS = [
    one_row,
    a_batch,
    one_delete,
    a_batch_of_deletes,
    a_delete_with_dependents,
    only_an_ignored_column,
    only_an_ignored_column_of_a_child,
    one_row_of_compared_values,
    a_batch_of_compared_values,
    a_joined_child,
    rows_without_a_version,
    an_update_statement,
    an_update_by_key,
    a_delete_statement,
    a_bulk_update,
    an_update_of_a_table,
    an_update_of_a_table_without_a_version,
    an_update_of_a_table_of_compared_rows,
    an_update_of_the_table_of_a_child,
    a_delete_of_a_table,
    an_update_on_the_connection,
    a_delete_on_the_connection,
    updates_on_the_connection,
    mappings_by_key,
    mappings_by_key_without_a_version,
    saved_objects,
    a_row_that_has_moved,
]


#: One of each form in which writes are sent.
FORMS = {
    "one_row",
    "a_batch",
    "a_batch_of_deletes",
    "only_an_ignored_column",
    "a_joined_child",
    "an_update_statement",
    "a_bulk_update",
    "an_update_on_the_connection",
    "mappings_by_key",
    "a_row_that_has_moved",
}


def forms(cases: list[Any]) -> list[Any]:
    """The cases; those that send what another one sends as well wait for ``--full``."""
    return [
        case if case.__name__ in FORMS else pytest.param(case, marks=pytest.mark.full)
        for case in cases
    ]


def over(**classes: type) -> list[Any]:
    """The ways, with these classes."""
    return [FunctionType(one.__code__, {**globals(), **classes}, one.__name__) for one in _WAYS]
