"""The six operations on one row, and the condition of each.

====================  ==========================================  =================================
operation             the row exists                              it does not
====================  ==========================================  =================================
insert                AlreadyExists (409; 412 with                stored
                      ``if_none_match="*"``)
replace               all columns set, if the version matches     NotFound (404)
merge                 named columns set, if the version matches   NotFound (404)
delete                deleted, if the version matches             NotFound (404)
insert_or_replace     all columns set, in any version             stored
insert_or_merge       named columns set, in any version           stored
====================  ==========================================  =================================

``replace``, ``merge`` and ``delete`` need ``if_match``: a tag, several tags, ``Version(...)``, or
``"*"``, which lets the last writer win. Without it they raise ``PreconditionRequired`` (428);
``if_none_match`` can exclude some of these tags, and is no condition alone. A row in another
version raises ``PreconditionFailed`` (412): its entry has the stored values, and its ``etag`` is
the row's current tag. A missing row is 404 before it is 412. An upsert takes no tag: it is for rows
that the last writer may overwrite. With ``if_none_match="*"`` it only inserts.

A mistake in the condition (``BadPrecondition``, 400) or in the body (``BadEntity``, 400) is found
before any statement is sent, the condition first. An omitted attribute keeps its value in ``merge``
and gets its default, or NULL, in ``replace``; ``None`` is NULL. Each write moves the version, also
a merge of nothing, but not a write of ``__version_ignore__`` columns alone. No object is made, so
validators and events of the class are not called.

With ``idempotency`` a request that is sent again after its answer was lost counts once; see
:mod:`~optilock.entities.idempotency`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from dataclasses import replace as with_
from functools import cached_property, update_wrapper
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.orm import Mapper, Session

from optilock._columns.identities import (
    has_one_spelling,
    identity_given,
    identity_in,
    identity_of_new_row,
    is_of_texts,
)
from optilock._mapped import Identity, facts
from optilock._watched.rows.stored import stored_key
from optilock._watched.session.connections import connection_to_write, given_session
from optilock._watched.session.record import demands_of
from optilock._watched.statements.call import flush_before
from optilock._watched.statements.silent_cascades import refuse_silent_delete
from optilock.conditions.request import STAR, compared, mark_not_met
from optilock.entities.bodies import (
    check_new_row,
    mapper_of,
    refuse_no_bump,
    reset_attributes,
    reset_values,
    sets_ignored_only,
    values_by_attribute,
    version_from_values,
)
from optilock.entities.idempotency import Idempotency, Request, identity_of_new, mark_of
from optilock.entities.row_inserts import NewRow, insert_row, upsert_row
from optilock.entities.row_statements import Change
from optilock.entities.row_writes import WrittenRow, write_row
from optilock.entities.tags import (
    Version,
    demanded_versions,
    exclude_named,
    only_if_absent,
    refuse_if_match,
    refuse_star,
)
from optilock.errors import AlreadyExists, ConfigurationError, NotFound, PreconditionFailed
from optilock.preconditions.client_values import refuse_impossible_key, refuse_unfit_key
from optilock.preconditions.entity_tags import PLAIN, ETags, RowTags, tag_of_entry

P = ParamSpec("P")
A = TypeVar("A", bound="Arguments")
T = TypeVar("T", Change, NewRow)


@dataclass(frozen=True)
class Stored:
    """A row that was written."""

    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: Identity
    #: The current version; ``None`` for a row that was deleted.
    version: Any
    #: Its tag, quotes included; ``None`` for a row that was deleted.
    etag: str | None
    #: The request was sent again, and the first one had stored the row: nothing was written now.
    again: bool = field(default=False, compare=False)


# -- arguments -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arguments:
    """The arguments of ``delete``; the signature of an operation is that of its class here.

    Args:
        session: any session (a ``scoped_session`` too); its transaction is used.
        model: a versioned class.
        key: the primary key, as ``session.get()`` takes it; ``None`` for a new row whose key the
            database makes.
        if_match: a tag, a list of tags, ``Version(...)``, or ``"*"``. ``replace``, ``merge`` and
            ``delete`` need it; the others take none.
        if_none_match: ``"*"`` for an operation that may insert: then it only inserts. For the
            others, tags to exclude from those of ``if_match``.
        etags: how tags are made and read, if they are signed.
        idempotency: recognises the request when it is sent again (``Unique`` versions only): the
            row is stored once, and the answer has ``again=True``. A deleted row has no version to
            recognise, so a ``delete`` that is sent again is ``NotFound``.
    """

    session: Session
    model: type[Any]
    key: Any
    _: KW_ONLY
    if_match: Any = None
    if_none_match: Any = None
    etags: ETags = PLAIN
    idempotency: Idempotency | None = None


@dataclass(frozen=True)
class ArgumentsWithValues(Arguments):
    """The arguments of the other operations.

    Args:
        values: attribute -> value.
    """

    values: Mapping[str, Any] = field(default_factory=dict)


def _operation(
    arguments: Callable[P, A],
) -> Callable[[Callable[[A], Stored]], Callable[P, Stored]]:
    """Let callers of a function of :class:`Arguments` pass the arguments themselves."""
    signature = inspect.signature(arguments).replace(return_annotation=Stored)

    def decorate(body: Callable[[A], Stored]) -> Callable[P, Stored]:
        def operation(*args: P.args, **options: P.kwargs) -> Stored:
            try:
                given = arguments(*args, **options)
            except TypeError as error:  # it names the class, and not the operation
                _, _, why = str(error).partition("__init__")
                raise TypeError(f"{body.__name__}{why}") from None
            return body(given)

        update_wrapper(operation, body).__signature__ = signature  # type: ignore[attr-defined]
        return operation

    return decorate


# -- operations ------------------------------------------------------------------------------------


@_operation(ArgumentsWithValues)
def insert(given: ArgumentsWithValues) -> Stored:
    """Store a new row. It needs no condition, and takes ``if_none_match="*"``.

    Arguments: :class:`ArgumentsWithValues`.

    Raises:
        AlreadyExists: there is a row with this key: 409, or 412 with ``if_none_match``.
        BadEntity: no row can have these values.
        BadPrecondition: ``if_none_match`` is not ``"*"``.
        ConfigurationError: ``if_match`` was given; or no operation can write rows of the class.
    """
    return _insert("insert", given)


@_operation(ArgumentsWithValues)
def replace(given: ArgumentsWithValues) -> Stored:
    """Set every column of a row: to its value in ``values``, its default, or NULL.

    Arguments: :class:`ArgumentsWithValues`.

    Raises:
        NotFound: there is no row with this key.
        PreconditionFailed: the row is in another version.
        PreconditionRequired: ``if_match`` was not given.
        BadPrecondition: ``if_match`` is no tag; or ``if_none_match`` has no tags, or stands alone.
        BadEntity: no row can have these values.
        ConfigurationError: no operation can write rows of the class.
    """
    session, asked = _asked("replace", given)
    mapper = asked.row.mapper
    values = values_by_attribute(mapper, "replace", given.values, session)
    plain, computed = reset_values(mapper, lambda: connection_to_write(session, mapper), values)
    made = version_from_values(mapper, "replace", values | plain, whole=True)
    asked = asked.of_stored_row(session)
    versions = asked.wanted
    change = Change(mapper, asked.row.identity, values | plain, computed, versions, made=made)
    return _write(session, _recognisable(change, given, asked, values), asked)


@_operation(ArgumentsWithValues)
def merge(given: ArgumentsWithValues) -> Stored:
    """Set the columns in ``values``, and leave the others of the row as they are.

    Arguments: :class:`ArgumentsWithValues`. Errors: those of :func:`replace`.
    """
    session, asked = _asked("merge", given)
    mapper = asked.row.mapper
    values = values_by_attribute(mapper, "merge", given.values, session)
    made = version_from_values(mapper, "merge", values, whole=False)
    still = sets_ignored_only(mapper, values) or (facts(mapper).by_values and made is None)
    asked = asked.of_stored_row(session)
    versions = asked.wanted
    change = Change(mapper, asked.row.identity, values, versions=versions, still=still, made=made)
    return _write(session, _recognisable(change, given, asked, values), asked)


@_operation(Arguments)
def delete(given: Arguments) -> Stored:
    """Delete a row. The database treats its dependents as their foreign keys say.

    Arguments: :class:`Arguments`. Errors: those of :func:`replace`.
    """
    session, asked = _asked("delete", given)
    asked = asked.of_stored_row(session)
    row, versions = asked.row, asked.wanted
    refuse_silent_delete(session, row.mapper)
    return _write(session, Change(row.mapper, row.identity, versions=versions, deletes=True), asked)


@_operation(ArgumentsWithValues)
def insert_or_replace(given: ArgumentsWithValues) -> Stored:
    """Store a new row, or :func:`replace` the stored one in any version.

    It takes no tag by design; with ``if_none_match="*"`` it is :func:`insert`. Arguments:
    :class:`ArgumentsWithValues`; the key is needed.

    Raises:
        AlreadyExists: ``if_none_match="*"``, and the row exists (412); or, on MariaDB, a row of
            another key has a value that must be unique (409).
        BadEntity, BadPrecondition, ConfigurationError: as :func:`insert`.
    """
    return _upsert("insert_or_replace", given, whole=True)


@_operation(ArgumentsWithValues)
def insert_or_merge(given: ArgumentsWithValues) -> Stored:
    """Store a new row, or :func:`merge` into the stored one in any version.

    Arguments and errors: those of :func:`insert_or_replace`.
    """
    return _upsert("insert_or_merge", given, whole=False)


# -- new rows --------------------------------------------------------------------------------------


def _insert(call: str, given: ArgumentsWithValues) -> Stored:
    session = _session(given.session, call)
    mapper = mapper_of(given.model, call)
    identity = identity_of_new(call, mapper, given.key, given.idempotency, given.etags)
    refuse_if_match(call, given.if_match)
    absent = only_if_absent(call, given.if_none_match)
    values, made = _new_values(session, mapper, call, given, whole=True)
    refuse_unfit_key(session, mapper, identity)
    row = given.etags.of_row(mapper, identity or ())
    new = NewRow(mapper, identity, values, made)
    if given.idempotency is not None:
        new = _marked(new, given.idempotency, Request(call, row, (), values))
    try:
        return _stored(row, insert_row(session, new, status=412 if absent else 409))
    except _ABOUT_ROW as error:
        _give_current_tag(row, error)
        raise


def _upsert(call: str, given: ArgumentsWithValues, *, whole: bool) -> Stored:
    if only_if_absent(call, given.if_none_match):
        return _insert(call, given)
    if given.idempotency is not None:
        raise ConfigurationError(
            f"{call}() takes no idempotency, because the last writer wins: sent again, it writes"
            " again, over what others have stored in between. With a tag use replace() or merge(),"
            ' which take it; so does insert(), and this with if_none_match="*". Nothing was sent.'
        )
    session, mapper, identity = _row(call, given)
    refuse_if_match(call, given.if_match)
    values, made = _new_values(session, mapper, call, given, whole=whole)
    refuse_unfit_key(session, mapper, identity)
    changed = frozenset({*values, *(reset_attributes(mapper, values) if whole else ())})
    row = given.etags.of_row(mapper, identity)
    try:
        return _stored(row, upsert_row(session, NewRow(mapper, identity, values, made), changed))
    except _ABOUT_ROW as error:
        _give_current_tag(row, error)
        raise


def _new_values(
    session: Session, mapper: Mapper[Any], call: str, given: ArgumentsWithValues, *, whole: bool
) -> tuple[dict[str, Any], Any]:
    """Return the values of a new row, and its version if that is made from them."""
    values = values_by_attribute(mapper, call, given.values, session)
    check_new_row(mapper, values)
    return values, version_from_values(mapper, call, values, whole=whole)


# -- the row and its demanded versions -------------------------------------------------------------


def _asked(call: str, given: Arguments) -> tuple[Session, RowDemand]:
    session, mapper, identity = _row(call, given)
    row = given.etags.of_row(mapper, identity)
    return session, RowDemand(call, row, given.if_match, given.if_none_match)


def _row(call: str, given: Arguments) -> tuple[Session, Mapper[Any], Identity]:
    session = _session(given.session, call)
    mapper = mapper_of(given.model, call)
    refuse_no_bump(session, mapper, call)
    read = identity_of_new_row if call.startswith("insert_or_") else identity_given
    return session, mapper, read(f"entities.{call}", mapper, given.key)


def _session(session: Any, call: str) -> Session:
    return given_session(
        session, f"entities.{call}", f"await optilock.asyncio.{call}(session, ...)"
    )


@dataclass(frozen=True)
class RowDemand:
    """The row of an operation, and the versions that it demands of it."""

    call: str
    row: RowTags
    if_match: Any
    if_none_match: Any
    #: The row must be in one of these versions; ``None``: in any.
    wanted: tuple[Any, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        is_star = self.if_none_match == STAR
        if is_star:  # no version of a stored row meets it
            refuse_star(self.call)
            compared()
        wanted = () if is_star else demanded_versions(self.call, self.row, self.if_match)
        if self.if_none_match is not None and not is_star:
            wanted = exclude_named(self.call, self.row, wanted, self.if_none_match)
        object.__setattr__(self, "wanted", wanted)

    def of_stored_row(self, session: Session) -> RowDemand:
        """Return the same for the key as the database stores it, if no tag is of the given key.

        The database may treat the given key as equal to a row's key. The tags are bound to the
        row's own key, and so are the session's demands of single rows.
        """
        row = self.row
        refuse_impossible_key(session, row.mapper, row.identity)
        is_demanded = not self.is_sure and _has_demands(session, row.mapper)
        if not (self.wanted == () or is_demanded) or has_one_spelling(row.mapper):
            return self
        flush_before(session, {})
        stored = stored_key(connection_to_write(session, row.mapper), row.mapper, row.identity)
        if stored in (None, row.identity):
            return self
        return with_(self, row=with_(row, identity=stored))

    @cached_property
    def is_sure(self) -> bool:
        """Whether the key is known to be the row's own, spelled as it is stored."""
        mapper = self.row.mapper
        if has_one_spelling(mapper):
            return True
        given = self.if_match if isinstance(self.if_match, (list, tuple)) else (self.if_match,)
        by_tag = self.wanted is not None and not any(isinstance(one, Version) for one in given)
        return by_tag and is_of_texts(mapper)

    def request(self, values: Mapping[str, Any]) -> Request:
        return Request(self.call, self.row, self.wanted, values)


