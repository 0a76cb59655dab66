"""The version on an instance: always loaded with its row, and never assigned.

A row that is read without its version cannot be checked when it is written: the version read later,
at the flush, may already be another writer's. So ``load_only()`` and ``defer()`` keep the version,
as they keep the primary key.

Assigning it is an error, by name, by ``set_attribute()`` (which SQLModel uses) and by
``flag_modified()``, and among the values of ``sqlmodel_update()``, ``model_validate()`` and the
constructor of an SQLModel, unless the application makes the versions (``Manual``); then NULL is the
error.
Loading, ``refresh``, ``merge`` and ``set_committed_value`` go on working.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Mapper

from optilock._mapped import State, facts
from optilock._undocumented.mappers import always_load
from optilock.errors import ConfigurationError


def require_assigned(mapper: Mapper[Any]) -> None:
    """Require the application to assign the version: NULL is refused."""
    cls, key, column = mapper.class_, facts(mapper).token, facts(mapper).version

    def set_version(state: State, value: Any, old: Any, initiator: Any) -> None:
        if value is None and state.key is not None:
            raise _missing(cls, key, "cannot become")

    def remove(state: State, *_: Any) -> None:
        raise _missing(cls, key, "cannot become")

    def before_insert(mapper: Mapper[Any], connection: Any, state: State) -> None:
        if state.dict.get(key) is None:
            raise _missing(cls, key, "is")

    event.listen(getattr(cls, key), "set", set_version, raw=True)
    event.listen(getattr(cls, key), "remove", remove, raw=True)
    if column.default is None and column.server_default is None:
        event.listen(mapper, "before_insert", before_insert, raw=True)


def refuse_assignment(mapper: Mapper[Any]) -> None:
    """Refuse assignments of the version from now on."""
    cls, key = mapper.class_, facts(mapper).token

    def set_version(state: State, value: Any, old: Any, initiator: Any) -> None:
        if state.key is not None or value is not None:  # None: SQLModel fills in its fields
            raise _assigned(cls, key)

    def remove_or_flag(state: State, *_: Any) -> None:
        raise _assigned(cls, key)

    event.listen(getattr(cls, key), "set", set_version, raw=True)
    event.listen(getattr(cls, key), "remove", remove_or_flag, raw=True)
    event.listen(getattr(cls, key), "modified", remove_or_flag, raw=True)
    if hasattr(cls, "sqlmodel_update") and key not in getattr(cls, "model_fields", ()):
        _refuse_in_payloads(cls, key)


def _refuse_in_payloads(cls: Any, key: str) -> None:
    """Refuse the version among values for an SQLModel, which ignores names that are no fields."""
    update, construct, validate = cls.sqlmodel_update, cls.__init__, cls.model_validate.__func__

    @wraps(update)
    def sqlmodel_update(self: Any, obj: Any, **options: Any) -> Any:
        _refuse_key(cls, key, obj, options.get("update"))
        return update(self, obj, **options)

    @wraps(construct)
    def init(self: Any, **values: Any) -> None:
        _refuse_key(cls, key, values)
        construct(self, **values)

    @wraps(validate)
    def model_validate(own: Any, obj: Any, **options: Any) -> Any:
        _refuse_key(cls, key, obj, options.get("update"))
        return validate(own, obj, **options)

    cls.sqlmodel_update = sqlmodel_update
    cls.__init__ = init
    cls.model_validate = classmethod(model_validate)  # type: ignore[arg-type]


def _refuse_key(cls: type[Any], key: str, *given: Any) -> None:
    for one in given:
        names = one if isinstance(one, Mapping) else getattr(one, "model_fields_set", ())
        if key in names and not isinstance(one, cls):
            raise _assigned(cls, key)


def load_always(mapper: Mapper[Any]) -> None:
    """Count the version among the columns that no loader option leaves out.

    SQLAlchemy has no public way to say so. The name is the same from 2.0.20 to 2.1.
    """
    version = facts(mapper).version
    # Of a class that is mapped to a SELECT, the attribute has the column of that.
    always: set[Any] = {*mapper.primary_key, *mapper.get_property_by_column(version).columns}
    if mapper.polymorphic_on is not None:
        always.add(mapper.polymorphic_on)
    always_load(mapper, always)


def _assigned(cls: type[Any], key: str) -> ConfigurationError:
    return ConfigurationError(
        f"{cls.__name__}.{key} is the version of the row and is moved by optilock alone: assigning"
        " it would hide another writer's change. To demand a version, use optilock.expect(); to"
        " take over one that was seen, sqlalchemy.orm.attributes.set_committed_value()."
    )


def _missing(cls: type[Any], key: str, verb: str) -> ConfigurationError:
    return ConfigurationError(
        f"{cls.__name__}.{key} {verb} None, and a row without a version cannot be checked. With"
        f" Manual() the application gives the version: assign {cls.__name__}.{key} before the"
        " object is flushed, or declare the column with default=."
    )
