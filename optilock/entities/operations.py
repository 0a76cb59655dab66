"""The six operations on one row, and what each demands.

====================  ==========================================  =================================
operation             the row is there                            it is not
====================  ==========================================  =================================
insert                AlreadyExists (409; 412 with               stored
                      ``if_none_match="*"``)
replace               if it is in the version: all columns set    NotFound (404)
merge                 if it is in the version: named columns set  NotFound (404)
delete                if it is in the version: deleted            NotFound (404)
insert_or_replace     all columns set, whatever the version       stored
insert_or_merge       named columns set, whatever the version     stored
====================  ==========================================  =================================

``replace``, ``merge`` and ``delete`` need ``if_match``: a tag, several, ``Version(...)``, or
``"*"``, which says in so many words that the last writer wins. Without it they are refused
(``PreconditionRequired``, 428); ``if_none_match`` can take tags away from these, and is no
condition alone. In another version it is ``PreconditionFailed`` (412), whose entry
has what is stored, and whose ``etag`` is the tag that the row has now. A row that is not there is
404 before it is 412. An upsert takes no tag: it is for rows of which the last writer may win. With
``if_none_match="*"`` it inserts only.

A mistake in the condition (``BadPrecondition``, 400) or in the body (``BadEntity``, 400) is found
before any statement is sent, the condition first. Attributes that are left out keep their value
in ``merge`` and get their default, or NULL, in ``replace``; ``None`` is NULL. Each write moves the
version, also a merge of nothing; but not one of ``__version_ignore__`` columns alone. Validators
and events of the class are not called: no object is made.

With ``idempotency`` a request that is sent again after its answer was lost counts once; see
:mod:`~optilock.entities.idempotency`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as with_
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy.orm import Mapper, Session

from optilock.columns.identities import (
    has_one_spelling,
    identity_given,
    identity_in,
    identity_of_new_row,
    is_of_texts,
)
from optilock.conditions.request import not_met
from optilock.entities.bodies import (
    is_of_ignored,
    made_of,
    mapper_of,
    named,
    new,
    refuse_still,
    replaced,
    reset,
)
from optilock.entities.idempotency import Idempotency, Request, identity_of_new, mark_of
from optilock.entities.new_row import NewRow, insert_row, upsert_row
from optilock.entities.one_form import Change
from optilock.entities.one_row import Written, write_row
from optilock.entities.tags import (
    Version,
    none_of,
    only_if_absent,
    refuse_if_match,
    refuse_star,
    versions,
)
from optilock.errors import AlreadyExists, ConfigurationError, NotFound, PreconditionFailed
from optilock.mapped import Identity, facts
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.preconditions.names import refuse_impossible_key, refuse_unfit_key
from optilock.watched.rows.stored import stored_key
from optilock.watched.session.connections import connection_to_write, session_given
from optilock.watched.session.watched import demands_of
from optilock.watched.statements.call import flush_before

__all__ = [
    "Stored",
    "delete",
    "insert",
    "insert_or_merge",
    "insert_or_replace",
    "merge",
    "replace",
]

T = TypeVar("T", Change, NewRow)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Stored:
    """A row that was written."""

    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: Identity
    #: The version that it has now; ``None`` for a row that was deleted.
    version: Any
    #: Its tag, quotes included; ``None`` for a row that was deleted.
    etag: str | None
    #: The request was sent again, and was stored when it came first: nothing was written now.
    again: bool = field(default=False, compare=False)


def insert(
    session: Session,
    model: type[Any],
    key: Any,
    values: Mapping[str, Any] = _NOTHING,
    *,
    if_match: Any = None,
    if_none_match: Any = None,
    etags: ETags = PLAIN,
    idempotency: Idempotency | None = None,
) -> Stored:
    """Store a new row. It needs no condition, and takes ``if_none_match="*"``.

    Args:
        session: any session (a ``scoped_session`` too); its transaction is used.
        model: a versioned class.
        key: the primary key, as ``session.get()`` takes it; ``None`` where the database makes it.
        values: attribute -> value.
        etags: how tags are made and read, where they are signed.
        idempotency: by what the request is known when it is sent again (``Unique`` only): then the
            row is stored once, and ``again`` is true of what is told.

    Raises:
        AlreadyExists: there is a row with this key: 409, or 412 with ``if_none_match``.
        BadEntity: the values cannot be those of a row.
        BadPrecondition: ``if_none_match`` is something else.
        ConfigurationError: ``if_match`` was given; or rows of the class cannot be written so.
    """
    return _insert(
        session, "insert", model, key, values, if_match, if_none_match, etags, idempotency
    )


def replace(
    session: Session,
    model: type[Any],
    key: Any,
    values: Mapping[str, Any] = _NOTHING,
    *,
    if_match: Any = None,
    if_none_match: Any = None,
    etags: ETags = PLAIN,
    idempotency: Idempotency | None = None,
) -> Stored:
    """Give every column of a row a value: the one in ``values``, or its default, or NULL.

    Args: those of :func:`insert`.
        if_match: needed: a tag, a list of tags, ``Version(...)``, or ``"*"``.

    Raises:
        NotFound: there is no row with this key.
        PreconditionFailed: it is in another version.
        PreconditionRequired: ``if_match`` was not given.
        BadPrecondition: it is no tag; or ``if_none_match`` is anything but tags beside tags.
        BadEntity: the values cannot be those of a row.
        ConfigurationError: rows of the class cannot be written so.
    """
    session, mapper, identity = _row(session, "replace", model, key)
    asked = Asked("replace", mapper, identity, if_match, if_none_match, etags)
    given = named(mapper, "replace", values, session)
    plain, computed = reset(mapper, lambda: connection_to_write(session, mapper), given)
    values = given | plain
    made = made_of(mapper, "replace", values, whole=True)
    asked = asked.of_stored_row(session)
    change = Change(mapper, asked.identity, values, computed, asked.wanted, made=made)
    return _write(session, _known_again(change, idempotency, *asked.request(given)), asked)


def merge(
    session: Session,
    model: type[Any],
    key: Any,
    values: Mapping[str, Any] = _NOTHING,
    *,
    if_match: Any = None,
    if_none_match: Any = None,
    etags: ETags = PLAIN,
    idempotency: Idempotency | None = None,
) -> Stored:
    """Give the columns in ``values`` theirs, and leave the others of the row as they are.

    Args and errors are those of :func:`replace`.
    """
    session, mapper, identity = _row(session, "merge", model, key)
    asked = Asked("merge", mapper, identity, if_match, if_none_match, etags)
    given = named(mapper, "merge", values, session)
    made = made_of(mapper, "merge", given, whole=False)
    still = is_of_ignored(mapper, given) or (facts(mapper).by_values and made is None)
    asked = asked.of_stored_row(session)
    change = Change(mapper, asked.identity, given, versions=asked.wanted, still=still, made=made)
    return _write(session, _known_again(change, idempotency, *asked.request(given)), asked)


def delete(
    session: Session,
    model: type[Any],
    key: Any,
    *,
    if_match: Any = None,
    if_none_match: Any = None,
    etags: ETags = PLAIN,
    idempotency: Idempotency | None = None,
) -> Stored:
    """Delete a row. What the database does to its dependents, it does.

    Args and errors are those of :func:`replace`, without values. ``idempotency`` changes nothing: a
    row that is gone has no version to know the request by, and ``NotFound`` is what is true of it.
    """
    session, mapper, identity = _row(session, "delete", model, key)
    asked = Asked("delete", mapper, identity, if_match, if_none_match, etags)
    asked = asked.of_stored_row(session)
    return _write(
        session, Change(mapper, asked.identity, versions=asked.wanted, deletes=True), asked
    )


def insert_or_replace(
    session: Session,
    model: type[Any],
    key: Any,
    values: Mapping[str, Any] = _NOTHING,
    *,
    if_match: Any = None,
    if_none_match: Any = None,
    etags: ETags = PLAIN,
    idempotency: Idempotency | None = None,
) -> Stored:
    """Store a new row, or :func:`replace` the one that is there, whatever its version.

    It takes no tag by design; with ``if_none_match="*"`` it is :func:`insert`. Args are those of
    :func:`insert`, and the key is needed.

    Raises:
        AlreadyExists: ``if_none_match="*"``, and the row is there (412); or, on MariaDB, a row of
            another key has a value that is to be unique (409).
        BadEntity, BadPrecondition, ConfigurationError: as :func:`insert`.
    """
    given = values, if_match, if_none_match, etags, idempotency
    return _upsert(session, "insert_or_replace", model, key, *given, whole=True)


def insert_or_merge(
    session: Session,
    model: type[Any],
    key: Any,
    values: Mapping[str, Any] = _NOTHING,
    *,
    if_match: Any = None,
    if_none_match: Any = None,
    etags: ETags = PLAIN,
    idempotency: Idempotency | None = None,
) -> Stored:
    """Store a new row, or :func:`merge` into the one that is there, whatever its version.

    Args and errors are those of :func:`insert_or_replace`.
    """
    given = values, if_match, if_none_match, etags, idempotency
    return _upsert(session, "insert_or_merge", model, key, *given, whole=False)


# -- how -------------------------------------------------------------------------------------------


def _insert(
    session: Any,
    call: str,
    model: Any,
    key: Any,
    values: Any,
    if_match: Any,
    if_none_match: Any,
    etags: ETags,
    idempotency: Idempotency | None,
) -> Stored:
    session = _session(session, call)
    mapper = mapper_of(model, call)
    identity = identity_of_new(call, mapper, key, idempotency, etags)
    refuse_if_match(call, if_match)
    absent = only_if_absent(call, if_none_match)
    given = named(mapper, call, values, session)
    new(mapper, given)
    made = made_of(mapper, call, given, whole=True)
    refuse_unfit_key(session, mapper, identity)
    asked = call, mapper, identity or (), (), given, etags
    row = _known_again(NewRow(mapper, identity, given, made), idempotency, *asked)
    with _telling(mapper, etags):
        written = insert_row(session, row, status=412 if absent else 409)
    return _stored(mapper, written, etags)


def _upsert(
    session: Any,
    call: str,
    model: Any,
    key: Any,
    values: Any,
    if_match: Any,
    if_none_match: Any,
    etags: ETags,
    idempotency: Idempotency | None,
    *,
    whole: bool,
) -> Stored:
    if only_if_absent(call, if_none_match):
        return _insert(
            session, call, model, key, values, if_match, if_none_match, etags, idempotency
        )
    _refuse_again(call, idempotency)
    session, mapper, identity = _row(session, call, model, key)
    refuse_if_match(call, if_match)
    given = named(mapper, call, values, session)
    new(mapper, given)
    made = made_of(mapper, call, given, whole=whole)
    refuse_unfit_key(session, mapper, identity)
    changed = {*given, *(replaced(mapper, given) if whole else ())}
    with _telling(mapper, etags):
        written = upsert_row(session, NewRow(mapper, identity, given, made), frozenset(changed))
    return _stored(mapper, written, etags)


def _refuse_again(call: str, idempotency: Idempotency | None) -> None:
    if idempotency is not None:
        raise ConfigurationError(
            f"{call}() takes no idempotency, because the last writer wins: sent again, it writes"
            " again, over what others have stored in between. With a tag use replace() or merge(),"
            ' which take it; so does insert(), and this with if_none_match="*". Nothing was sent.'
        )


def _row(session: Any, call: str, model: Any, key: Any) -> tuple[Session, Mapper[Any], Identity]:
    session = _session(session, call)
    mapper = mapper_of(model, call)
    refuse_still(session, mapper, call)
    read = identity_of_new_row if call.startswith("insert_or_") else identity_given
    return session, mapper, read(f"entities.{call}", mapper, key)


def _session(session: Any, call: str) -> Session:
    return session_given(
        session, f"entities.{call}", f"await optilock.asyncio.{call}(session, ...)"
    )


@dataclass(frozen=True)
class Asked:
    """Which row an operation is about, and in which versions it must be."""

    call: str
    mapper: Mapper[Any]
    identity: Identity
    if_match: Any
    if_none_match: Any
    etags: ETags

    def __post_init__(self) -> None:
        _ = self.wanted  # or it is refused

    @cached_property
    def wanted(self) -> tuple[Any, ...] | None:
        """``None``: any."""
        refuse_star(self.call, self.if_none_match)
        row = self.mapper, self.identity, self.call
        found = versions(*row, self.if_match, self.etags)
        return none_of(*row, found, self.if_none_match, self.etags)

    def of_stored_row(self, session: Session) -> Asked:
        """The same for the key as the database gives it back, where no tag is of the given one.

        It may take the key for that of a row, and the tags are bound to the row's own; so is what
        the session demands of single rows.
        """
        refuse_impossible_key(session, self.mapper, self.identity)
        asks = not self.is_sure and _is_demanded(session, self.mapper)
        if has_one_spelling(self.mapper) or not (self.wanted == () or asks):
            return self
        flush_before(session, {})
        connection = connection_to_write(session, self.mapper)
        stored = stored_key(connection, self.mapper, self.identity)
        return self if stored in (None, self.identity) else with_(self, identity=stored)

    @property
    def is_sure(self) -> bool:
        """Does a tag say that the key is the row's own?"""
        given = self.if_match if isinstance(self.if_match, (list, tuple)) else (self.if_match,)
        by_tag = self.wanted is not None and not any(isinstance(one, Version) for one in given)
        return has_one_spelling(self.mapper) or (by_tag and is_of_texts(self.mapper))

    def request(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.call, self.mapper, self.identity, self.wanted, given, self.etags


def _known_again(row: T, idempotency: Idempotency | None, *asked: Any) -> T:
    """What is to be written, in the version by which the request is known when it comes again."""
    mark = None if idempotency is None else mark_of(idempotency, Request(*asked))
    return row if mark is None else with_(row, made=mark.version, is_ours=mark.is_ours)


def _is_demanded(session: Session, mapper: Mapper[Any]) -> bool:
    """Does the session demand something of its rows?"""
    demands = demands_of(session)
    return demands is not None and bool(demands.on(mapper))


def _write(session: Session, change: Change, asked: Asked) -> Stored:
    etags = asked.etags
    if not asked.is_sure and not _is_demanded(session, change.mapper):
        change = with_(change, respelled=True)
    with _telling(change.mapper, etags):
        return _stored(change.mapper, write_row(session, change), etags)


@contextmanager
def _telling(mapper: Mapper[Any], etags: ETags) -> Iterator[None]:
    """What is refused says which tag the row has now."""
    try:
        yield
    except NotFound:
        not_met()
        raise
    except PreconditionFailed as error:
        not_met()
        (entry,) = error.entries
        error.etag = _tag_in(mapper, etags, entry.identity, entry.database)
        raise
    except AlreadyExists as error:
        not_met()
        error.etag = _tag_in(mapper, etags, error.identity, error.database)
        raise


def _tag_in(
    mapper: Mapper[Any], etags: ETags, identity: Identity, stored: Mapping[str, Any] | None
) -> str | None:
    if stored is None:
        return None
    return etags.tag(mapper, identity_in(mapper, identity, stored), stored[facts(mapper).token])


def _stored(mapper: Mapper[Any], written: Written, etags: ETags) -> Stored:
    identity, version, again = written
    tag = None if version is None else etags.tag(mapper, identity, version)
    return Stored(identity, version, tag, again)