def _has_demands(session: Session, mapper: Mapper[Any]) -> bool:
    """Return whether the session demands something of rows of the class."""
    demands = demands_of(session)
    return demands is not None and bool(demands.conditions_for(mapper))


# -- writing ---------------------------------------------------------------------------------------


def _recognisable(
    change: Change, given: Arguments, asked: RowDemand, values: Mapping[str, Any]
) -> Change:
    if given.idempotency is None:
        return change
    return _marked(change, given.idempotency, asked.request(values))


def _marked(row: T, idempotency: Idempotency, request: Request) -> T:
    """Return the row with the version by which the request is recognised when it comes again."""
    mark = mark_of(idempotency, request)
    return row if mark is None else with_(row, made=mark.version, is_ours=mark.is_ours)


def _write(session: Session, change: Change, asked: RowDemand) -> Stored:
    if not asked.is_sure and not _has_demands(session, change.mapper):
        change = with_(change, respelled=True)
    try:
        return _stored(asked.row, write_row(session, change))
    except _ABOUT_ROW as error:
        _give_current_tag(asked.row, error)
        raise


_ABOUT_ROW = (NotFound, PreconditionFailed, AlreadyExists)


def _give_current_tag(row: RowTags, error: Exception) -> None:
    """Give an error of the row the current tag of that row."""
    mark_not_met()
    if isinstance(error, PreconditionFailed):
        (entry,) = error.entries
        error.etag = tag_of_entry(entry, row.etags)
    elif isinstance(error, AlreadyExists):
        error.etag = _current_tag(row, error.identity, error.database)


def _current_tag(row: RowTags, identity: Identity, stored: Mapping[str, Any] | None) -> str | None:
    if stored is None:
        return None
    own = identity_in(row.mapper, identity, stored)
    return row.etags.tag(row.mapper, own, stored[facts(row.mapper).token])


def _stored(row: RowTags, written: WrittenRow) -> Stored:
    identity, version, again = written
    own = row if identity is row.identity else with_(row, identity=identity)
    return Stored(identity, version, None if version is None else own.tag(version), again)
