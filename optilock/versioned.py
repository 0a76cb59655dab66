"""The mixin that gives a model its version.

::

    class Account(Versioned, Base):
        __tablename__ = "accounts"
        id: Mapped[int] = mapped_column(primary_key=True)
        balance: Mapped[int]

From then on every UPDATE and DELETE of an account says ``WHERE version = ?``, and moves the
version. The class may choose:

``__version_token__``
    another token or name: ``Unique()``, ``Counter(name="revision", column="rev_no")``
``__version_ignore__``
    attributes that neither move the version nor conflict (a view counter). Lost updates on them
    become legal: that is what ignoring means.
``__on_conflict__``
    the resolver for rows of this class, unless the unit of work names one

The mixin stands on either side of the declarative base, on the base itself, on dataclass
mappings, SQLModel tables and imperative mappings: it works by the mapper's events, so a
``__mapper_args__`` of the class cannot switch it off. The mapper carries SQLAlchemy's own
``version_id_col``, so even a plain ``Session`` still notices a lost update.

The version belongs to the library: assigning it raises ``ConfigurationError``. Loading,
``refresh``, ``merge``, pickling and ``set_committed_value`` go on working.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sqlalchemy import Column, Table, event
from sqlalchemy.orm import InstrumentedAttribute, Mapper

from optilock.entry import Entry
from optilock.errors import ConfigurationError
from optilock.originals import keep_originals
from optilock.resolvers import Resolution, Resolver, check_resolver_for
from optilock.tokens import Counter, Token

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapped

__all__ = ["Versioned", "ignored_columns", "token_attribute"]


class ResolverObject(Protocol):
    """A resolver that is no function, such as ``per_field(...)``.

    A type checker takes a function in a class for a method, and an object for what it is.
    """

    def __call__(self, entry: Entry[Any], /) -> Resolution | Awaitable[Resolution]: ...


class Versioned:
    """Mixin: rows of the class carry a concurrency token that every write checks and moves."""

    __version_token__: ClassVar[Token] = Counter()
    __version_ignore__: ClassVar[Collection[str]] = ()
    __on_conflict__: ClassVar[Resolver | ResolverObject | None] = None

    if TYPE_CHECKING:
        version: Mapped[Any]


def token_attribute(mapper: Mapper[Any]) -> str | None:
    """The attribute that holds the version of ``mapper``'s rows, if they have one."""
    if mapper.version_id_col is None:
        return None
    return mapper.get_property_by_column(mapper.version_id_col).key


def ignored_columns(mapper: Mapper[Any]) -> frozenset[Column[Any]]:
    """Columns of the whole hierarchy that neither move the version nor conflict."""
    return frozenset(
        column
        for member in mapper.base_mapper.self_and_descendants
        for name in getattr(member.class_, "__version_ignore__", ())
        if name in member.column_attrs
        for column in member.column_attrs[name].columns
        if isinstance(column, Column)
    )


class _VersionAttribute(InstrumentedAttribute[Any]):
    """The version on an instance: to be read, not to be assigned.

    Only assignment by name comes through here; loading, ``merge()`` and
    ``set_committed_value()`` speak to the attribute's implementation.
    """

    __slots__ = ()
    inherit_cache = True

    def __set__(self, instance: object, value: Any) -> None:
        raise ConfigurationError(
            f"{type(instance).__name__}.{self.key} is the version of the row and is moved by"
            " optilock alone: assigning it would hide another writer's change. To demand a"
            " version, compare it yourself before you edit; to take over a loaded value, use"
            " sqlalchemy.orm.attributes.set_committed_value()."
        )

    def __delete__(self, instance: object) -> None:
        self.__set__(instance, None)


