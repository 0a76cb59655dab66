"""Refuse a class that cannot carry a version, while it is being mapped."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Float, Integer, Numeric, Table
from sqlalchemy.ext.declarative import AbstractConcreteBase
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.exc import UnmappedColumnError

from optilock._mapped import facts, opts_out
from optilock._undocumented.mappers import key_of_mapping
from optilock.errors import ConfigurationError
from optilock.resolvers.column_groups import check_declared
from optilock.resolvers.resolution import check_policy
from optilock.resolvers.rules import check_resolver_for
from optilock.tokens import CompareValues, Timestamp, Token
from optilock.tokens.guard_trigger import check_guard


def check_tokens(cls: type[Any]) -> tuple[Token | None, CompareValues | None]:
    """Return the token with a column and the one that compares values; one may be missing.

    Raises:
        ConfigurationError: ``__version_token__`` is not a token, or has two of one kind.
    """
    given = cls.__version_token__
    if given is None:
        return None, None
    tokens = given if isinstance(given, tuple) else (given,)
    for token in tokens:
        _check_kind(cls, token)
    moving = [token for token in tokens if isinstance(token, Token)]
    compared = [token for token in tokens if isinstance(token, CompareValues)]
    if len(moving) > 1 or len(compared) > 1 or not tokens:
        raise ConfigurationError(
            f"{cls.__name__}.__version_token__ is {given!r}: a class has at most one token with a"
            " column, which moves, and at most one CompareValues, which may name many columns:"
            " write (Counter(), CompareValues('status', 'owner_id'))."
        )
    return next(iter(moving), None), next(iter(compared), None)


def _check_kind(cls: type[Any], token: Any) -> None:
    if isinstance(token, (list, set, frozenset)):
        raise ConfigurationError(
            f"{cls.__name__}.__version_token__ is a {type(token).__name__}: write several tokens as"
            " a tuple, (Counter(), CompareValues('status', 'owner_id'))."
        )
    if not isinstance(token, (Token, CompareValues)) or type(token) is Token:
        raise ConfigurationError(
            f"{cls.__name__}.__version_token__ is {token!r}, which is not a token: write"
            " Counter(), Unique() or another one from optilock.tokens."
        )


def check_opt_out(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse ``__version_token__ = None`` for rows that have the version of another class."""
    _check_spelling(cls)
    parent = mapper.inherits
    if parent is not None and not mapper.concrete and facts(parent).guarded:
        raise ConfigurationError(
            f"{cls.__name__}.__version_token__ is None, but its rows are rows of"
            f" {parent.class_.__name__}, which has a version: say None on"
            f" {mapper.base_mapper.class_.__name__}, for all of them, or leave it out."
        )


def check_table(mapper: Mapper[Any], cls: type[Any]) -> Table:
    """Return the table that will carry the version.

    Raises:
        ConfigurationError: the class is not mapped to one table with a primary key.
    """
    table = mapper.local_table
    if issubclass(cls, AbstractConcreteBase):
        raise _union(cls)
    if not isinstance(table, Table):
        raise ConfigurationError(
            f"{cls.__name__} is mapped to {type(table).__name__}, not to a table: Versioned needs"
            " a table that can carry the version column. Map the class to one table."
        )
    if not table.primary_key.columns and not key_of_mapping(mapper):
        raise ConfigurationError(
            f"{cls.__name__} has no primary key: a versioned row is found by its key. Mark a column"
            " with primary_key=True."
        )
    return table


def another_meaning(cls: type[Any], token: Token, column: Column[Any]) -> ConfigurationError:
    """Return the error for a column with the version's name that is not declared as the version."""
    kind = type(token).__name__
    return ConfigurationError(
        f"{cls.__name__} has a column {column.table.name}.{column.name} of its own, and Versioned"
        " would make it the version of the row, which moves with every write and cannot be"
        f" assigned. If it is the version, say so: __version_token__ = {kind}(). If it is something"
        f" else, give the version another name: __version_token__ = {kind}(name='row_version')."
    )


