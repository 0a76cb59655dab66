"""Several operations in one: all are written, or none.

::

    from optilock.entities import Operation, delete, insert, merge, transaction

    transaction(session, [
        Operation(insert, Page, 9, {"title": "New"}),
        Operation(merge, Page, 7, {"title": "Moved"}, if_match=tag),
        Operation(delete, Page, 8, if_match=other_tag),
    ])

They are written in their order, inside a savepoint of the session's transaction. After a failure
the transaction goes on: roll it back, or do something else and commit. The first failing operation
decides, and ``BatchFailed.index`` is its position. A row may be named once; an empty list does
nothing.

With ``idempotency=`` a batch that is sent again is recognised as a whole: each operation is bound
to all of them. One row that still has the version that the batch gave it proves that all were
written, also those operations that cannot be recognised alone (deletes, rows under ``"*"``). Then
nothing is written again, and the answer is the lost one, with the versions that the rows got. If
another writer has changed every such row in the meantime, or the batch has none, it fails as any
other batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from optilock._columns.identities import identity_given, identity_of_new_row
from optilock._mapped import Place, facts
from optilock._watched.session.connections import connection_to_write, given_session
from optilock.dialects import database_of
from optilock.entities import operations
from optilock.entities.bodies import mapper_of, values_by_attribute
from optilock.entities.idempotency import (
    Idempotency,
    Mark,
    Request,
    identity_of_new,
    length_prefixed,
    mark_of,
)
from optilock.entities.operations import RowDemand, Stored
from optilock.entities.row_writes import look_at, read_again
from optilock.entities.tags import only_if_absent
from optilock.errors import BadEntity, BatchFailed, ConfigurationError, OptilockError, short_text
from optilock.preconditions.entity_tags import PLAIN, ETags


@dataclass(frozen=True)
class Operation:
    """One operation, as its function would be called: ``Operation(merge, Page, 7, {...})``."""

    do: Callable[..., Stored]
    model: type[Any]
    key: Any
    values: Mapping[str, Any] = field(default_factory=dict)
    if_match: Any = field(default=None, kw_only=True)
    if_none_match: Any = field(default=None, kw_only=True)
    etags: ETags = field(default=PLAIN, kw_only=True)

    def __post_init__(self) -> None:
        if self.do not in _ALL:
            names = ", ".join(one.__name__ for one in _ALL)
            raise ConfigurationError(
                f"Operation({self.do!r}, ...): its first argument is one of the functions of"
                f" optilock.entities: {names}."
            )
        if self.do is operations.delete and self.values:
            raise ConfigurationError(
                f"Operation(delete, {self.model.__name__}, ...) has values: a row to delete needs"
                " none."
            )

    def place(self) -> Place | None:
        """Return the row; ``None`` if the database makes its key."""
        mapper = mapper_of(self.model, self.do.__name__)
        if self.key is None:
            return None
        read = identity_given if self.do in _CONDITIONAL else identity_of_new_row
        return facts(mapper).root, read(self.do.__name__, mapper, self.key)

    def place_of(self, stored: Stored) -> Place:
        """Return the row that was written, by its own key."""
        return facts(mapper_of(self.model, self.do.__name__)).root, stored.identity

    def request(self, session: Session, idempotency: Idempotency, index: int) -> Request:
        """Return it as a request; ``index`` names a new row whose key the database makes."""
        call, etags = self.do.__name__, self.etags
        mapper = mapper_of(self.model, call)
        values = values_by_attribute(mapper, call, self.values, session)
        if self.do in _CONDITIONAL:
            row = etags.of_row(mapper, identity_given(call, mapper, self.key))
            asked = RowDemand(call, row, self.if_match, self.if_none_match)
            return asked.of_stored_row(session).request(values)
        absent = only_if_absent(call, self.if_none_match) or self.do is operations.insert
        made = identity_of_new(call, mapper, self.key, idempotency, etags, f"{index}")
        return Request(call, etags.of_row(mapper, made or ()), () if absent else None, values)

    def run(self, session: Session, idempotency: Idempotency | None = None) -> Stored:
        """Do it."""
        values = () if self.do is operations.delete else (self.values,)
        return self.do(
            session,
            self.model,
            self.key,
            *values,
            if_match=self.if_match,
            if_none_match=self.if_none_match,
            etags=self.etags,
            idempotency=idempotency,
        )


_CONDITIONAL = (operations.replace, operations.merge, operations.delete)
_ALL = (*_CONDITIONAL, operations.insert, operations.insert_or_replace, operations.insert_or_merge)


def transaction(
    session: Session, some: Iterable[Operation], *, idempotency: Idempotency | None = None
) -> list[Stored]:
    """Do all of these operations, or none; return what each has stored, in their order.

    Args:
        idempotency: recognises the batch, as a whole, when it is sent again.

    Raises:
        BatchFailed: one of them failed, or names a row a second time; nothing was written.
        ConfigurationError: one cannot work; or the connection is in AUTOCOMMIT mode, where nothing
            could be undone. An error of the database is raised as it is.
    """
    session = given_session(
        session, "entities.transaction", "await optilock.asyncio.transaction(session, ...)"
    )
    given = list(some)
    if not given:
        return []
    if idempotency is None:
        _begin(session, given)
        return _run_all(session, given)
    batch = _read_batch(session, given, idempotency)
    _begin(session, given, as_one=True)
    try:
        return _run_all(session, given, batch)
    except SentBefore as sent:
        return batch.stored_before(session, sent)
    except (BatchFailed, IntegrityError):  # a value that others have taken since
        found = batch.find_stored(session)
        if found is None:
            raise
        return found


def _run_all(
    session: Session, given: list[Operation], batch: SentBatch | None = None
) -> list[Stored]:
    seen: dict[Hashable, Operation] = {}
    stored = []
    with session.begin_nested():
        for index, operation in enumerate(given):
            mark = None if batch is None else batch.marks[index]
            with _naming(index):
                if batch is None or mark is None:
                    _refuse_repeated(operation, operation.place(), seen)
                    stored.append(operation.run(session))
                else:
                    operation = replace(operation, key=mark.request.row.identity)
                    _refuse_repeated(operation, operation.place(), seen)
                    stored.append(operation.run(session, batch.idempotency))
                _refuse_repeated(operation, operation.place_of(stored[-1]), seen)
            if stored[-1].again:
                raise SentBefore(index, stored[-1].version)
    return stored


@contextmanager
def _naming(index: int) -> Iterator[None]:
    """Name the operation in its errors."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OptilockError) and not isinstance(error, ConfigurationError):
            raise BatchFailed(index, error) from error
        error.add_note(f"It was operation {index} of the transaction.")
        raise


