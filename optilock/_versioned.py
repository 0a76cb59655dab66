"""The mixin that gives a model its version.

::

    class Account(Versioned, Base):
        __tablename__ = "accounts"
        id: Mapped[int] = mapped_column(primary_key=True)
        balance: Mapped[int]

From then on every UPDATE and DELETE of an account has ``WHERE version = ?`` and moves the version.
:class:`Versioned` lists the options of a class.

Put the mixin on either side of the declarative base, on the base itself, on dataclass mappings,
SQLModel tables or imperative mappings. It uses the mapper's events, so a ``__mapper_args__`` of the
class cannot switch it off. The mapper has SQLAlchemy's own ``version_id_col``, so even a plain
``Session`` detects a lost update.

Assigning the version raises ``ConfigurationError``. Loading, ``refresh``, ``merge``, pickling and
``set_committed_value`` work as usual.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload
from uuid import UUID

from sqlalchemy import Column, Table, event, inspect
from sqlalchemy.orm import Mapper

from optilock._mapped import facts, opts_out
from optilock._mapping import (
    attribute,
    change_notices,
    checks,
    first_versions,
    moves,
    original_values,
    scope_triggers,
    scopes,
    tables,
    triggers,
)
from optilock._undocumented.mappers import load_with_parent
from optilock._watched.aggregates import cover, expect_cover
from optilock._watched.rows.merge import compare_in_merge
from optilock._watched.rows.version_reads import note_reads
from optilock._watched.scopes.flush import move_scopes
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import is_watched, keeps_version
from optilock.errors import ConfigurationError, Entry
from optilock.resolvers.resolution import OnDelete, Resolution, Resolver
from optilock.tokens import CompareValues, Counter, RowVersion, Timestamp, Token, Unique
from optilock.tokens.guard_trigger import GuardTrigger, Policy

if TYPE_CHECKING:
    from sqlalchemy.orm import InstrumentedAttribute

#: An attribute of a version's column that the mixin made, and no class declares.
OWN = "_optilock_own"

K = TypeVar("K", covariant=True)


class ResolverObject(Protocol):
    """A resolver that is an object, not a function, such as ``per_field(...)``.

    A type checker treats a function in a class as a method.
    """

    def __call__(self, entry: Entry[Any], /) -> Resolution | Awaitable[Resolution]: ...


if TYPE_CHECKING:

    class _Has(Protocol[K]):
        """A class that has set ``__version_token__`` to one token of this kind."""

        @property
        def __version_token__(self) -> K: ...

    class _Version:
        """The attribute ``version``: its type follows from the token; the default one counts."""

        @overload
        def __get__(self, instance: None, owner: Any) -> InstrumentedAttribute[Any]: ...
        @overload
        def __get__(self, instance: _Has[Counter | RowVersion], owner: Any) -> int: ...
        @overload
        def __get__(self, instance: _Has[Unique], owner: Any) -> UUID: ...
        @overload
        def __get__(self, instance: _Has[Timestamp], owner: Any) -> datetime: ...
        @overload
        def __get__(self, instance: _Has[Token], owner: Any) -> Any: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> int: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: object, value: Any) -> None: ...


class Versioned:
    """Mixin: rows of the class carry a concurrency token that every write checks and moves.

    ::

        class Account(Versioned, Base): ...

    The token is the attribute ``version``, a number that counts up. The class may choose:

    ``__version_token__``
        another token or name: ``Unique()``, ``Counter(name="revision", column="rev_no")``; or
        several: ``(Counter(), CompareValues("owner_id"))``; or ``None``: rows of this class, and of
        those below it, have no version, though a class above is Versioned
    ``__version_ignore__``
        attributes that neither move the version nor conflict (a view counter); lost updates of
        them are not detected
    ``__version_commutes__``
        attributes that writers add to (likes, a stock): if nothing else of the row changed, the
        difference is written, ``SET likes = likes + 1``, so such writes never conflict
        (:mod:`optilock._mapping.checks`)
    ``__version_repeats__``
        attributes that a later attempt of a retry may set to the same value again, over a change of
        another transaction (a status that several states lead to, ``max(n, 10)``)
    ``__version_root_of__``
        relationships whose rows count as part of this one: see :mod:`optilock._watched.aggregates`
    ``__version_scopes__``
        predicates with a version of their own, ``("room_id", ("room_id", "day"), ())``: every
        insert, delete and change of a row moves those of its scopes
        (:mod:`optilock._mapping.scopes`). ``Booking.scope(room_id=7)`` is one of them
    ``__merge_together__``
        groups of attributes with a rule across them, ``(("start", "end"),)``: no merge joins one of
        our columns with another one of theirs (:mod:`optilock.resolvers.column_groups`)
    ``__on_conflict__``
        the resolver for rows of this class, unless the unit of work names one
    ``__on_delete__``
        how strict a delete is, unless the unit of work sets it: ``OnDelete.IGNORE_GONE``
    ``__version_guard__``
        the reaction of a trigger to an UPDATE by another program that leaves the version as it was:
        ``"bump"`` moves the version, ``"reject"`` refuses the UPDATE; migrations create the trigger
        (:mod:`optilock.alembic.operations`)
    ``__version_notify__``
        ``True``: triggers notify listeners of changed rows, on PostgreSQL (:mod:`optilock.live`)
    ``__problem_fields__``
        attributes whose values a problem document may show to a client
        (:mod:`optilock.web.problems`); none by default
    ``__version_author__``, ``__version_time__``
        the attributes of a row that hold the author and the time of its last change; optilock never
        fills them in. A conflict then has both of the stored row (``entry.changed_by``,
        ``entry.changed_at``), and its message and its problem document show them
    """

    __version_token__: ClassVar[
        Token | CompareValues | tuple[Token | CompareValues, ...] | None
    ] = Counter()
    __version_ignore__: ClassVar[Collection[str]] = ()
    __version_commutes__: ClassVar[Collection[str]] = ()
    __version_repeats__: ClassVar[Collection[str]] = ()
    __version_root_of__: ClassVar[Collection[str]] = ()
    __version_scopes__: ClassVar[Collection[str | tuple[str, ...]]] = ()
    __merge_together__: ClassVar[Collection[Collection[str]]] = ()
    __on_conflict__: ClassVar[Resolver | ResolverObject | None] = None
    __on_delete__: ClassVar[OnDelete | None] = None
    __version_guard__: ClassVar[Policy | None] = None
    __version_notify__: ClassVar[bool] = False
    __problem_fields__: ClassVar[Collection[str]] = ()
    __version_author__: ClassVar[str | None] = None
    __version_time__: ClassVar[str | None] = None

    if TYPE_CHECKING:
        version: _Version
        #: ``Booking.scope(room_id=7)``, of classes with ``__version_scopes__``; any type, because
        #: other classes may have a column of this name.
        scope: Any


@event.listens_for(Versioned, "instrument_class", propagate=True)
def _give_token(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Put the version column on the table and in the mapper, before it reads the columns."""
    if opts_out(cls):
        _leave_out(mapper, cls)
        return
    token, _ = checks.check_tokens(cls)
    if mapper.inherits is not None and not mapper.concrete and _inherit_token(mapper, cls):
        return
    table = checks.check_table(mapper, cls)
    if token is not None:
        column = _token_column(mapper, cls, table, token)
        checks.check_version_id(mapper, cls, token, column)
        triggers.create_with_table(table, column, token)
        if cls.__version_guard__ is not None:
            expected = ExpectedTable(mapper, token, column)
            triggers.guard_with_table(table, lambda: expected.guard)
        if cls.__version_scopes__ and (cls.__version_guard__ is not None or token.has_trigger):
            scope_triggers.create_with_table(mapper, table)
        if cls.__version_notify__:
            change_notices.create_with_table(table)
        mapper.version_id_col = column
        mapper.version_id_generator = token.generator
    if mapper.inherits is None or mapper.concrete:
        mapper.confirm_deleted_rows = True  # without it a stale delete would do nothing, silently
    elif token is not None:
        _load_with_parents(mapper)