@event.listens_for(Versioned, "instrument_class", propagate=True)
def _give_token(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Put the version column on the table and name it to the mapper, before it looks at columns."""
    token = cls.__version_token__
    if not isinstance(token, Token):
        raise ConfigurationError(
            f"{cls.__name__}.__version_token__ is {token!r}, which is not a token: write"
            " Counter(), Unique() or another one from optilock.tokens."
        )
    if mapper.inherits is not None and not mapper.concrete and _inherit_token(mapper, cls):
        return
    table = mapper.local_table
    if not isinstance(table, Table):
        raise ConfigurationError(
            f"{cls.__name__} is mapped to {type(table).__name__}, not to a table: Versioned needs"
            " a table that can carry the version column. Map the class to one table."
        )
    if not table.primary_key.columns and not getattr(mapper, "_primary_key_argument", None):
        raise ConfigurationError(
            f"{cls.__name__} has no primary key: a versioned row is found by its key. Mark a column"
            " with primary_key=True."
        )
    column = _token_column(cls, table, token)
    if mapper.version_id_col is not None and mapper.version_id_col is not column:
        raise ConfigurationError(
            f"{cls.__name__} has two version columns: {mapper.version_id_col.key!r} from"
            f" __mapper_args__ and {token.name!r} from Versioned. Remove version_id_col from"
            " __mapper_args__, or name its column in __version_token__."
        )
    mapper.version_id_col = column
    mapper.version_id_generator = token.next


def _inherit_token(mapper: Mapper[Any], cls: type[Any]) -> bool:
    """True when the rows already have the parent's token; a second one is refused."""
    parent = mapper.inherits
    assert parent is not None
    if parent.version_id_col is not None:
        own = cls.__dict__.get("__version_token__")
        if own is not None and own != getattr(parent.class_, "__version_token__", None):
            raise ConfigurationError(
                f"{cls.__name__} has two version columns: __version_token__ = {own!r} beside the"
                f" one it inherits from {parent.class_.__name__}. Set the token on"
                f" {parent.class_.__name__} only."
            )
        return True
    if mapper.local_table is parent.local_table:
        raise ConfigurationError(
            f"{cls.__name__} shares the table of {parent.class_.__name__}, which is not"
            f" Versioned: put the mixin on {parent.class_.__name__}."
        )
    return False


def _token_column(cls: type[Any], table: Table, token: Token) -> Column[Any]:
    """The token's column: the one the class has declared, or a new one."""
    name = token.column or token.name
    for column in table.columns:
        if column.name == name:
            if not token.accepts(column):
                raise ConfigurationError(
                    f"{cls.__name__}: the column {table.name}.{name} is of type"
                    f" {column.type!r}, which {type(token).__name__} cannot use. Remove the"
                    f" declaration, or give the token another name:"
                    f" __version_token__ = {type(token).__name__}(name='row_version')."
                )
            return column
    column = token.new_column()
    table.append_column(column)
    return column


@event.listens_for(Versioned, "after_mapper_constructed", propagate=True)
def _check_class(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse what cannot work while the class is being mapped, and close the attribute."""
    key = _check_token_attribute(mapper, cls)
    if isinstance(cls.__version_ignore__, str):
        raise ConfigurationError(
            f"{cls.__name__}.__version_ignore__ is a text, not a collection of names: write"
            f" __version_ignore__ = ({cls.__version_ignore__!r},)."
        )
    for name in cls.__version_ignore__:
        if name == key:
            raise ConfigurationError(
                f"{cls.__name__}.__version_ignore__ names {name!r}, which is the version itself:"
                " remove it."
            )
        if name not in mapper.columns:  # column_attrs would configure all mappers, too early
            raise ConfigurationError(
                f"{cls.__name__}.__version_ignore__ names {name!r}, which is not a column"
                f" attribute. It has: {', '.join(sorted(mapper.columns.keys()))}."
            )
    if cls.__on_conflict__ is not None:
        check_resolver_for(cls.__on_conflict__, cls, frozenset(mapper.columns.keys()) - {key})
    attribute = cls.__dict__.get(key)
    if type(attribute) is InstrumentedAttribute:
        attribute.__class__ = _VersionAttribute
    keep_originals(mapper, cls)


def _check_token_attribute(mapper: Mapper[Any], cls: type[Any]) -> str:
    column = mapper.version_id_col
    assert isinstance(column, Column)
    try:
        key = token_attribute(mapper)
    except Exception as error:
        raise ConfigurationError(
            f"{cls.__name__}: the version column {column.key!r} is excluded from"
            " the mapping (include_properties or exclude_properties). Map it."
        ) from error
    wanted = cls.__version_token__.name
    if key != wanted and mapper.inherits is None:
        raise ConfigurationError(
            f"{cls.__name__}: the version column is mapped as {key!r}, but __version_token__ says"
            f" name={wanted!r}. Write name={key!r}, column={column.name!r}."
        )
    assert key is not None
    return key
