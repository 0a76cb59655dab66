"""An edit of one row in the version that was seen: a web form or an API's PATCH in one call.

::

    with unit_of_work(SessionLocal) as session:
        apply(session, Page, 7, form.changes, expected=form.version)

The names are checked first, then the row is read, then its version, then the values are set. So a
bad name reads nothing, and an edit for another version sets nothing. The session writes the edit as
usual, when it flushes, and the version is still a condition of that write
(:func:`optilock.expect`).

``changes`` come from outside, so only columns may be named, without the key, the version and the
discriminator. Your application decides which of the others a client may edit: pass the allowed
fields, and not the whole form. Texts of a form are read as the columns have them
(:mod:`optilock.preconditions.client_values`). A mistake of the client is
:class:`~optilock.errors.BadEntity`: a wrong name, or a value that its column cannot hold.

``seen`` has the values that the client had loaded, attribute -> value, for example from the fields
of a form. It separates the client's changes from those of the other writer in the entry of a
refused edit, and does nothing else. Without it each attribute that differs from the stored value
counts as changed by both. The row stays refused with any ``seen``. To merge a client's edits, use
:func:`optilock.preconditions.merge_changes`, which needs a signed ``seen``.

With an ``AsyncSession``: ``await optilock.asyncio.apply(session, Page, 7, ...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper, Session, scoped_session
from sqlalchemy.orm.attributes import instance_state

from optilock._columns.values import surely_holds
from optilock._mapped import HINT_ADD_TOKEN, Identity, State, facts
from optilock._watched.rows.stored import Values
from optilock._watched.session.connections import given_session
from optilock._watched.session.record import is_watched
from optilock.errors import ConfigurationError, NotFound
from optilock.preconditions.client_values import (
    check_names,
    columns_of,
    key_of_row,
    normal_values,
    refuse_unfit,
)
from optilock.preconditions.expectations import (
    loaded_version,
    missing_row_error,
    promise_to_client,
    seen_values,
    version_error,
)
from optilock.preconditions.version_demands import NOT_GIVEN, VersionDemand, matches, read_demand
from optilock.serialize import is_expression

T = TypeVar("T")


def apply(
    session: Session | scoped_session[Any],
    model: type[T],
    pk: Any,
    changes: Mapping[str, Any],
    *,
    expected: object = NOT_GIVEN,
    version: object = NOT_GIVEN,
    seen: Mapping[str, Any] | None = None,
) -> T:
    """Return the object of the row ``pk`` with ``changes`` set, if it is in the version seen.

    Args:
        session: a watched session (a ``scoped_session`` too), or that of a unit of work.
        pk: the primary key, as ``session.get()`` takes it.
        changes: attribute -> new value.
        expected: the client's strong ETags, quotes included, or a version that is no text, as
            :func:`optilock.expect` takes it.
        version: the version itself, instead of ``expected``.
        seen: attribute -> value that the client had loaded, of columns that may be changed. It is
            compared with the stored values, and appears only in the error's entry.

    Raises:
        PreconditionFailed: the row is in another version, or missing; the entry has ``changes``. A
            key that no row can have counts as that of a missing row.
        BadEntity: before anything is read: a name in ``changes`` or ``seen`` is no column, or may
            not be edited. With the row in hand, and nothing set: its column cannot hold a value.
        BadPrecondition: before anything is read: the client's text is no tag (400), or there is
            none, or ``*`` (428).
        ConfigurationError: before anything is read: the session is not watched, the class has no
            version, there is no such kind of key, or ``version`` cannot be one.
    """
    session = given_session(session, "apply", "await optilock.asyncio.apply(session, ...)")
    mapper = mapper_to_edit(session, model, "apply")
    check_names(mapper, changes, "changed")
    known = seen_values(mapper, seen)
    want = read_demand("apply", model.__name__, expected, version)
    try:
        identity = key_of_row(session, "apply", mapper, pk)
    except NotFound as error:
        raise missing_row_error(mapper, error.identity, "update", want, changes, known) from None
    obj = row_to_edit(session, mapper, identity, want)
    if obj is None:
        raise missing_row_error(mapper, identity, "update", want, changes, known)
    state = instance_state(obj)
    loaded = loaded_version(state, "apply")
    if not matches(state, loaded, want):
        raise version_error(session, state, loaded, want, changes=changes, seen=known)
    values = normalise_changes(state, changes, known)
    promise_to_client(session, state, loaded)
    set_values(session, obj, values)
    return obj  # type: ignore[no-any-return]


def normalise_changes(state: State, changes: Mapping[str, Any], seen: Values) -> Mapping[str, Any]:
    """Return the changes as the columns have them, compared with the object's values.

    A value that is not loaded is read if a text was sent for it: an untouched field is no change.
    """
    texts = {name for name, value in changes.items() if isinstance(value, str)}
    if not texts:
        return changes
    mapper = state.mapper
    columns, obj = facts(mapper).columns, state.obj()
    names = {name: columns_of(mapper, name)[0] for name in texts if name not in mapper.composites}
    given = {one: changes[name] for name, one in names.items() if one in columns}
    held = {one: getattr(obj, one) for one in given}
    known = normal_values(mapper, {one: seen[one] for one in given if one in seen}, held)
    found = normal_values(mapper, given, held, known)
    return {name: found.get(names.get(name, ""), value) for name, value in changes.items()}


def mapper_to_edit(session: Session, model: Any, call: str) -> Mapper[Any]:
    """Return the mapper of a versioned class in a watched session.

    Raises:
        ConfigurationError: the class has no version, or the session is not watched.
    """
    if not is_watched(session):
        raise ConfigurationError(
            f"{call}() got a session that is not watched, and its write would not compare the"
            " version: use a unit of work, or optilock.watch() on the session factory."
        )
    mapper = inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise ConfigurationError(f"{call}() got {model!r}, which is not a mapped class.")
    if not facts(mapper).token:
        raise ConfigurationError(
            f"{call}() got {mapper.class_.__name__}, whose rows have no version: {HINT_ADD_TOKEN}."
        )
    return mapper


def row_to_edit(
    session: Session, mapper: Mapper[Any], identity: Identity, want: VersionDemand
) -> Any:
    """Return the object of the row, or ``None``; read it again if it is older than demanded."""
    key = mapper.identity_key_from_primary_key(identity)
    read_before = _held(session, mapper, key)
    obj = session.get(mapper.class_, identity)
    if obj is None:
        return None
    state = instance_state(obj)
    if (read_before is obj or state.key != key) and _may_be_older(session, state, want):
        return session.get(mapper.class_, state.identity, populate_existing=True)
    return obj


def _held(session: Session, mapper: Mapper[Any], key: Any) -> object:
    """Return the object that the session had read before, which is not read now."""
    held = session.identity_map.get(key)
    return held if held is not None and facts(mapper).token in instance_state(held).dict else None


def _may_be_older(session: Session, state: State, want: VersionDemand) -> bool:
    """Return whether the client may have seen a newer version than the session."""
    obj = state.obj()
    if state.modified or obj is None or obj in session.deleted:
        return False
    return not matches(state, loaded_version(state, want.call), want)


def set_values(session: Session, obj: object, changes: Mapping[str, Any]) -> None:
    """Set all of the changes, or none if a validator or a column refuses one.

    Raises:
        BadEntity: a column cannot hold a value as the object has stored it.
    """
    begun: list[str] = []
    state = instance_state(obj)
    try:
        for name, value in changes.items():
            begun.append(name)
            setattr(obj, name, value)
        _refuse_unfit(session, state, changes)
    except BaseException:
        session.expire(obj, begun)
        raise


def _refuse_unfit(session: Session, state: State, changes: Iterable[str]) -> None:
    mapper, held = state.mapper, state.dict
    columns = facts(mapper).columns
    for name in {one for named in changes for one in columns_of(mapper, named)}:
        if name not in columns or name not in held:
            continue
        value = held[name]
        if not surely_holds(value, columns[name].type) and not is_expression(value):
            refuse_unfit(session, mapper, name, value)
