"""A client's edits, merged into a row that has changed since the client read it.

::

    form["seen"] = sign_seen(page, ["title", "body"], etags=tags)       # when it is shown

    with unit_of_work(SessionLocal) as session:                           # when it comes back
        merge_changes(
            session, Page, 7, {"title": form["title"], "body": form["body"]},
            seen=form["seen"], etags=tags, on_conflict=per_field(body=merge_text),
        )

The three sides are those of any conflict (:class:`~optilock.errors.Entry`): ``original`` has the
values that the client saw, ``current`` those that it wants, ``database`` the stored ones. A
resolver settles them. A form may send back every field, as texts with a browser's line ends: a
field as it was seen is no change (:mod:`optilock.preconditions.client_values`).

The base of a merge decides whose work is overwritten, so it has to be true. A client could claim
any base; this one was signed by :func:`optilock.preconditions.sign_seen`. A row in the version that
was seen is edited as :func:`optilock.apply` does it.

The flush writes the merged values, under the version that the row was just read in. If the row has
moved again by then, the error is ``ConcurrencyError``, for any resolver of the session.
:func:`optilock.retry` may run the unit again, which merges with the values of that time. If the
resolver refuses, the error is ``PreconditionFailed``: the same merge would be refused again.
Columns that belong together are merged as one (:mod:`optilock.resolvers.column_groups`), and a
column that was not signed counts as changed by the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper, Session, scoped_session

from optilock import events
from optilock._columns.identities import has_one_spelling, identity_given
from optilock._mapped import Identity, State, facts, identity_of, place_of
from optilock._watched.guard.corrections import plan_update
from optilock._watched.guard.decisions import decide, resolvers_of
from optilock._watched.guard.promises import promise
from optilock._watched.rows.entries import Attempt, Missed, side_as_read
from optilock._watched.rows.stored import Values, stored_key
from optilock._watched.session.connections import connection_to_write, given_session
from optilock._watched.session.record import note_merged, settle_row
from optilock._watched.session.values import Promises, RowsOfTransaction
from optilock.errors import (
    BadPrecondition,
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
)
from optilock.preconditions.client_values import (
    check_names,
    normal_values,
    refuse_impossible_key,
    values_by_column,
)
from optilock.preconditions.edits import mapper_to_edit, normalise_changes, row_to_edit, set_values
from optilock.preconditions.entity_tags import ETags, tag_of_entry
from optilock.preconditions.expectations import (
    changed_values,
    loaded_version,
    missing_row_error,
    row_as_loaded,
)
from optilock.preconditions.signed_values import Seen, read_seen
from optilock.preconditions.version_demands import MISSING_ROW, VersionDemand
from optilock.resolvers.resolution import DeletePolicies, OnConflict, Resolver
from optilock.resolvers.rules import check_resolver_for, merge_fields
from optilock.serialize import is_expression

T = TypeVar("T")
_CALL = "merge_changes"


def merge_changes(
    session: Session | scoped_session[Any],
    model: type[T],
    pk: Any,
    changes: Mapping[str, Any],
    *,
    seen: str | None,
    etags: ETags,
    on_conflict: Resolver = merge_fields,
) -> T:
    """Return the object of the row ``pk`` with ``changes`` set, merged if the row has moved.

    Args:
        session: a watched session (a ``scoped_session`` too), or that of a unit of work.
        pk: the primary key, as ``session.get()`` takes it.
        changes: attribute -> new value.
        seen: the text that :func:`optilock.preconditions.sign_seen` made, sent back by the client.
        etags: with the keys that sign it.
        on_conflict: a resolver; those of the unit and of the class do not count.

    Raises:
        PreconditionFailed: the resolver has refused, and the entry has the three values; or the row
            is missing, and no resolver ran. Nothing was set.
        ConcurrencyError: later, at the flush or COMMIT: the row has moved again.
        BadPrecondition: before anything is read: ``seen`` was not signed for this row, or is not
            whole (400), or is missing (428).
        BadEntity: as of :func:`optilock.apply`.
        ConfigurationError: as of :func:`optilock.apply`; there are no keys; ``on_conflict`` is no
            resolver; or a change is SQL.
    """
    session = given_session(session, _CALL, f"await optilock.asyncio.{_CALL}(session, ...)")
    mapper = mapper_to_edit(session, model, _CALL)
    check_names(mapper, changes, "changed")
    for name, value in changes.items():
        if is_expression(value):
            raise ConfigurationError(
                f"{_CALL}() got SQL as the value of {model.__name__}.{name}: only values can be"
                " merged."
            )
    resolver = check_resolver_for(on_conflict, model, facts(mapper).columns.keys())
    identity, found = read_signed(session, mapper, pk, seen, etags)
    return merge_seen(session, mapper, identity, changes, found, resolver)  # type: ignore[no-any-return]


def merge_seen(
    session: Session,
    mapper: Mapper[Any],
    identity: Identity,
    changes: Mapping[str, Any],
    seen: Seen,
    resolver: Resolver,
    *,
    once_more: bool = False,
) -> Any:
    """Return the object with the changes of a client that has seen these values; as above.

    ``once_more``: if the row moves before the flush, the resolver settles that too.
    """
    version = seen.version
    want = VersionDemand(_CALL, version=version, said=True)
    obj = row_to_edit(session, mapper, identity, want)
    state = None if obj is None else inspect(obj)
    loaded = MISSING_ROW if state is None else loaded_version(state, _CALL)
    if state is None or loaded is MISSING_ROW:
        raise missing_row_error(mapper, identity, "update", want, changes, seen.known({}))
    stored = row_as_loaded(session, state, side_as_read(state, loaded))
    base = seen.known(stored)
    missed = None
    original = {facts(mapper).token: version, **base}
    if base.keys() != seen.values.keys() or _has_moved(mapper, original, stored):
        missed = _missed(session, state, stored, original, changes)
    values = (
        normalise_changes(state, changes, base) if missed is None else _settled(missed, resolver)
    )
    if once_more:
        settle_row(session, place_of(state), resolver)
    else:
        promise(session, state, loaded, demanded=False)
    note_merged(session, place_of(state))
    set_values(session, obj, values)
    return obj


def read_signed(
    session: Session, mapper: Mapper[Any], pk: Any, seen: str | None, etags: ETags
) -> tuple[Identity, Seen]:
    """Return the key that the signature names, and what the client saw."""
    identity = identity_given(_CALL, mapper, pk)
    try:
        return identity, read_seen(_CALL, mapper, identity, seen, etags)
    except BadPrecondition as error:
        if error.status != 400:
            raise
    identity = _as_stored(session, mapper, identity)
    return identity, read_seen(_CALL, mapper, identity, seen, etags)


def _as_stored(session: Session, mapper: Mapper[Any], identity: Identity) -> Identity:
    """Return the key as the database stores it; the signed values are bound to that."""
    if has_one_spelling(mapper):
        return identity
    refuse_impossible_key(session, mapper, identity)
    return stored_key(connection_to_write(session, mapper), mapper, identity) or identity


def _has_moved(mapper: Mapper[Any], original: Values, stored: Values) -> bool:
    """Return whether the row is another than the one that was seen.

    With a counter a row that was deleted and inserted again can have the same version.
    """
    same = facts(mapper).same
    return not all(n in stored and same(n, one, stored[n]) for n, one in original.items())


def _missed(
    session: Session, state: State, stored: Values, original: Values, changes: Mapping[str, Any]
) -> Missed:
    """Return the conflict; a value that is not in ``original`` counts as changed by both."""
    mapper = state.mapper
    edits = normal_values(
        mapper, values_by_column(mapper, changes), {**stored, **original}, original
    )
    attempt = Attempt(
        mapper,
        identity_of(state),
        "update",
        original,
        {**original, **edits},
        changed_values(mapper, edits, original),
    )
    connection = connection_to_write(session, mapper)
    return Missed(state, state.obj(), connection, attempt, stored=stored)


@dataclass
class _Rules:
    """The rules of this conflict alone."""

    on_conflict: OnConflict
    on_delete: DeletePolicies = None
    promises: Promises | None = None
    settled_by: RowsOfTransaction[Any] | None = None


def _settled(missed: Missed, resolver: Resolver) -> Values:
    """Return the values that the row gets."""
    events.emit(lambda: events.Conflict((missed.entry,), reason="precondition"))
    rules = _Rules(resolver)
    error = decide([missed], rules)
    if isinstance(error, ConcurrencyError):
        refused = PreconditionFailed(error.entries)
        refused.etag = tag_of_entry(missed.entry)
        for note in getattr(error, "__notes__", ()):
            refused.add_note(note)
        raise refused from error.__cause__
    if error is not None:
        raise error
    events.emit(lambda: events.Resolved((missed.entry,), resolvers_of([missed], rules)))
    return plan_update(missed).values
