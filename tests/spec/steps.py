"""What a story's hero does after the conflict, and how a row is written without being read.

EF Core says ``entry.Reload()``, ``entry.OriginalValues.SetValues(...)``; here it is said with
SQLAlchemy's own words. ``docs/coming-from/ef-core.md`` has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, inspect
from sqlalchemy.orm import Session, make_transient_to_detached
from sqlalchemy.orm.attributes import set_committed_value

from optilock import ConcurrencyError

alive = pytest.mark.needs("resolves-in-place")


def go_on(session: Session) -> None:
    """Where the database has ended the transaction, begin the next one."""
    if not session.is_active:
        session.rollback()


def reload(session: Session, obj: Any) -> None:
    """Take what is stored, and drop our edits. MariaDB shows the newest row to a lock only."""
    go_on(session)
    session.refresh(obj, with_for_update=True)


def take(session: Session, obj: Any, values: Mapping[str, Any]) -> None:
    """Hold ``values`` for what was loaded."""
    go_on(session)
    for name, value in values.items():
        set_committed_value(obj, name, value)


def stub(session: Session, model: type[Any], version: Any, **key: Any) -> Any:
    """An object that stands for a row that was seen elsewhere, and is not read again."""
    obj = model(**key)
    make_transient_to_detached(obj)
    session.add(obj)
    set_committed_value(obj, "version", version)
    return obj


def told(session: Session) -> ConcurrencyError:
    """Flush, and give the error: for rows that this transaction had not read.

    Where it had read them the database itself may end it: that is the fixture ``refused``.
    """
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    return caught.value


def statement(engine: Engine, model: type[Any], key: Any, **values: Any) -> None:
    """Another program writes the row by an UPDATE of its own, and commits."""
    table = inspect(model).local_table
    [column] = table.primary_key.columns
    with engine.begin() as connection:
        connection.execute(table.update().where(column == key).values(values))
