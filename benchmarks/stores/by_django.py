"""Django's ORM in three ways, without a project: it is set up in the process that measures.

``filter(pk=..., version=...).update(...)``, which is what its users write by hand;
``select_for_update()``; and django-concurrency, whose version field checks each ``save()``.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from sqlalchemy import make_url

from benchmarks.stores.again import Conflict, again
from benchmarks.stores.kinds import Kind
from benchmarks.stores.rows import Raise, Work

__all__ = ["Checked", "Concurrency", "Locking"]

T = TypeVar("T")

_ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}
_LABEL = "benchmarks"


def _set_up(url: str) -> None:
    """One connection for this process, which stays open."""
    import django
    from django.conf import settings

    if settings.configured:
        return
    place = make_url(url)
    backend = place.get_backend_name()
    if backend == "mysql":
        import pymysql

        pymysql.install_as_MySQLdb()
    host = place.query.get("host") or place.query.get("unix_socket") or place.host or ""
    port = place.query.get("port") or place.port or ""
    database = {
        "ENGINE": f"django.db.backends.{_ENGINES[backend]}",
        "NAME": place.database,
        "USER": place.username or "",
        "HOST": host,
        "PORT": str(port),
        "CONN_MAX_AGE": None,
    }
    settings.configure(
        DATABASES={"default": database}, INSTALLED_APPS=[], DEFAULT_AUTO_FIELD=_AUTO, USE_TZ=True
    )
    django.setup()


_AUTO = "django.db.models.AutoField"


@functools.cache
def _model(kind: Kind, *, concurrency: bool) -> Any:
    from django.db import models

    def version() -> Any:
        if not concurrency:
            return models.IntegerField(default=1)
        from concurrency.fields import AutoIncVersionField

        return AutoIncVersionField()

    columns: dict[str, Any] = {"id": models.AutoField(primary_key=True)}
    columns |= {name: models.IntegerField() for name in kind.numbers}
    columns |= {name: models.CharField(max_length=100) for name in kind.texts}
    if kind.versioned:
        columns["version"] = version()
    # Two classes of one name may not be in one application.
    name = f"{'Concurrency' if concurrency else 'Plain'}{kind.name.title().replace('_', '')}"
    meta = {"app_label": _LABEL, "db_table": kind.name, "managed": False}
    given = {"__module__": __name__, "Meta": type("Meta", (), meta), **columns}
    return type(name, (models.Model,), given)


class _Rows:
    """Rows of Django's connection."""

    concurrency = False

    def read(self, kind: Kind, key: int) -> Any:
        return _model(kind, concurrency=self.concurrency).objects.get(pk=key)

    def edit(self, kind: Kind, key: int) -> Any:
        return self.read(kind, key)

    def sure(self, kind: Kind, key: int) -> Any:
        return self.edit(kind, key)

    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        for name, value in values.items():
            setattr(row, name, value)
        row.save(update_fields=[*values])

    def raise_by(self, *raises: Raise) -> None:
        rows = [self.edit(each.kind, each.key) for each in raises]
        for row, (kind, _, column, amount) in zip(rows, raises, strict=True):
            self.set(kind, row, **{column: getattr(row, column) + amount})

    def add(self, kind: Kind, **values: Any) -> None:
        _model(kind, concurrency=self.concurrency).objects.create(**values)


class _CheckedRows(_Rows):
    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        rows = _model(kind, concurrency=False).objects
        found = rows.filter(pk=row.pk, version=row.version)
        if not found.update(version=row.version + 1, **values):
            raise Conflict

    def raise_by(self, *raises: Raise) -> None:
        from django.db.models import F

        for kind, key, column, amount in raises:
            changed = {column: F(column) + amount, "version": F("version") + 1}
            _model(kind, concurrency=False).objects.filter(pk=key).update(**changed)


class _LockedRows(_Rows):
    def edit(self, kind: Kind, key: int) -> Any:
        return _model(kind, concurrency=False).objects.select_for_update().get(pk=key)


class _ConcurrencyRows(_Rows):
    concurrency = True

    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        for name, value in values.items():
            setattr(row, name, value)
        row.save()  # with update_fields it would not look at the version


class _Django:
    """``transaction.atomic()`` in a loop."""

    rows: type[_Rows]

    def __init__(self, url: str, *, at_once: bool = False) -> None:
        _set_up(url)
        self._at_once = at_once

    def run(self, work: Work[T]) -> T:
        return again(lambda: self._attempt(work), on=self._conflicts(), at_once=self._at_once)

    look = run

    def _attempt(self, work: Work[T]) -> T:
        from django.db import transaction

        with transaction.atomic():
            return work(self.rows())

    def _conflicts(self) -> tuple[type[Exception], ...]:
        return (Conflict,)

    def close(self) -> None:
        from django.db import connection

        connection.close()


class Checked(_Django):
    """``filter(pk=..., version=...).update(...)``."""

    rows = _CheckedRows


class Locking(_Django):
    """``select_for_update()``."""

    rows = _LockedRows


class Concurrency(_Django):
    """django-concurrency: ``AutoIncVersionField``."""

    rows = _ConcurrencyRows

    def _conflicts(self) -> tuple[type[Exception], ...]:
        from concurrency.exceptions import RecordModifiedError

        return (RecordModifiedError,)