def check_parents(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a parent that writes the table with the version without looking at the version."""
    column: Any = mapper.version_id_col
    for parent in mapper.iterate_to_root():
        if parent.version_id_col is None and column.table in parent.tables:
            raise _union(cls)


def _union(cls: type[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"{cls.__name__} inherits from a class that is mapped to a union of tables"
        " (AbstractConcreteBase): SQLAlchemy writes those tables without looking at the version."
        " Use ConcreteBase, or a parent that is not mapped (__abstract__ = True)."
    )


def check_version_id(
    mapper: Mapper[Any], cls: type[Any], token: Token, column: Column[Any]
) -> None:
    """Refuse SQLAlchemy's own version settings that contradict the mixin."""
    parent = mapper.inherits
    own: Any = mapper.version_id_col
    if own is not None and own is not column and not (parent and own is parent.version_id_col):
        named = own if isinstance(own, str) else own.key
        raise ConfigurationError(
            f"{cls.__name__} has two version columns: {named!r} from"
            f" __mapper_args__ and {token.name!r} from Versioned. Remove version_id_col from"
            " __mapper_args__, or name its column in __version_token__."
        )
    generator = mapper.version_id_generator
    if generator is False or (
        getattr(generator, "__module__", None) != Mapper.__module__
        and not (parent and generator == parent.version_id_generator)
    ):
        raise ConfigurationError(
            f"{cls.__name__} has version_id_generator in __mapper_args__ beside"
            f" {type(token).__name__}() from Versioned: only one can make the versions. Remove"
            " version_id_generator; or leave Versioned out: a watched session guards a class"
            " with version_id_col as it is."
        )


def check_attribute(mapper: Mapper[Any], cls: type[Any], token: Token) -> Column[Any]:
    """Return the version's column: mapped alone to one attribute and loaded with its row.

    Raises:
        ConfigurationError: it is not mapped, shares its attribute with another column, has another
            name than the token, is part of the primary key, deferred or a constructor argument.
    """
    column = mapper.version_id_col
    assert isinstance(column, Column)
    try:
        attribute = mapper.get_property_by_column(column)
    except UnmappedColumnError as error:
        raise ConfigurationError(
            f"{cls.__name__}: the version column {column.key!r} is not mapped: it is excluded by"
            " include_properties or exclude_properties, or the class has something else of that"
            " name, such as a method. Map it, or give the token another name:"
            f" __version_token__ = {type(token).__name__}(name='row_version')."
        ) from error
    key = attribute.key
    others = [other for other in attribute.columns if other is not column]
    if others:
        raise _two_columns(mapper, cls, token, key, others[0])
    if key != token.name and (mapper.inherits is None or mapper.concrete):
        raise ConfigurationError(
            f"{cls.__name__}: the version column is mapped as {key!r}, but __version_token__ has"
            f" name={token.name!r}. Write name={key!r}, column={column.name!r}."
        )
    if column in mapper.primary_key:
        raise ConfigurationError(
            f"{cls.__name__}.{key} is part of the primary key, which names the row and must stay"
            " as it is, while a version moves with every write. Take it out of the primary key, or"
            f" give the token another name: {type(token).__name__}(name='row_version')."
        )
    if attribute.deferred:
        raise ConfigurationError(
            f"{cls.__name__}.{key} is deferred: a version that is read later than its row is"
            " another writer's. Remove deferred=True."
        )
    field = getattr(cls, "__dataclass_fields__", {}).get(key)
    if field is not None and field.init:
        raise ConfigurationError(
            f"{cls.__name__}.{key} would be an argument of the constructor, and the version is"
            " moved by optilock alone. Declare it with mapped_column(init=False), or not at all:"
            " Versioned adds it."
        )
    return column


def _two_columns(
    mapper: Mapper[Any], cls: type[Any], token: Token, key: str, other: Any
) -> ConfigurationError:
    if mapper.inherits is not None and not mapper.concrete:
        return ConfigurationError(
            f"{cls.__name__}.{key} is declared again, as column {other}, and is the version that"
            f" the class inherits from {mapper.inherits.class_.__name__}: give it another name."
        )
    kind = type(token).__name__
    name = "" if key == "version" else f"name={key!r}, "
    return ConfigurationError(
        f"{cls.__name__}.{key} is the column {other.name!r}, but __version_token__ names column"
        f" {mapper.version_id_col.key!r}"  # type: ignore[union-attr]
        f": write __version_token__ = {kind}({name}column={other.name!r})."
    )


def check_options(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse options of the class that name no attribute, or one they cannot apply to."""
    _check_spelling(cls)
    ignored = names_in(cls, "__version_ignore__", "attributes", "views")
    token = check_tokens(cls)[0]
    if ignored and token is not None and token.every_write:
        raise ConfigurationError(
            f"{cls.__name__}.__version_ignore__ is {ignored!r}, but the database moves a"
            f" {type(token).__name__} at every write. Remove __version_ignore__, or use Counter(),"
            " Unique() or Timestamp()."
        )
    for name in ignored:
        check_loosened(mapper, name, "__version_ignore__")
    for name in names_in(cls, "__problem_fields__", "attributes", "title"):
        column_named(mapper, name, f"{cls.__name__}.__problem_fields__ names {name!r}, which is")
    for name in names_in(cls, "__version_repeats__", "attributes", "status"):
        if not facts(mapper).behind(name):
            what = f"{cls.__name__}.__version_repeats__ names {name!r}, which is"
            column_named(mapper, name, what)
    _check_last_change(mapper, cls)
    check_declared(mapper, cls, named_by(mapper, "__version_ignore__"))
    if cls.__version_guard__ is not None:
        check_guard(cls.__version_guard__, token, f"{cls.__name__}.__version_guard__")
    if cls.__on_delete__ is not None:
        check_policy(cls.__on_delete__, f"{cls.__name__}.__on_delete__")
    if cls.__on_conflict__ is not None:
        check_resolver_for(
            cls.__on_conflict__, cls, frozenset(mapper.columns.keys()) - {facts(mapper).token}
        )


#: The options of a class, as the mixin names them.
_OPTIONS = (
    "__version_token__",
    "__version_ignore__",
    "__version_commutes__",
    "__version_repeats__",
    "__version_root_of__",
    "__version_scopes__",
    "__version_guard__",
    "__version_notify__",
    "__merge_together__",
    "__on_conflict__",
    "__on_delete__",
    "__problem_fields__",
    "__version_author__",
    "__version_time__",
)


#: How the options begin that need the mixin.
_FAMILY = "__version_"


def _check_spelling(cls: type[Any]) -> None:
    """Refuse a misspelt option, which otherwise would silently do nothing."""
    for name in (name for base in cls.__mro__ for name in vars(base)):
        if name in _OPTIONS or not name.startswith(("__v", "__on", "__mer", "__pro")):
            continue
        of_family = name.startswith(_FAMILY) and name != "__version__"
        meant = difflib.get_close_matches(name, _OPTIONS, 1, 0 if of_family else 0.85)
        if meant:
            raise ConfigurationError(
                f"{cls.__name__}.{name} is no option of optilock: {meant[0]} was probably meant."
                f" There are: {', '.join(_OPTIONS)}."
            )


def check_without_mixin(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse options of a mapped class that is not ``Versioned``, where they would do nothing.

    Those of an abstract base, or a parent, are for other classes. A class that has no version on
    purpose (``__version_token__ = None``) may get them from a mixin.

    Raises:
        ConfigurationError: the class, or a mixin of its own, has such an option.
    """
    mixins: list[type[Any]] = []
    if not opts_out(cls):
        parents = () if mapper.inherits is None else mapper.inherits.class_.__mro__
        mixins += (b for b in cls.__mro__ if b not in parents and not hasattr(b, "metadata"))
    for name in (name for base in {cls: None, **dict.fromkeys(mixins)} for name in vars(base)):
        if name == "__version__" or getattr(cls, name, ()) is None:
            continue
        if name.startswith("__v") and name not in _OPTIONS:
            _check_spelling(cls)
        elif name.startswith(_FAMILY):
            raise ConfigurationError(
                f"{cls.__name__}.{name} does nothing, because {cls.__name__} is not Versioned. Add"
                f" the mixin, class {cls.__name__}(Versioned, ...), or remove {name}. A class that"
                " has no version on purpose declares __version_token__ = None."
            )


_TIME = "__version_time__"


def _check_last_change(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a ``__version_author__`` or a ``__version_time__`` that is no such attribute."""
    options = {"__version_author__": "updated_by", _TIME: "updated_at"}
    for option, example in options.items():
        name = getattr(cls, option)
        if name is None:
            continue
        if not isinstance(name, str):
            raise ConfigurationError(
                f"{cls.__name__}.{option} is {name!r}: write the name of one attribute as a text,"
                f" for example {option} = {example!r}, or None."
            )
        column = mapper.columns.get(name)
        is_version = column is not None and column is facts(mapper).version
        if is_version and option == _TIME and isinstance(facts(mapper).kind, Timestamp):
            continue
        what = f"{cls.__name__}.{option} names {name!r}, which is"
        column = column_named(mapper, name, what)
        if option == _TIME and not _may_hold_time(column):
            raise ConfigurationError(
                f"{what} of type {column.type!r}: a time is a column of type DateTime."
            )


def _may_hold_time(column: Column[Any]) -> bool:
    try:
        return issubclass(column.type.python_type, datetime)
    except NotImplementedError:  # a type that does not say what it holds
        return True


def column_named(mapper: Mapper[Any], name: str, what: str) -> Column[Any]:
    """Return the column of an attribute that an option names; not of the key or the version.

    ``what`` begins the message of the error.
    """
    # column_attrs would configure all mappers, too early
    column, version = mapper.columns.get(name), facts(mapper).version
    if column is not None and column is version:
        raise ConfigurationError(f"{what} the version itself: remove it.")
    if not isinstance(column, Column):
        columns = mapper.columns.items()
        names = sorted(n for n, c in columns if isinstance(c, Column) and c is not version)
        raise ConfigurationError(f"{what} not a column attribute. It has: {', '.join(names)}.")
    if column in mapper.primary_key:
        raise ConfigurationError(f"{what} the primary key: a row is found by it. Remove it.")
    return column


def check_loosened(mapper: Mapper[Any], name: str, option: str) -> Column[Any]:
    """Return the column for which an option of the class loosens the check.

    Raises:
        ConfigurationError: ``name`` is no column attribute, or the column belongs to a class above
            that does not name it.
    """
    what = f"{mapper.class_.__name__}.{option} names {name!r}, which is"
    column = column_named(mapper, name, what)
    parent = mapper.inherits
    if parent is None or mapper.concrete or name not in parent.columns:
        return column
    if parent.columns[name] is column and name not in named_by(parent, option):
        raise ConfigurationError(
            f"{what} inherited from {parent.class_.__name__}: rows of its other subclasses would"
            f" lose the check as well. Name it in {parent.class_.__name__}.{option}."
        )
    return column


def named_by(mapper: Mapper[Any], option: str) -> set[str]:
    """Return the names that an option has in the class and the classes above it."""
    return {
        name for member in mapper.iterate_to_root() for name in getattr(member.class_, option, ())
    }


def check_root_of(cls: type[Any]) -> None:
    """Refuse a ``__version_root_of__`` that is no collection of names."""
    names_in(cls, "__version_root_of__", "relationships", "lines")


def names_in(cls: type[Any], option: str, what: str, example: str) -> Collection[str]:
    """Return the names in an option of the class; refuse anything but a collection of names."""
    names: Any = getattr(cls, option)
    if isinstance(names, str):
        raise ConfigurationError(
            f"{cls.__name__}.{option} is a text, not a collection of names: write"
            f" {option} = ({names!r},)."
        )
    if isinstance(names, Collection) and all(isinstance(name, str) for name in names):
        return names
    raise ConfigurationError(
        f"{cls.__name__}.{option} is {names!r}: write the names of {what} as texts in a tuple, for"
        f" example {option} = ({example!r},)."
    )


# -- columns to which writers add ------------------------------------------------------------------
#
# class Page(Versioned, Base):
#     __version_commutes__ = ("likes",)
#
# ``page.likes += 1`` alone is written as ``SET likes = likes + 1``, whatever the version is, so it
# never conflicts (:mod:`optilock._watched.guard.sums`). This is right only for columns whose
# writers mean the difference, so the class names each of them. Allowed are numbers that add up
# exactly in any order: integers and ``Numeric``. Sums of floats depend on the order, and "plus" may
# mean anything for a type of the application.

_COMMUTES = "__version_commutes__"


def check_commuting(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a ``__version_commutes__`` with a column to which no write can add.

    Raises:
        ConfigurationError: a name is no column that adds up exactly, or the token cannot move
            without the values of the row, or without the application.
    """
    names = names_in(cls, _COMMUTES, "attributes", "likes")
    if names:
        _check_token(cls)
    for name in names:
        _check_column(mapper, name, check_loosened(mapper, name, _COMMUTES))


def check_composites(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a column of a composite, whose parts belong together.

    Call it once the mappers are configured.
    """
    for group in facts(mapper).together:
        for name in group.intersection(named_by(mapper, _COMMUTES)):
            others = ", ".join(sorted(group - {name}))
            raise _refused(
                mapper, name, f"belongs together with {others}, and no sum knows of those"
            )


def _check_token(cls: type[Any]) -> None:
    token, rule = check_tokens(cls)
    if token is None or rule is not None or token.made_by not in ("python", "database"):
        raise ConfigurationError(
            f"{cls.__name__}.{_COMMUTES} is set beside {cls.__version_token__!r}, and its version"
            " cannot move on from one that was not read: give the class Counter() or Unique()"
            f" alone, or remove {_COMMUTES}."
        )


def _check_column(mapper: Mapper[Any], name: str, column: Column[Any]) -> None:
    version = facts(mapper).version
    if not _adds_up(column.type):
        raise _refused(
            mapper, name, f"is of type {column.type!r}: integers and Numeric add up exactly"
        )
    if column.computed is not None:
        raise _refused(mapper, name, "is computed by the database")
    if column.foreign_keys:
        raise _refused(mapper, name, "is a foreign key, which names a row and is no sum")
    if name in named_by(mapper, "__version_ignore__"):
        raise _refused(mapper, name, "is in __version_ignore__ as well: remove it from one of them")
    if version is not None and column.table is not version.table:
        raise _refused(
            mapper, name, f"is in {column.table.name}, and the version in {version.table.name}"
        )


def _adds_up(kind: Any) -> bool:
    if isinstance(kind, Numeric):
        return bool(kind.asdecimal) and not isinstance(kind, Float)
    return isinstance(kind, Integer)


def _refused(mapper: Mapper[Any], name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{mapper.class_.__name__}.{_COMMUTES} names {name!r}, which {why}. Remove it: then its"
        " writes are checked as any other, and per_field(...=add_delta) can merge them."
    )