def _leave_out(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Leave the class without a version, as it asks."""
    checks.check_opt_out(mapper, cls)
    parent = mapper.inherits
    if mapper.concrete and parent and mapper.version_id_col is parent.version_id_col:
        mapper.version_id_col = None  # SQLAlchemy's answer, and no column of this table


def _inherit_token(mapper: Mapper[Any], cls: type[Any]) -> bool:
    """Return whether the rows already have the parent's token; refuse a second one."""
    parent = mapper.inherits
    assert parent is not None
    if parent.version_id_col is not None or facts(parent).compares:
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


def _load_with_parents(mapper: Mapper[Any]) -> None:
    """Let a query for the parent read the child's version with the row, not later."""
    inline = mapper.polymorphic_load == "inline"
    mapper.polymorphic_load = "inline"
    for parent in tuple(mapper.iterate_to_root())[2 if inline else 1 :]:
        load_with_parent(parent, mapper)


def _token_column(mapper: Mapper[Any], cls: type[Any], table: Table, token: Token) -> Column[Any]:
    """Return the token's column: the one that the class declares, or a new one."""
    name = token.column_name
    kind = type(token).__name__
    for column in table.columns:
        if column.name == name:
            if not token.accepts(column):
                raise ConfigurationError(
                    f"{cls.__name__}: the column {table.name}.{name} is of type"
                    f" {column.type!r}, which {kind} cannot use. Remove the"
                    f" declaration, or give the token another name:"
                    f" __version_token__ = {kind}(name='row_version')."
                )
            if not _is_declared(mapper, cls, column):
                raise checks.another_meaning(cls, token, column)
            token.take(column)
            return column
    if token.name in table.columns:
        raise ConfigurationError(
            f"{cls.__name__}: {token.name!r} is the column {table.columns[token.name].name!r}, but"
            f" __version_token__ names column {name!r}: write __version_token__ ="
            f" {kind}(name={token.name!r}, column={table.columns[token.name].name!r})."
        )
    column = token.new_column()
    token.take(column)
    column.__dict__[OWN] = True
    table.append_column(column)
    return column


def _is_declared(mapper: Mapper[Any], cls: type[Any], column: Column[Any]) -> bool:
    """Return whether the class, or one above it, declares its column ``column`` as the version.

    It does so with ``__version_token__`` or SQLAlchemy's ``version_id_col``. A declaration above
    does not count for an attribute in the body of the class, or of one in between. For a second
    class over the table, the first one has declared it.
    """
    own: Any = mapper.version_id_col
    if own is column or (isinstance(own, str) and own == column.key):
        return True
    if tables.versioned_tables().get(column.table) is column:
        return True
    for one in cls.__mro__:
        if "__version_token__" in vars(one):
            return one is not Versioned
        if column.key in vars(one) or column.key in vars(one).get("__annotations__", ()):
            return False
    raise AssertionError(cls)  # Versioned has a token


@event.listens_for(Versioned, "after_mapper_constructed", propagate=True)
def _check_class(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Check the class while it is being mapped, and register its listeners."""
    if scopes.declare(mapper, cls):
        move_scopes()
    if not opts_out(cls):
        _check_token(mapper, cls)
    if scopes.has_scopes(mapper):
        scopes.note_tables(mapper)


def _check_token(mapper: Mapper[Any], cls: type[Any]) -> None:
    token, rule = checks.check_tokens(cls)
    if token is not None:
        column = checks.check_attribute(mapper, cls, token)
    checks.check_options(mapper, cls)
    checks.check_commuting(mapper, cls)
    checks.check_root_of(cls)
    if cls.__version_root_of__:
        expect_cover()
    tables.share_table(mapper)
    if token is not None:
        tables.register_tables(mapper, column)
        first_versions.write_first_versions()
        if token.made_by == "application":
            attribute.require_assigned(mapper)
        else:
            attribute.refuse_assignment(mapper)
        compare_in_merge(mapper, column)
        moves.move_with_joined(mapper, is_watched, keeps_version)
        if token.every_write:
            moves.require_moves(mapper, token, connection_to_write)
        if token.made_by == "values":
            moves.make_from_values(mapper, token, keeps_version)
    if rule is not None:
        original_values.compare_values(mapper, cls, rule, is_watched)
    original_values.keep_originals(mapper, cls)


@event.listens_for(Mapper, "after_mapper_constructed")
def _check_other_class(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Check a class that may have options, and not the mixin."""
    if not issubclass(cls, Versioned):
        checks.check_without_mixin(mapper, cls)


@event.listens_for(Versioned, "mapper_configured", propagate=True)
def _load_version(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Do the steps that need the whole hierarchy of the class."""
    if scopes.has_scopes(mapper):
        scopes.check_columns(mapper)
    if opts_out(cls):
        return
    if mapper.version_id_col is not None:
        checks.check_parents(mapper, cls)
        moves.check_post_update(mapper, cls)
        moves.move_by_key(mapper)
        attribute.load_always(mapper)
        note_reads(mapper)
    original_values.follow_committed(mapper)
    if cls.__version_commutes__:
        checks.check_composites(mapper, cls)
    if cls.__version_root_of__:
        cover(mapper, cls.__version_root_of__)


# -- the tables that a mapping should have in the database -----------------------------------------
#
# Migrations and checks compare them with the stored tables. They are found through the classes:
# which attributes are ignored, for example, depends on the whole hierarchy of a class.


@dataclass(frozen=True)
class ExpectedTable:
    """The column and triggers that a table with a version should have."""

    mapper: Mapper[Any]
    token: Token
    column: Column[Any]

    @property
    def table(self) -> Table:
        return self.column.table

    @property
    def guard(self) -> GuardTrigger | None:
        """The guard trigger, if the class has ``__version_guard__``.

        It ignores computed columns, which follow from others.
        """
        policy = self.mapper.class_.__version_guard__
        if policy is None:
            return None
        columns = [column for column in self.table.columns if column is not self.column]
        without = facts(self.mapper).ignored
        ignore = [c.name for c in columns if c in without or c.computed is not None]
        return GuardTrigger(
            self.table.name,
            self.token,
            policy,
            tuple(ignore),
            tuple(c.name for c in columns if c.name not in ignore) if ignore else (),
            self.table.schema,
            triggers.keys_without_rowid(self.table),
        )

    @property
    def moves_by_trigger(self) -> bool:
        """Whether a trigger makes the versions."""
        return self.token.has_trigger


def expected_tables(tables: Iterable[Table]) -> dict[Table, ExpectedTable]:
    """Return the tables with the version of a class, and what they should have."""
    wanted = frozenset(tables)
    found: dict[Table, ExpectedTable] = {}
    for mapper in _mappers():
        token = facts(mapper).kind
        column = mapper.version_id_col
        if token is None or not isinstance(column, Column) or column.table not in wanted:
            continue
        found.setdefault(column.table, ExpectedTable(mapper, token, column))
    return found


def is_version(column: Column[Any]) -> bool:
    """Return whether the column is the version of a class."""
    return any(mapper.version_id_col is column for mapper in _mappers())


def is_made_by_mixin(column: Column[Any]) -> bool:
    """Return whether the mixin made this version's column, which no class declares."""
    return OWN in column.__dict__


def _mappers() -> Iterator[Mapper[Any]]:
    """Yield the mappers of all Versioned classes, bases before their subclasses."""
    waiting: list[type[Any]] = [Versioned]
    seen: set[type[Any]] = set()
    for cls in waiting:
        for subclass in cls.__subclasses__():
            if subclass in seen:
                continue
            seen.add(subclass)
            waiting.append(subclass)
            mapper = inspect(subclass, raiseerr=False)
            if isinstance(mapper, Mapper):
                yield mapper
