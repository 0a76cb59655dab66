"""Primary keys as a client or a program gives them, in one form for each row.

A URL has a key as text, a program has the value itself. A text is accepted if Python or ISO writes
the value so: ``7`` and not ``+7``, ``07``, ``7.0`` or ``" 7"``, which a database or a driver would
also treat as 7. So each row has one key and one ETag, and a row that is named twice is noticed.
Every other text, and a value of another type than the column's, is the key of no row
(:class:`~optilock.errors.NotFound`). For a new row it is the client's mistake
(:class:`~optilock.errors.BadEntity`).

The value of an application's type (``TypeDecorator``) is converted by the type and back. Types that
SQLAlchemy has for one database alone are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator, TypeEngine

from optilock._columns.kinds import ANY, read_key
from optilock._columns.values import describe_accepted
from optilock._mapped import Identity, facts
from optilock._undocumented.connections import variants_of
from optilock._undocumented.mappers import keep_with_mapping
from optilock.errors import BadEntity, ConfigurationError, NotFound

#: Of these a database takes no two values for the same key that differ here.
_EXACT = (sa.Integer, sa.Numeric, sa.Float, sa.Boolean, sa.Enum, sa.Date, sa.Uuid)
#: Whole numbers of one database alone.
_NUMBERS = {"OID", "YEAR"}
_KEPT = "_optilock_key"


def identity_given(call: str, mapper: Mapper[Any], key: Any) -> Identity:
    """Return the key that the function ``call`` got, in the order of the key's columns.

    Raises:
        NotFound: no row has such a key.
        ConfigurationError: there are more values than columns, or fewer.
    """
    known = _key_of(mapper)
    if known.is_number and type(key) is int:
        return (key,)  # nearly always
    given = _parts(call, mapper, key)
    try:
        return tuple(map(_read, known.kinds, given))
    except ValueError:
        raise NotFound(mapper.class_, given) from None


def identity_of_new_row(call: str, mapper: Mapper[Any], key: Any) -> Identity:
    """Return the key of a new row.

    Raises:
        BadEntity: no row can have such a key.
        ConfigurationError: there are more values than columns, or fewer.
    """
    found = []
    for name, kind, value in zip(
        facts(mapper).keys, _key_of(mapper).kinds, _parts(call, mapper, key), strict=True
    ):
        try:
            found.append(_read(kind, value))
        except ValueError:
            raise unfit_key(mapper, name) from None
    return tuple(found)


def unfit_key(mapper: Mapper[Any], name: str) -> BadEntity:
    """Return the error of a new row's key that no row can have."""
    kind = facts(mapper).columns[name].type
    return BadEntity(
        f"{mapper.class_.__name__}.{name}, a part of the key, takes {describe_accepted(kind)}, and"
        " something else was sent. Nothing was written.",
        (name,),
        detail="A key that was sent is none that this can have.",
    )


def has_one_spelling(mapper: Mapper[Any]) -> bool:
    """Return whether a key that was read equals the key that the database returns of the row.

    Text need not be: a collation, or its type, may ignore case, blanks and more, and a type of the
    application, or of one database, may have one form of several.
    """
    return _key_of(mapper).has_one_spelling


def is_of_texts(mapper: Mapper[Any]) -> bool:
    """Return whether all key columns are exact or texts: equal ETags then mean equal keys."""
    return _key_of(mapper).are_all((*_EXACT, sa.String))


def _forms(kind: TypeEngine[Any]) -> list[TypeEngine[Any]]:
    return [kind, *variants_of(kind)]


def identity_in(mapper: Mapper[Any], identity: Identity, stored: Mapping[str, Any]) -> Identity:
    """Return the key as the database has returned it, from the ``stored`` values of the row."""
    keys = zip(facts(mapper).keys, identity, strict=True)
    return tuple(stored.get(name, value) for name, value in keys)


class _Key:
    """The columns of a primary key."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self.kinds = tuple(column.type for column in mapper.primary_key)
        #: It is one column of whole numbers, so an ``int`` is the identity.
        self.is_number = len(self.kinds) == 1 and isinstance(self.kinds[0], sa.Integer)
        self.has_one_spelling = self.are_all(_EXACT)

    def are_all(self, families: tuple[type[Any], ...]) -> bool:
        """Return whether all columns are of these types, with each database."""
        return all(isinstance(form, families) for kind in self.kinds for form in _forms(kind))


def _key_of(mapper: Mapper[Any]) -> _Key:
    record: _Key | None = mapper.__dict__.get(_KEPT)
    return keep_with_mapping(mapper, _KEPT, _Key(mapper)) if record is None else record


def _parts(call: str, mapper: Mapper[Any], key: Any) -> tuple[Any, ...]:
    names = facts(mapper).keys
    if isinstance(key, Mapping):
        given = tuple(key[name] for name in names) if set(key) == set(names) else ()
    else:
        given = tuple(key) if isinstance(key, (tuple, list)) else (key,)
    if len(given) != len(names) or any(value is None for value in given):
        raise ConfigurationError(
            f"{call}() got a primary key that {mapper.class_.__name__} cannot have: give"
            f" {' and '.join(names)}, each with a value, as session.get() takes them."
        )
    return given


def _read(kind: TypeEngine[Any], value: Any) -> Any:
    """The value as the column gives it back.

    Raises:
        ValueError: no row can have it.
    """
    if type(value) is int and isinstance(kind, sa.Integer):
        return value  # nearly always
    variants = variants_of(kind)
    for one in variants:  # the database is unknown
        with suppress(ValueError):
            return _read_as(one, value)
    return _read_as(kind, value)


def _read_as(kind: TypeEngine[Any], value: Any) -> Any:
    if isinstance(kind, TypeDecorator) and not isinstance(kind, sa.Interval):
        return _decorated(kind, value)
    return read_key(value, sa.Integer() if kind.__visit_name__ in _NUMBERS else kind)


def _decorated(kind: TypeDecorator[Any], value: Any) -> Any:
    """Return the value as the type writes and reads it."""
    if type(kind).bind_processor is not TypeDecorator.bind_processor:
        return value
    try:
        if type(kind).process_bind_param is not TypeDecorator.process_bind_param:
            value = kind.process_bind_param(value, ANY)
        value = _read(kind.load_dialect_impl(ANY), value)
        if type(kind).process_result_value is not TypeDecorator.process_result_value:
            value = kind.process_result_value(value, ANY)
    except Exception as error:  # any error of the type for a foreign text
        raise ValueError from error
    return value
