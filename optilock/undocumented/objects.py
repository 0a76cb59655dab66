"""Objects: what of them has changed, is to be read again, or belongs to a parent."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import InstanceState, PassiveFlag
from sqlalchemy.orm.attributes import manager_of_class

State = InstanceState[Any]


def mark_changed(state: State, name: str, before: Any) -> None:
    """Let the next flush write the attribute, whose stored value is ``before``; without events."""
    state._modified_event(state.dict, state.manager[name].impl, before)


def belongs_to(state: State, parent: State, name: str) -> None:
    """The object is in the collection ``name`` of its parent again, and no orphan."""
    impl: Any = parent.manager[name].impl
    impl.sethasparent(state, parent, True)


def expire_attribute(state: State, name: str) -> None:
    """Let the attribute be read when it is asked for."""
    state._expire_attributes(state.dict, (name,))


def expire_attributes(state: State, names: list[str]) -> None:
    """The same of several; listeners to ``expire`` are called once."""
    state._expire_attributes(state.dict, names)


def read_expired(state: State) -> None:
    """Read all that is expired of the object now."""
    state._load_expired(state, PassiveFlag.PASSIVE_OFF)


def take_as_stored(state: State) -> None:
    """What the object holds is what is stored: nothing of it is changed."""
    session = state.session
    state._commit_all(state.dict, None if session is None else session.identity_map)


def left_out(state: State, query: Any) -> list[str]:
    """Attributes that options of the query leave out of its rows, and that the object still holds.

    SQLAlchemy notes for such an object that they are deferred, and leaves the values in place.
    """
    if not (state.callables and query.attributes):
        return []
    paths = (state.load_path, state.mapper._path_registry)
    held = (name for name in state.callables if name in state.dict)
    return [name for name in held if any(_is_deferred(state, name, query, p) for p in paths)]


def _is_deferred(state: State, name: str, query: Any, path: Any) -> bool:
    option = state.mapper.attrs[name]._get_context_loader(query, path)
    return option is not None and ("deferred", True) in (option.strategy or ())


def is_child(state: State, parent: type[Any], key: str) -> bool | None:
    """Does an object of ``parent`` have it in ``key``? ``None``: it was loaded, and not moved."""
    has_parent = manager_of_class(parent).has_parent
    known = {has_parent(state, key, optimistic=guess) for guess in (True, False)}
    return known.pop() if len(known) == 1 else None
