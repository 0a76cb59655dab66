"""The values that a client wants stored: their names are checked, omitted ones get their value.

A body is a mapping of attributes to values, of plain columns only. Another name is the client's
mistake (:class:`~optilock.errors.BadEntity`), and so is NULL for a column that takes none.

An *omitted* attribute means one thing in each operation. A new row gets the column's default, or
NULL. A merge leaves the column as it is. A replacement resets it to its default, or to NULL; an
``onupdate`` of the class counts for it as for any UPDATE, and the database's own columns
(``Computed``, ``Identity``, ``FetchedValue``) stay the database's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session

from optilock._columns.values import surely_holds
from optilock._mapped import HINT_ADD_TOKEN, facts
from optilock._mapping.moves import version_from
from optilock._undocumented.connections import default_in_ddl
from optilock._undocumented.mappers import keep_with_mapping
from optilock._watched.aggregates import roots_of
from optilock._watched.session.record import is_watched
from optilock._watched.statements.by_key import refuse_compared
from optilock._watched.statements.version import class_stands_still
from optilock._watched.writes.answers import default_values
from optilock.errors import BadEntity, ConfigurationError, short_text
from optilock.preconditions.client_values import reason_to_refuse, refuse_deep, refuse_unfit
from optilock.serialize import PLAIN, is_expression

Values = dict[str, Any]


def values_by_attribute(mapper: Mapper[Any], call: str, values: Any, session: Session) -> Values:
    """Return the values by attribute.

    Raises:
        BadEntity: a name is no column that can be written, or its column cannot hold a value.
        ConfigurationError: a value is SQL.
    """
    cls = mapper.class_.__name__
    if not isinstance(values, Mapping):
        raise BadEntity(
            f"{cls} takes an object of names and values, not {type(values).__name__}.",
            detail="What was sent is no object of names and values.",
        )
    found: Values = {}
    known = facts(mapper)
    for name, value in values.items():
        if not isinstance(name, str) or name not in known.editable:
            name = _renamed(mapper, name)
        if type(value) in PLAIN and surely_holds(value, known.columns[name].type):
            found[name] = value  # nearly always
            continue
        if is_expression(value):
            raise ConfigurationError(
                f"entities.{call}() got SQL as the value of {cls}.{name}: an entity carries values."
                " Use update() with optilock.statements.unchanged(). Nothing was sent."
            )
        refuse_deep(mapper, name, value)
        refuse_unfit(session, mapper, name, value)
        found[name] = value
    return found


def _renamed(mapper: Mapper[Any], name: Any) -> str:
    """Return the attribute that another name stands for.

    Raises:
        BadEntity: it stands for none that can be written.
    """
    why = _why_not(mapper, name)
    if why is None:
        return mapper.synonyms[name].name
    known = facts(mapper)
    raise BadEntity(
        f"{mapper.class_.__name__} cannot be written with {short_text(name)}: {why}. There are:"
        f" {', '.join(sorted(known.editable.intersection(known.columns)))}. Nothing was sent.",
        (str(name),),
        detail="What was sent has a name that is unknown, or not to be written.",
    )


def _why_not(mapper: Mapper[Any], name: Any) -> str | None:
    if isinstance(name, str) and name in mapper.composites:
        return "it is made of several columns: name each of them"
    return reason_to_refuse(mapper, name)


def check_new_row(mapper: Mapper[Any], values: Values) -> None:
    """Check the values of a new row.

    Raises:
        BadEntity: a column that must have a value is omitted.
    """
    _require(mapper, (c for n, c in _others(mapper, values) if not _has_default(c)))


def _has_default(column: sa.Column[Any]) -> bool:
    return column.default is not None or column.server_default is not None


def reset_values(
    mapper: Mapper[Any], connect: Callable[[], sa.Connection], values: Values
) -> tuple[Values, dict[str, sa.ColumnElement[Any]]]:
    """Return what a replacement stores in columns that ``values`` omit: values, and SQL.

    ``connect`` gives the connection that writes the row, for defaults that depend on it.

    Raises:
        BadEntity: a column that must have a value is omitted.
    """
    if values.keys() >= facts(mapper).editable:
        return {}, {}  # none is omitted
    others = [(name, facts(mapper).columns[name]) for name in reset_attributes(mapper, values)]
    if not others:
        return {}, {}
    _require(mapper, (c for _, c in others if not _has_default(c)))
    connection = connect()
    params = {facts(mapper).columns[name].key: value for name, value in values.items()}
    made = default_values((column for _, column in others), connection, params)
    plain: Values = {}
    computed: dict[str, sa.ColumnElement[Any]] = {}
    for name, column in others:
        if column.key in made:
            plain[name] = made[column.key]
        elif column.default is not None:
            default: Any = column.default
            if default.is_clause_element:
                computed[name] = default.arg
        elif column.server_default is None:
            plain[name] = None
        else:
            computed[name] = _default_in(column, connection)
    return plain, computed


def reset_attributes(mapper: Mapper[Any], values: Values) -> list[str]:
    """Return the attributes that a replacement resets, because ``values`` omit them."""
    return [
        name
        for name, column in _others(mapper, values)
        if column.onupdate is None
        and column.server_onupdate is None
        and (column.server_default is None or isinstance(column.server_default, sa.DefaultClause))
    ]


def _default_in(column: sa.Column[Any], connection: sa.Connection) -> sa.ColumnElement[Any]:
    """Return the default as CREATE TABLE has it."""
    return sa.literal_column(f"({default_in_ddl(column, connection.dialect)})", column.type)


def _others(mapper: Mapper[Any], values: Values) -> list[tuple[str, sa.Column[Any]]]:
    """Return the columns that a client may name and has omitted."""
    known = facts(mapper)
    return [
        (name, column)
        for name, column in known.columns.items()
        if name not in values and name in known.editable and column.identity is None
    ]


def _require(mapper: Mapper[Any], columns: Iterable[sa.Column[Any]]) -> None:
    missing = [facts(mapper).names[one] for one in columns if not one.nullable]
    if missing:
        raise BadEntity(
            f"{mapper.class_.__name__} needs {', '.join(missing)}, which cannot be null and has no"
            " default. Nothing was sent.",
            missing,
            detail="What was sent lacks values that are needed.",
        )


def sets_ignored_only(mapper: Mapper[Any], values: Mapping[str, Any]) -> bool:
    """Return whether these are ``__version_ignore__`` columns only, so that the version stays."""
    known = facts(mapper)
    return bool(values) and all(known.columns[name] in known.ignored for name in values)


def version_from_values(mapper: Mapper[Any], call: str, values: Values, *, whole: bool) -> Any:
    """Return the version if it is made from the values of the row; ``None`` if it stays.

    ``whole``: an omitted attribute gets its default, or NULL.

    Raises:
        ConfigurationError: a value that the version is made from is unknown here.
    """
    known = facts(mapper)
    if not known.by_values or known.kind is None:
        return None
    read = {name for name in known.kind.reads if name in known.columns}
    if call == "merge" and read.isdisjoint(values):
        return None
    if whole:
        values = {**{n: None for n in read if not _has_default(known.columns[n])}, **values}
    missing = read - values.keys()
    if missing:
        raise ConfigurationError(
            f"entities.{call}({mapper.class_.__name__}): the version is made from the values of"
            f" the row ({type(known.kind).__name__}), and {', '.join(sorted(missing))} is not among"
            " those that are given: name all of them, or use optilock.apply(). Nothing was sent."
        )
    return version_from(mapper, values)


# -- classes that entity operations cannot write ---------------------------------------------------

_KEPT = "_optilock_entity"
_INSTEAD = "Use optilock.apply(), or change the object in a session. Nothing was sent."


def mapper_of(model: Any, call: str) -> Mapper[Any]:
    """Return the mapper of a class whose rows the operation ``call`` can write.

    Raises:
        ConfigurationError: it cannot write them; the message names what to use instead.
    """
    mapper = sa.inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise ConfigurationError(f"entities.{call}() takes a mapped class, not {model!r}.")
    why = _why_not_stored(mapper) or _why_no_version(mapper, call)
    if why is not None:
        raise ConfigurationError(f"entities.{call}({model.__name__}): {why}")
    if facts(mapper).compares:
        refuse_compared(mapper, f"entities.{call}()")
    return mapper


def _why_not_stored(mapper: Mapper[Any]) -> str | None:
    """Return why one statement cannot find or write a row; the reason is kept."""
    kept = mapper.__dict__.get(_KEPT)
    if kept is None:
        kept = keep_with_mapping(mapper, _KEPT, (_why_not_in_one_row(mapper),))
    return kept[0]


def _why_not_in_one_row(mapper: Mapper[Any]) -> str | None:
    known = facts(mapper)
    if not known.token:
        return f"the class has no version, so it has no ETag: {HINT_ADD_TOKEN}."
    if known.maps_a_select or known.table_if_any is None:
        return f"the class is mapped to a SELECT, and its rows are stored elsewhere. {_INSTEAD}"
    if any(len(one.tables) > 1 for one in mapper.self_and_descendants):
        return (
            "its rows may be in several tables (joined inheritance), which one statement cannot"
            f" write. {_INSTEAD}"
        )
    if mapper.polymorphic_on is not None and not _is_mapped(mapper):
        return f"the discriminator of its classes is not a column. {_INSTEAD}"
    return None


def _why_no_version(mapper: Mapper[Any], call: str) -> str | None:
    """Return why one statement cannot move the versions that must move."""
    deletes = call == "delete"
    if facts(mapper).by_application and not deletes:
        return (
            "your program makes the versions of the class (Manual), and an entity operation has no"
            f" place for the next one. {_INSTEAD}"
        )
    roots = roots_of(mapper, by_links=deletes)
    if roots:
        return (
            f"its rows are parts of another ({', '.join(roots)}), whose version has to move as well"
            f" and which one statement cannot write. {_INSTEAD}"
        )
    if call.startswith("insert_or_") and mapper.single:
        return (
            "rows of other classes are in its table, and the key may be that of one. Use insert(),"
            " and where it raises AlreadyExists, replace() or merge(). Nothing was sent."
        )
    return None


def _is_mapped(mapper: Mapper[Any]) -> bool:
    column = mapper.polymorphic_on
    return isinstance(column, sa.Column) and column in facts(mapper).columns.values()


def refuse_no_bump(session: Session, mapper: Mapper[Any], call: str) -> None:
    """Refuse to write inside a ``no_bump`` block.

    Raises:
        ConfigurationError: there is such a block for rows of the class.
    """
    if is_watched(session) and class_stands_still(session, mapper):
        raise ConfigurationError(
            f"entities.{call}({mapper.class_.__name__}) is refused inside of no_bump(), which keeps"
            " versions as they are: an entity that was written has another tag. Write it outside of"
            " the block."
        )
