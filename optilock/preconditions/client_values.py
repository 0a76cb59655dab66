"""Names, keys and values that a client sends, checked before a database sees them.

A client names columns of a row, to change them or to say which values it has
seen. The primary key, the version and the discriminator are refused, as is any other name, with
:class:`~optilock.errors.BadEntity`. The same error refuses a value that its column cannot hold
(:mod:`optilock._columns.values`; the database of the session adds its own limits). A key that no
row can have is treated as the key of a missing row, without a question to the database.

A form sends texts. An untouched field comes back with CR and LF where LF is stored, as ``"2"`` for
2, and as ``""`` for NULL. :func:`normal_values` brings each text to the type of its column
(:mod:`optilock._columns.form_texts`) before anything is compared, so that an untouched field is no
change. A text that differs gets the line
ends of the stored one (:mod:`optilock.resolvers.diff3`). A text that no value of the column has is
left as it is, for :func:`refuse_unfit` to refuse; so are JSON and the application's own types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.types import TypeEngine

from optilock._columns.form_texts import value_of_text
from optilock._columns.identities import identity_given, unfit_key
from optilock._columns.values import can_hold, describe_accepted, surely_holds
from optilock._mapped import Identity, facts
from optilock._undocumented.connections import type_on
from optilock._undocumented.mappers import names_in_composite
from optilock._watched.rows.entries import detached_copy
from optilock._watched.rows.stored import Values
from optilock._watched.session.connections import engine_to_write
from optilock.dialects import database_of
from optilock.errors import BadEntity, ConfigurationError, NotFound
from optilock.resolvers.diff3 import normalize_line_ends, restore_line_ends
from optilock.serialize import DEEPEST, PLAIN, is_too_deep

#: The types that a body, a form, or a model that has read one of them gives its values.
_OF_CLIENTS: tuple[Any, ...] = (*PLAIN, list, tuple, dict, set, bytearray, timedelta, Enum)
#: Characters of a name in a message.
_LONGEST = 200


def check_names(mapper: Mapper[Any], given: Any, what: str) -> None:
    """Check the names in ``given``; ``what`` is ``"changed"`` or ``"seen"``.

    Raises:
        BadEntity: a client cannot use one of the names, a value is nested too deeply, or ``given``
            is no mapping.
    """
    cls = mapper.class_.__name__
    if not isinstance(given, Mapping):
        raise BadEntity(
            f"What is {what} of {cls} comes as a mapping of attributes to values,"
            f" {{'title': 'New'}}, and not as {type(given).__name__}. Nothing was read.",
            detail="What was sent is no object of names and values.",
        )
    editable = facts(mapper).editable
    for name, value in given.items():
        refuse_deep(mapper, name, value)
        if isinstance(name, str) and name in editable:
            continue
        reason = reason_to_refuse(mapper, name)
        if reason is not None:
            raise BadEntity(
                f"{cls}.{str(name)[:_LONGEST]} cannot be {what}: {reason}. Nothing was read."
                f" Columns that can be: {', '.join(sorted(_editable(mapper)))}.",
                (str(name),),
                detail="What was sent has a name that is unknown, or not to be written.",
            )


def refuse_deep(mapper: Mapper[Any], name: object, value: object) -> None:
    """Refuse lists and objects inside each other that are too many for Python.

    Raises:
        BadEntity: the value is nested too deeply.
    """
    if is_too_deep(value):
        raise BadEntity(
            f"A value of {mapper.class_.__name__} is nested more than {DEEPEST} levels deep."
            " Nothing was written.",
            (str(name),),
            detail="A value that was sent is nested too deeply.",
        )


def _editable(mapper: Mapper[Any]) -> Iterable[str]:
    return (one.key for one in mapper.column_attrs if reason_to_refuse(mapper, one.key) is None)


def reason_to_refuse(mapper: Mapper[Any], name: Any) -> str | None:
    """Return why a client cannot name the attribute; ``None`` if it can."""
    if isinstance(name, str) and name in facts(mapper).editable:
        return None
    if not isinstance(name, str) or name not in mapper.attrs:
        return "there is no such mapped attribute"
    if name in mapper.composites:
        return None
    if name in mapper.synonyms:
        return reason_to_refuse(mapper, mapper.synonyms[name].name)
    if name not in mapper.column_attrs:
        return "it is a relationship, and other rows are edited with their own versions"
    columns = mapper.column_attrs[name].columns
    if not set(columns).isdisjoint(mapper.primary_key):
        return "it is the primary key, by which the row is found"
    if facts(mapper).version in {*columns}:
        return "it is the version, which moves by itself"
    if mapper.polymorphic_on in {*columns}:
        return "it is the discriminator, which names the row's class"
    return "it is computed, and not written"


def columns_of(mapper: Mapper[Any], name: str) -> list[str]:
    """Return the attributes of the columns behind a name."""
    if name in facts(mapper).editable:
        return [name]
    if name in mapper.composites:
        return names_in_composite(mapper, name)
    return [mapper.synonyms[name].name if name in mapper.synonyms else name]


def values_by_column(mapper: Mapper[Any], given: Mapping[str, Any]) -> Values:
    """Return the given values as an entry has them: attribute of a column -> a copied value."""
    return {
        name: detached_copy(value, name)
        for named, whole in given.items()
        for name, value in _parts(mapper, named, whole)
    }


def _parts(mapper: Mapper[Any], name: str, value: Any) -> Iterator[tuple[str, Any]]:
    names = columns_of(mapper, name)
    if name not in mapper.composites:
        yield names[0], value
    elif value is None:
        yield from ((one, None) for one in names)
    elif hasattr(value, "__composite_values__"):
        yield from zip(names, value.__composite_values__(), strict=False)
    elif is_dataclass(value):
        yield from zip(names, (getattr(value, one.name) for one in fields(value)), strict=False)


# -- keys and values -------------------------------------------------------------------------------


def refuse_unfit(session: Session, mapper: Mapper[Any], name: str, value: Any) -> None:
    """Refuse a value that the column of the attribute cannot hold.

    Raises:
        BadEntity: the column cannot hold it.
    """
    column = facts(mapper).columns[name]
    kind = column.type
    if value is None:
        if not column.nullable and not kind.should_evaluate_none:
            raise BadEntity(
                f"{mapper.class_.__name__}.{name} cannot be null. Nothing was written.",
                (name,),
                detail="A value that was sent is null, and cannot be.",
            )
        return
    if surely_holds(value, kind) or _holds(session, mapper, value, kind):
        return
    if not isinstance(value, _OF_CLIENTS):
        raise ConfigurationError(
            f"{mapper.class_.__name__}.{name} got a value of type {type(value).__name__}, which no"
            " client can send, and its column cannot hold: convert it before, for example with"
            " str(). Nothing was written."
        )
    raise BadEntity(
        f"{mapper.class_.__name__}.{name} takes {describe_accepted(kind)}, and something else was"
        f" sent: a value of type {type(value).__name__} that the column cannot hold. Nothing was"
        " written.",
        (name,),
        detail="A value that was sent is of another kind, too long, or out of range.",
    )


def key_of_row(session: Session, call: str, mapper: Mapper[Any], key: Any) -> Identity:
    """Return the key of a row, given to the function ``call``.

    Raises:
        NotFound: no row of the class can have the key.
        ConfigurationError: there are more values than columns, or fewer.
    """
    identity = identity_given(call, mapper, key)
    refuse_impossible_key(session, mapper, identity)
    return identity


def refuse_impossible_key(session: Session, mapper: Mapper[Any], identity: Identity) -> None:
    """Refuse a key that no row can have, without asking the database.

    Raises:
        NotFound: no row can have the key.
    """
    if _unfit(session, mapper, identity) is not None:
        raise NotFound(mapper.class_, identity)


def refuse_unfit_key(session: Session, mapper: Mapper[Any], identity: Identity | None) -> None:
    """Refuse a new row's key that no row can have; ``None`` stands for one of the database.

    Raises:
        BadEntity: no row can have the key.
    """
    name = None if identity is None else _unfit(session, mapper, identity)
    if name is not None:
        raise unfit_key(mapper, name)


def _unfit(session: Session, mapper: Mapper[Any], identity: Identity) -> str | None:
    for column, value in zip(mapper.primary_key, identity, strict=True):
        kind = column.type
        if not surely_holds(value, kind) and not _holds(session, mapper, value, kind):
            return facts(mapper).names[column]
    return None


def _holds(session: Session, mapper: Mapper[Any], value: Any, kind: TypeEngine[Any]) -> bool:
    dialect = engine_to_write(session, mapper).dialect
    kind = type_on(kind, dialect)
    return can_hold(value, kind, database_of(dialect).values.limits(dialect), dialect)


# -- texts of a form -------------------------------------------------------------------------------

_UNKNOWN: Any = object()


def normal_values(
    mapper: Mapper[Any], given: Values, stored: Values, seen: Values | None = None
) -> Values:
    """Return the values of ``given``, attribute of a column -> value, as the columns have them.

    Args:
        stored: the values of the row, or those that the client had loaded.
        seen: the values that the client had loaded, if known: a NULL that comes back as an empty
            text is no change.
    """
    columns = facts(mapper).columns
    return {
        name: _normal(columns[name], value, stored.get(name), (seen or {}).get(name, _UNKNOWN))
        if name in columns and isinstance(value, str)
        else value
        for name, value in given.items()
    }


def _normal(column: sa.Column[Any], text: str, stored: Any, seen: Any) -> Any:
    if isinstance(column.type, sa.JSON):
        return text
    known = stored if seen is _UNKNOWN else seen
    if text == "" and seen is None and isinstance(column.type, sa.String):
        return None
    found = value_of_text(column, text, known)
    if found is not text:
        return known if type(found) is type(known) and found == known else found
    if isinstance(known, str):
        return _with_line_ends(text, stored, known)
    return normalize_line_ends(text) if isinstance(column.type, sa.String) else text


def _with_line_ends(text: str, stored: Any, known: str) -> str:
    """Return the known text if only the line ends differ; otherwise the text with its line ends."""
    if normalize_line_ends(text) == normalize_line_ends(known):
        return known
    return restore_line_ends(text, stored if isinstance(stored, str) else "", known)
