"""Edit this row, if it still is what I saw: a web form or an API's PATCH in one call.

::

    with UnitOfWork(SessionLocal) as session:
        apply(session, Page, 7, form.changes, expected=form.version)

The names are checked first, then the row is read, then its version, then the values are set. So a
bad name reads nothing, and an edit for another version sets nothing. What is written, and when, is
the session's business: the flush writes it, and there the version still is a condition
(:func:`optilock.expect`).

``changes`` come from outside, so only columns may be named, and neither the key, nor the version,
nor the column that says which class the row is. Which of the others a client may edit is for the
application to say: pass it what is allowed, and not the whole form.

With an ``AsyncSession``: ``await optilock.asyncio.apply(session, Page, 7, ...)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import Column, inspect
from sqlalchemy.orm import Mapper, Session

from optilock.errors import ConfigurationError, PreconditionFailed
from optilock.http.etags import identity_given
from optilock.mapped import GIVE_ONE, Identity, State, facts
from optilock.preconditions.etag import NOT_GIVEN, Wanted, demanded, matches, wanted
from optilock.preconditions.expect import expect, failed, loaded_version
from optilock.rows.sides import Attempt, entry_of
from optilock.session.connections import session_given
from optilock.session.watched import is_watched

T = TypeVar("T")


def apply(
    session: Session,
    model: type[T],
    pk: Any,
    changes: Mapping[str, Any],
    *,
    expected: object = NOT_GIVEN,
    version: object = NOT_GIVEN,
) -> T:
    """The object of the row ``pk`` with ``changes`` set, if the row is the version that was seen.

    Args:
        session: a watched session (a ``scoped_session`` too), or that of a unit of work.
        pk: the primary key, as ``session.get()`` takes it.
        changes: attribute -> new value.
        expected: what the client has sent, strong ETags, quotes included; or a version that is no
            text: as :func:`optilock.expect` takes it.
        version: the version itself, instead of ``expected``.

    Raises:
        PreconditionFailed: the row is another version, or gone; its entry holds ``changes``.
        BadPrecondition: before anything is read: the client's text is no tag (400), or there is
            none, or ``*`` (428).
        ConfigurationError: before anything is read: the session is not watched, the class has no
            version, a name is no column or may not be edited, the key or ``version`` cannot be one.
    """
    session = session_given(session, "apply", "await optilock.asyncio.apply(session, ...)")
    mapper = _checked(session, model)
    _check_names(mapper, changes)
    identity = identity_given("apply", mapper, pk)
    want = wanted("apply", model.__name__, expected, version)
    read_before = _held(session, mapper, identity)
    obj = session.get(model, identity)
    if obj is None:
        raise _gone(mapper, identity, changes, want)
    state = inspect(obj)
    if read_before is obj or state.key != mapper.identity_key_from_primary_key(identity):
        _read_again_if_older(session, state, want)
    loaded = loaded_version(state, "apply")
    if not matches(state, loaded, want):
        raise failed(session, state, loaded, want, changes=changes)
    expect(obj, version=loaded)
    _set(session, obj, changes)
    return obj


def _checked(session: Session, model: Any) -> Mapper[Any]:
    if not is_watched(session):
        raise ConfigurationError(
            "apply() got a session that is not watched, where nobody would check the version at"
            " the write: use a UnitOfWork, or optilock.watch() on the session factory."
        )
    mapper = inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise ConfigurationError(f"apply() got {model!r}, which is not a mapped class.")
    if not facts(mapper).token:
        raise ConfigurationError(
            f"apply() got {mapper.class_.__name__}, whose rows have no version: {GIVE_ONE}."
        )
    return mapper


def _check_names(mapper: Mapper[Any], changes: Mapping[str, Any]) -> None:
    if not isinstance(changes, Mapping):
        raise ConfigurationError(
            f"apply() got {type(changes).__name__} as changes: write a mapping of attributes to"
            " values, {'title': 'New'}."
        )
    for name in changes:
        reason = _why_not(mapper, name)
        if reason is not None:
            raise ConfigurationError(
                f"apply() cannot change {mapper.class_.__name__}.{name}: {reason}. Nothing was"
                f" read. Columns that can be changed: {', '.join(sorted(_editable(mapper)))}."
            )


def _editable(mapper: Mapper[Any]) -> list[str]:
    return [one.key for one in mapper.column_attrs if _why_not(mapper, one.key) is None]


def _why_not(mapper: Mapper[Any], name: Any) -> str | None:
    """Why the attribute cannot be edited by name; ``None`` if it can."""
    if not isinstance(name, str) or name not in mapper.attrs:
        return "there is no such mapped attribute"
    if name in mapper.composites:
        return None
    if name in mapper.synonyms:
        return _why_not(mapper, mapper.synonyms[name].name)
    if name not in mapper.column_attrs:
        return "it is a relationship, and other rows are edited with their own versions"
    columns = mapper.column_attrs[name].columns
    if any(column in mapper.primary_key for column in columns):
        return "it is the primary key, by which the row is found"
    if name == facts(mapper).token:
        return "it is the version, which moves by itself"
    if mapper.polymorphic_on is not None and mapper.polymorphic_on in columns:
        return "it says which class the row is"
    if not isinstance(columns[0], Column):
        return "it is computed, and not a column"
    return None


def _held(session: Session, mapper: Mapper[Any], identity: Identity) -> object:
    """The object that the session had read before, so that reading it now sends nothing."""
    held = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return held if held is not None and facts(mapper).token in inspect(held).dict else None


def _read_again_if_older(session: Session, state: State, want: Wanted) -> None:
    """The client may have seen a newer version than the session, which had the object already."""
    obj = state.obj()
    if state.modified or obj is None or obj in session.deleted:
        return
    if not matches(state, loaded_version(state, "apply"), want):
        session.refresh(obj)


def _gone(
    mapper: Mapper[Any], identity: Identity, changes: Mapping[str, Any], want: Wanted
) -> PreconditionFailed:
    token = facts(mapper).token
    seen = {token: demanded(mapper, identity, want)}
    attempt = Attempt(mapper, identity, "update", seen, {**seen, **changes}, dict(changes))
    return PreconditionFailed([entry_of(attempt, None)])


def _set(session: Session, obj: object, changes: Mapping[str, Any]) -> None:
    """All of the changes, or none: a validator may refuse one of them."""
    begun: list[str] = []
    try:
        for name, value in changes.items():
            begun.append(name)
            setattr(obj, name, value)
    except BaseException:
        session.expire(obj, begun)
        raise
