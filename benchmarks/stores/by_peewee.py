"""peewee, with the check that its documentation shows: UPDATE ... WHERE version = ?"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from sqlalchemy import make_url

from benchmarks.stores.again import Conflict, again
from benchmarks.stores.kinds import Kind
from benchmarks.stores.rows import Raise, Work

__all__ = ["Peewee"]

T = TypeVar("T")

_READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"


def _database(url: str) -> Any:
    import peewee

    place = make_url(url)
    if place.get_backend_name() == "sqlite":
        return peewee.SqliteDatabase(place.database, pragmas={"synchronous": 0}, timeout=5)
    host = place.query.get("host") or place.host
    port = place.query.get("port") or place.port
    given: dict[str, Any] = {"user": place.username, "host": host}
    if port is not None:
        given["port"] = int(str(port))
    if place.get_backend_name() == "postgresql":
        return peewee.PostgresqlDatabase(place.database, prefer_psycopg3=True, **given)
    if "unix_socket" in place.query:
        given["unix_socket"] = place.query["unix_socket"]
    return peewee.MySQLDatabase(place.database, init_command=_READ_COMMITTED, **given)


@functools.cache
def _model(kind: Kind, database: Any) -> Any:
    import peewee

    columns: dict[str, Any] = {"id": peewee.AutoField()}
    columns |= {name: peewee.IntegerField() for name in kind.numbers}
    columns |= {name: peewee.CharField(max_length=100) for name in kind.texts}
    if kind.versioned:
        columns["version"] = peewee.IntegerField(default=1)
    meta = type("Meta", (), {"database": database, "table_name": kind.name})
    return type(kind.name.title(), (peewee.Model,), {"Meta": meta, **columns})


class PeeweeRows:
    """Rows of peewee's connection."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def read(self, kind: Kind, key: int) -> Any:
        return _model(kind, self._database).get_by_id(key)

    sure = edit = read

    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        model = _model(kind, self._database)
        changed = model.update(version=row.version + 1, **values)
        if changed.where(model.id == row.id, model.version == row.version).execute() != 1:
            raise Conflict

    def raise_by(self, *raises: Raise) -> None:
        for kind, key, column, amount in raises:
            model = _model(kind, self._database)
            changed = {column: getattr(model, column) + amount, "version": model.version + 1}
            model.update(**changed).where(model.id == key).execute()

    def add(self, kind: Kind, **values: Any) -> None:
        _model(kind, self._database).insert(**values).execute()


class Peewee:
    """``database.atomic()`` in a loop."""

    def __init__(self, url: str, *, at_once: bool = False) -> None:
        self._database = _database(url)
        self._at_once = at_once
        self._database.connect()

    def run(self, work: Work[T]) -> T:
        def attempt() -> T:
            with self._database.atomic():
                return work(PeeweeRows(self._database))

        return again(attempt, at_once=self._at_once)

    look = run

    def close(self) -> None:
        self._database.close()