def _begin(session: Session, given: list[Operation], *, as_one: bool = False) -> None:
    """Begin a transaction around the savepoint, on every connection that is used."""
    begun = set()
    for operation in given:
        mapper = mapper_of(operation.model, operation.do.__name__)
        connection = connection_to_write(session, mapper)
        if connection not in begun:
            begun.add(connection)
            database_of(connection.dialect).locks.begin_writing(connection, facts(mapper).table)
    if as_one and len(begun) > 1:
        raise ConfigurationError(
            "transaction(idempotency=...) is refused for rows of several databases: their COMMITs"
            " are not one, so the rows of one do not show whether the others are stored. Write the"
            " rows of one database, or omit idempotency=. Nothing was sent."
        )


def _refuse_repeated(
    operation: Operation, place: Place | None, seen: dict[Hashable, Operation]
) -> None:
    """Refuse a second operation on the row, also by a key that only the database equates."""
    if place is None:
        return
    row = _hashable(place)
    if seen.setdefault(row, operation) is not operation:
        raise BadEntity(
            f"{operation.model.__name__} {short_text(operation.key)} is named twice in one"
            " transaction: a row can be written once. Make one operation of the two.",
            detail="The request names one thing twice, which can be written once.",
        )


def _hashable(place: Place) -> Hashable:
    """Return the row as a key; a list as a part of it is left for its operation to refuse."""
    try:
        hash(place)
    except TypeError:
        return place[0], repr(place[1])
    return place


# -- a batch that is sent again --------------------------------------------------------------------


class SentBefore(Exception):
    """The row has the version that the batch gave it; the error rolls the savepoint back."""

    def __init__(self, index: int, version: Any) -> None:
        super().__init__(index, version)
        self.index, self.version = index, version


@dataclass(frozen=True)
class SentBatch:
    """The operations of a batch, and the mark of each."""

    #: Bound to all of them.
    idempotency: Idempotency
    requests: Sequence[Request]
    marks: Sequence[Mark | None]

    def find_stored(self, session: Session) -> list[Stored] | None:
        """Return what an earlier sending has stored; ``None`` if nothing shows that one did."""
        for request, mark in zip(self.requests, self.marks, strict=True):
            if mark is None:
                continue
            mapper = request.row.mapper
            connection = connection_to_write(session, mapper)
            stored, _ = look_at(connection, mapper, request.row.identity, of_class=False)
            key = stored and mark.key_of(stored[facts(mapper).token])
            if key:
                return self._stored(session, key)
        return None

    def stored_before(self, session: Session, sent: SentBefore) -> list[Stored]:
        """Return the same after an operation has shown it."""
        mark = self.marks[sent.index]
        key = mark and mark.key_of(sent.version)
        assert key
        return self._stored(session, key)

    def _stored(self, session: Session, key: bytes) -> list[Stored]:
        """Return the version that each row got under this secret; it may have changed since."""
        stored = []
        for request, mark in zip(self.requests, self.marks, strict=True):
            row = request.row
            read_again(session, row.mapper, row.identity)
            version = None if mark is None else mark.by(key)
            tag = None if mark is None else row.tag(version)
            stored.append(Stored(row.identity, version, tag, again=True))
        return stored


def _read_batch(session: Session, given: list[Operation], idempotency: Idempotency) -> SentBatch:
    """Look at each operation before the first one is sent; bind each to the data of all."""
    requests, data = [], []
    for index, operation in enumerate(given):
        with _naming(index):
            request = operation.request(session, idempotency, index)
            mark_of(idempotency, request)  # refuses a request that cannot be recognised
            requests.append(request)
            if idempotency.key is not None:
                data.append(request.data)
    idempotency = replace(idempotency, batch=sha256(length_prefixed(*data)).digest())
    return SentBatch(idempotency, requests, [mark_of(idempotency, one) for one in requests])
