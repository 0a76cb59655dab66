"""Each kind of token in each way to write: a row that changes is in another version."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import bindparam, update
from sqlalchemy.exc import CompileError, NotSupportedError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, OptilockError, UnitOfWork, bulk_update, watch
from tests.support.token_classes import docs, new

DOCS = docs("way")
#: The class, what was read of its row, and what is to be written.
Way = Callable[[Session, Any, Any, dict[str, Any]], None]


def by_row(way: Way) -> Callable[..., None]:
    """A way that only names the key and the version that were read."""

    def write(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
        way(session, of, {"id": 1, "version": seen.version, **values}, values)

    return write


def one_object(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    row = session.get_one(of, 1)
    for name, value in {**values, **by_the_program(of)}.items():
        setattr(row, name, value)


def two_objects(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    one_object(session, of, seen, values)
    row = session.get_one(of, 2)
    for name, value in {**values, **by_the_program(of)}.items():
        setattr(row, name, value)


def an_expression(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    row = session.get_one(of, 1)
    (name,) = values
    for one, value in {**{name: getattr(of, name) + "!"}, **by_the_program(of)}.items():
        setattr(row, one, value)


def a_merged_copy(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    for name, value in {**values, **by_the_program(of)}.items():
        setattr(seen, name, value)
    session.merge(seen)


def saved_objects(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(seen, name, value)
    session.bulk_save_objects([seen])


def saved_as_a_whole(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(seen, name, value)
    session.bulk_save_objects([seen], update_changed_only=False)


def a_statement(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    session.execute(update(of).where(of.id == 1).values({**values, **by_the_program(of)}))


def a_query(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    session.query(of).filter(of.id == 1).update({**values, **by_the_program(of)})


def of_the_table(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    table = of.__table__
    here = {**values, **(by_the_program(of) if "version" in table.c else {})}
    session.execute(update(table).where(table.c.id == 1).values(here))


def of_the_table_many_times(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    table = of.__table__
    here = {**values, **(by_the_program(of) if "version" in table.c else {})}
    new = {name: bindparam(f"new_{name}") for name in here}
    rows = [{"row": 1, **{f"new_{name}": value for name, value in here.items()}}]
    session.execute(update(table).where(table.c.id == bindparam("row")).values(new), rows)


def on_the_connection(session: Session, of: Any, seen: Any, values: dict[str, Any]) -> None:
    table = of.__table__
    here = {**values, **(by_the_program(of) if "version" in table.c else {})}
    session.connection().execute(update(table).where(table.c.id == 1).values(here))


WAYS: dict[str, Any] = {
    "an object": one_object,
    "objects": two_objects,
    "an expression": an_expression,
    "a merged copy": a_merged_copy,
    "bulk_save_objects": saved_objects,
    "bulk_save_objects, all columns": saved_as_a_whole,
    "update by key": by_row(lambda s, of, row, _: s.execute(update(of), [row])),
    "update by key, with values": by_row(
        lambda s, of, row, values: s.execute(
            update(of).values(values), [{"id": 1, "version": row["version"]}]
        )
    ),
    "bulk_update_mappings": by_row(lambda s, of, row, _: s.bulk_update_mappings(of, [row])),
    "bulk_update": by_row(lambda s, of, row, _: bulk_update(s, of, [row])),
    "update()": a_statement,
    "Query.update": a_query,
    "of the table": of_the_table,
    "of the table, a list": of_the_table_many_times,
    "on the connection": on_the_connection,
}


def by_the_program(of: Any) -> dict[str, Any]:
    """The next version, where the program says it."""
    return {"version": uuid.uuid4()} if of.__version_token__.made_by == "application" else {}


#: Ours, SQLAlchemy's and the database's.
REFUSED = (OptilockError, StaleDataError, CompileError, NotSupportedError)
#: Who writes: a watched session, a plain one, and a unit of work.
SESSIONS: dict[str, Callable[[Any], Any]] = {
    "watched": lambda engine: watch(sessionmaker(engine, expire_on_commit=False)).begin(),
    "plain": lambda engine: sessionmaker(engine).begin(),
    "unit": lambda engine: UnitOfWork(sessionmaker(engine)),
}
BY_KEY = ("update by key", "update by key, with values")
BULK = (*BY_KEY, "bulk_update_mappings", "bulk_update")
SAVED = ("bulk_save_objects", "bulk_save_objects, all columns")


STATEMENTS = (
    "update()",
    "Query.update",
    "of the table",
    "of the table, a list",
    "on the connection",
)


def is_refused(kind: str, joined: bool, who: str, way: str) -> bool:
    """What is told to the programmer, before anything is changed."""
    by_key = way in (*BULK, *SAVED)
    if kind == "Hash":  # made from values that these ways do not know
        return by_key or way in ("an expression", *STATEMENTS)
    if kind == "Manual" and (by_key or (who == "plain" and way == "a merged copy")):
        return True  # no place for the next version
    if kind == "Xmin" and (by_key or (joined and way == "a merged copy")):
        return True
    if joined and kind == "Timestamp" and who == "plain" and by_key:
        return True
    return joined and way in ("bulk_update", *STATEMENTS)


def is_left(kind: str, joined: bool, who: str, way: str) -> bool:
    """Known and documented: the program makes the versions, or nobody watches a statement."""
    if kind == "Manual" and (way in SAVED or (who == "plain" and way in BULK)):
        return True
    return who == "plain" and way in STATEMENTS and (joined or kind == "Hash")


def cases() -> Any:
    for kind, of in DOCS.items():
        for model in (of, of.Letter):
            marks = [pytest.mark.engines("postgresql")] if kind == "Xmin" else []
            yield pytest.param(kind, model, id=model.__name__, marks=marks)


@pytest.mark.parametrize("who", SESSIONS)
@pytest.mark.parametrize(("kind", "of"), list(cases()))
@pytest.mark.tenth
def test_whoever_has_read_the_row_is_told(engine, store, tables, kind, of, who):
    """A3"""
    tables(of)
    wrong = []
    for name, way in WAYS.items():
        joined = "to" in of.__table__.c
        told = write(engine, store, of, way, who, "to" if joined else "title")
        if told.startswith("refused: ") and is_refused(kind, joined, who, name):
            continue
        if told != "told" and not is_left(kind, joined, who, name):
            wrong.append(f"{of.__name__} {who} {name}: {told}")
    assert not wrong, "; ".join(wrong)


def write(engine: Any, store: Any, of: Any, way: Way, who: str, name: str) -> str:
    """Somebody reads a row, somebody else writes it, and the first one does so, too."""
    mine = watch(sessionmaker(engine, expire_on_commit=False))
    to = {"to": "old"} if name == "to" else {}
    with sessionmaker(engine).begin() as session:
        for row in session.query(of):
            session.delete(row)
    with mine.begin() as session:
        session.add_all([new(of, id=n, title="old", body="old", **to) for n in (1, 2)])
    with mine() as session:
        seen, read = session.get_one(of, 1), session.get_one(of, 2)
        assert read.version is not None
    with mine() as reader:
        row = reader.get_one(of, 1)
        reader.commit()
        try:
            with SESSIONS[who](engine) as session:
                way(session, of, seen, {name: "theirs"})
        except REFUSED as error:
            refused = str(error)
            with mine() as session:
                stored = session.get_one(of, 1)
                changed = (getattr(stored, name), stored.version) != (
                    getattr(row, name),
                    row.version,
                )
                return f"refused, and changed: {refused}" if changed else f"refused: {refused}"
        for one, value in {name: "mine", **by_the_program(of)}.items():
            setattr(row, one, value)
        try:
            reader.commit()
        except ConcurrencyError as conflict:
            stored_now = conflict.entries[0].database
            return "told" if stored_now[name] != "old" else "nothing was written"
    return "overwritten unseen"
