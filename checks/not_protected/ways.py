"""The rows, and each way to write one of them: its author reads, others write, it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ForeignKey, String, delete, event, text, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConcurrencyError, Versioned, bulk_update
from tests.support.repositories import attach_to_session

__all__ = ["WAYS", "Base", "GuardedPage", "Owner", "OwnerOfGuarded", "Page", "Way"]


class Base(DeclarativeBase):
    type_annotation_map = {str: String(60)}


class Owner(Versioned, Base):
    __tablename__ = "written_owners"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class OwnerOfGuarded(Versioned, Base):
    __tablename__ = "written_guarded_owners"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class _Columns:
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str]


class Page(_Columns, Versioned, Base):
    __tablename__ = "written_pages"
    owner = Owner
    owner_id: Mapped[int | None] = mapped_column(ForeignKey(Owner.id, ondelete="SET NULL"))


class GuardedPage(_Columns, Versioned, Base):
    __tablename__ = "written_guarded_pages"
    __version_guard__ = "reject"
    owner = OwnerOfGuarded
    owner_id: Mapped[int | None] = mapped_column(ForeignKey(OwnerOfGuarded.id, ondelete="SET NULL"))


class Visit(Base):
    __tablename__ = "written_visits"
    __version_token__ = None
    id: Mapped[int] = mapped_column(primary_key=True)


#: Takes a factory of sessions, the class, and a function that lets others write meanwhile.
Way = Callable[[Any, type[Any], Callable[[], None]], None]


def _edit(make: Any, model: type[Any], meanwhile: Callable[[], None]) -> None:
    with make() as session:
        row = session.get_one(model, 1)
        meanwhile()
        row.title = "mine"
        session.commit()


def _delete(make: Any, model: type[Any], meanwhile: Callable[[], None]) -> None:
    with make() as session:
        row = session.get_one(model, 1)
        meanwhile()
        session.delete(row)
        session.commit()


def _sent(send: Callable[[Any, type[Any]], object]) -> Way:
    """What the author has read is not in the session that sends."""

    def way(make: Any, model: type[Any], meanwhile: Callable[[], None]) -> None:
        meanwhile()
        with make() as session:
            send(session, model)
            session.commit()

    return way


def _upsert(session: Any, model: type[Any]) -> None:
    name, row = session.get_bind().dialect.name, {"id": 1, "title": "mine"}
    if name in ("mysql", "mariadb"):
        session.execute(mysql.insert(model).values(row).on_duplicate_key_update(title="mine"))
        return
    new = (postgresql if name == "postgresql" else sqlite).insert(model).values(row)
    session.execute(new.on_conflict_do_update(index_elements=["id"], set_={"title": "mine"}))


def _bulk(session: Any, model: type[Any]) -> None:
    result = bulk_update(session, model, [{"id": 1, "version": 1, "title": "mine"}])
    if result.conflicts:
        raise ConcurrencyError(result.conflicts)


def _form(session: Any, model: type[Any]) -> None:
    row = session.get_one(model, 1)
    for name, value in {"title": "mine", "version": 1}.items():
        setattr(row, name, value)


def _copied_and_merged(session: Any, model: type[Any]) -> None:
    row = session.get_one(model, 1)
    row.title = "mine"
    attach_to_session(session, row)


def _by_listener(session: Any, model: type[Any]) -> None:
    def after_insert(mapper: Any, connection: Any, visit: Any) -> None:
        table = model.__table__
        connection.execute(update(table).where(table.c.id == 1).values(title="mine"))

    event.listen(Visit, "after_insert", after_insert)
    try:
        session.add(Visit())
        session.flush()
    finally:
        event.remove(Visit, "after_insert", after_insert)


def _by_another_program(make: Any, model: type[Any], meanwhile: Callable[[], None]) -> None:
    meanwhile()
    with make.kw["bind"].begin() as connection:
        connection.exec_driver_sql(f"UPDATE {model.__tablename__} SET title = 'mine' WHERE id = 1")


def _cascade(make: Any, model: type[Any], meanwhile: Callable[[], None]) -> None:
    with make() as session:
        session.delete(session.get_one(model.owner, 1))
        session.commit()


WAYS: dict[str, Way] = {
    "an edited object, flushed": _edit,
    "a deleted object, flushed": _delete,
    "`bulk_update`": _sent(_bulk),
    "`execute(update(Page), rows)`, by primary key": _sent(
        lambda s, m: s.execute(update(m), [{"id": 1, "version": 1, "title": "mine"}])
    ),
    "`update(Page)`": _sent(
        lambda s, m: s.execute(update(m).where(m.id == 1).values(title="mine"))
    ),
    "`delete(Page)`": _sent(lambda s, m: s.execute(delete(m).where(m.id == 1))),
    "`Query.update()`": _sent(lambda s, m: s.query(m).filter_by(id=1).update({"title": "mine"})),
    "Core: `update(table)`": _sent(
        lambda s, m: s.execute(
            update(m.__table__).where(m.__table__.c.id == 1).values(title="mine")
        )
    ),
    "Core: `delete(table)`": _sent(
        lambda s, m: s.execute(delete(m.__table__).where(m.__table__.c.id == 1))
    ),
    "SQL text: UPDATE": _sent(
        lambda s, m: s.execute(text(f"UPDATE {m.__tablename__} SET title = 'mine' WHERE id = 1"))
    ),
    "SQL text: DELETE": _sent(
        lambda s, m: s.execute(text(f"DELETE FROM {m.__tablename__} WHERE id = 1"))
    ),
    "an upsert that leaves the version": _sent(_upsert),
    "`merge(Page(**payload))`": _sent(lambda s, m: s.merge(m(id=1, title="mine"))),
    "`update()` of advanced-alchemy": _sent(_copied_and_merged),
    "an admin UI whose form has the version": _sent(_form),
    "a listener of a flush, for another row": _sent(_by_listener),
    "another program": _by_another_program,
    "ON DELETE SET NULL of the database": _cascade,
}
