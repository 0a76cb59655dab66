"""Aggregates: a root whose version moves when anything that belongs to it changes.

::

    class Order(Versioned, Base):
        __version_root_of__ = ("lines",)          # names of its relationships
        lines: Mapped[list[Line]] = relationship(back_populates="order")

A session that adds, changes, removes or re-parents a line moves the version of the order (of both
orders), once a flush, and checks it: two sessions that change different lines of one order conflict
on the order. Off by default: rows that do not depend on each other should not wait for each other.

Of a one-to-many relationship the rows of the children count, with all their columns that are not
ignored; of a many-to-many relationship the link rows, not the objects behind them. A child that is
itself a root passes it on. A new root has its first version anyway; one that is deleted is left
alone; those that are not in the session are read and locked together. One that the transaction has
read stays in the session to its end, though the program has dropped it: a decision about its parts
was made in that version. One that is expired is checked in the version that a watched session has
seen, unless its parts are read: its row is read for that.
The root's entry in a conflict has no ``changes``, so ``merge_fields`` settles it. Not if a part
without a version was changed or removed: then no entry shows whether both sides changed that row.

The roots of a child (:mod:`optilock._watched.rows.roots`) are found before each flush
(:mod:`optilock._watched.session.order`), in plain sessions as well. Between an edit of a part and
the flush, :func:`unflushed_part` finds the part for ``etag_of``, and reads nothing.
Statements that write children around the session (``update(Line)``, SQL) are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.orm import (
    NO_VALUE,
    Mapper,
    RelationshipDirection,
    RelationshipProperty,
    Session,
    SessionTransaction,
)
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts, identity_of
from optilock._mapping.moves import touch_state
from optilock._mapping.original_values import edit_that_counts
from optilock._undocumented.flushes import classes_to_flush
from optilock._watched.rows.changes import changes_of
from optilock._watched.rows.roots import (
    LOADED_OR_PENDING,
    READING,
    Cover,
    InMemory,
    Reading,
    Together,
    covers_by_class,
    covers_of,
    declared_covers,
    find_roots,
    foreign_keys_of,
    key_of_root,
)
from optilock._watched.rows.seen import recall_version
from optilock._watched.rows.touch import (
    ROOTS,
    ROOTS_LEFT,
    note_roots,
    states_kept_for_others,
    touch_with_next_flush,
)
from optilock._watched.session.order import add_step
from optilock._watched.session.record import (
    RECORD_KEY,
    STRICT_KEY,
    SessionRecord,
    keeps_version,
)
from optilock.errors import ConfigurationError, row_name

#: The roots that a transaction has read. The session itself holds an unchanged object weakly.
_read: WeakKeyDictionary[SessionTransaction, dict[int, Any]] = WeakKeyDictionary()


def cover(mapper: Mapper[Any], names: Any) -> None:
    """Let changes of these relationships' rows move the version of ``mapper``'s rows.

    Raises:
        ConfigurationError: a name is not that of a relationship that owns rows, the class has no
            version that moves by itself, or a root would be its own child.
    """
    known = {one.relationship for one in declared_covers}
    for name in names:
        relationship = _relationship(mapper, name)
        if relationship not in known:
            _refuse_inherited(mapper, relationship)
            declared_covers.append(Cover(mapper, relationship))
            _refuse_circle(mapper, relationship)
    covers_by_class.clear()
    for name in ("load", "refresh"):
        event.listen(mapper.class_, name, _keep, raw=True, propagate=True)


def expect_cover() -> None:
    """Look for roots in each flush from here on: a class is mapped that declares what it covers."""
    covers_by_class.clear()
    add_step(
        "roots",
        _concerned,
        before_flush=_touch_roots,
        after_flush=_note_left,
        after_flush_postexec=_touch_left,
    )


def _keep(state: State, *_: Any) -> None:
    """Hold a root that was read until the transaction ends, so that its version is still known.

    A unit that only reads writes no parts, and may read more roots than the memory has room for.
    """
    session: Any = state.session
    transaction = None if session is None else session.get_transaction()
    if transaction is not None and not _only_reads(session):
        root = state.obj()
        _read.setdefault(transaction, {})[id(root)] = root


def _only_reads(session: Session) -> bool:
    record: SessionRecord | None = session.__dict__.get(RECORD_KEY)
    owner = None if record is None else record.owner
    return owner is not None and owner.read_only


# -- at a flush ------------------------------------------------------------------------------------


def _concerned(session: Session) -> bool:
    """Return whether the session flushes parts or roots, or its last flush did."""
    if session.__dict__.get(ROOTS) or ROOTS_LEFT in session.__dict__:
        return True
    return any(any(covers_of(mapper)) for mapper in classes_to_flush(session))


def _touch_roots(session: Session, uow: Any, objects: Any) -> None:
    """Touch the roots of all that changed, and the roots of these, in the versions seen."""
    left = session.__dict__.pop(ROOTS_LEFT, ())
    waiting = [*session.new, *session.dirty, *session.deleted]
    touched: dict[State, Any] = {}
    look = Together()
    while waiting:
        waiting = _touch(session, waiting, touched, look)
        if waiting:
            look.read(session, uow)
        elif look.unsure:
            waiting = look.read_parts(session, uow)
    note_roots(session, touched, left)


def _touch(
    session: Session, waiting: list[Any], touched: dict[State, Any], look: Together
) -> list[Any]:
    """Touch the roots of these objects; return those with roots that have to be read."""
    later = []
    while waiting:
        obj = waiting.pop()
        changed, is_sure = _row_changed(session, instance_state(obj)), False
        for root in _roots(session, obj, changed, look):
            state = instance_state(root)
            if not _is_there(session, root):
                continue
            if state not in touched:
                touched[state] = None
                recall_version(state)
                touch_state(state)
                waiting.append(root)
            part = _part_without_version(obj, root, changed)
            if part is None or not _was_of(part, root):
                continue
            if look.has_read(state):
                _refuse_unseen(session, part, root)
            is_sure |= not look.has_read(state)
            touched[state] = part
        if look.absent:
            later.append(obj)
        elif changed and not is_sure:
            look.note_unsure(instance_state(obj))
    return later


# -- after it --------------------------------------------------------------------------------------


def _note_left(session: Session, uow: Any) -> None:
    """Note the roots of rows that were not stored as they had been read, and those left as stored.

    A resolver may keep the stored row of a root, though parts of it are written.
    """
    left: dict[Any, tuple[Mapper[Any], dict[Any, Any]]] = {}
    for change in changes_of(session, uow, foreign_keys_of):
        state = change.state
        if change.unforeseen and not keeps_version(session, state.obj()):
            for one in covers_of(state.mapper)[0]:
                for row in (change.before, change.after):
                    values = None if row is None else key_of_root(state.mapper, one, row)
                    if values:
                        left[one.root, tuple(values.values())] = one.root, values
    for state in states_kept_for_others(session, uow):  # its parts were written
        session.__dict__[ROOTS].pop(state, None)
        keys = state.mapper.primary_key
        values = dict(zip(keys, identity_of(state), strict=True))
        left[state.mapper, tuple(values.values())] = state.mapper, values
    if left:
        session.__dict__[ROOTS_LEFT] = list(left.values())


def _touch_left(session: Session, uow: Any) -> None:
    """Touch them, unless the flush did: the next flush of the session writes them."""
    touched, left = session.__dict__.get(ROOTS, ()), []
    for root in Together().all(session, uow, session.__dict__.pop(ROOTS_LEFT, ())):
        state = instance_state(root)
        if state not in touched and _is_there(session, root):
            touch_with_next_flush(state)
            left.append(state)
    if left:
        session.__dict__[ROOTS_LEFT] = left


def _part_without_version(obj: Any, root: Any, row_changed: bool) -> Any:
    """Return the stored row for whose change ``obj`` moves ``root``, if it has no version."""
    state = instance_state(obj)
    if obj is not root:
        return obj if row_changed and state.key and not facts(state.mapper).guarded else None
    for one in covers_of(state.mapper)[1]:
        if not one.by_links:
            for child in state.get_history(one.relationship.key, LOADED_OR_PENDING).deleted:
                if child is not None and not facts(instance_state(child).mapper).guarded:
                    return child
    return None


def _was_of(part: Any, root: Any) -> bool:
    """Return whether the row was a part of ``root`` when it was read: others then move that one."""
    state, of = instance_state(part), instance_state(root)
    for one in covers_of(state.mapper)[0]:
        if one.by_links or not of.mapper.isa(one.root):
            continue
        pairs = [
            (of.dict.get(facts(of.mapper).names[parent]), facts(state.mapper).names[child])
            for parent, child in one.relationship.local_remote_pairs or ()
        ]
        before = {**state.dict, **state.committed_state}
        if all(before.get(name, NO_VALUE) in (NO_VALUE, value) for value, name in pairs):
            return True
    return False


def _refuse_unseen(session: Session, part: Any, root: Any) -> None:
    """Refuse, in a strict session, a change that no version compares.

    Raises:
        ConfigurationError: nothing was sent.
    """
    if not getattr(session, STRICT_KEY, False):  # a plain session has none
        return
    row, of = (row_name(type(one), identity_of(instance_state(one))) for one in (part, root))
    raise ConfigurationError(
        f"{row} was to be changed in a strict session. Its class has no version, and {of}, whose"
        " version would show the changes of other transactions, was not read before. Read"
        f" {type(root).__name__} before its part, or add the mixin optilock.Versioned to"
        f" {type(part).__name__}. Nothing was sent."
    )


def unflushed_part(state: State) -> Any:
    """Return a part, or the object itself, for which the next flush moves the version of ``state``.

    Nothing is read. Where the root of a changed part is not in memory, the part is returned, too.
    """
    session = state.session
    if session is None or not covers_of(state.mapper)[1]:
        return None
    for changed in (*session.new, *session.dirty, *session.deleted):
        if not _leads_to(instance_state(changed).mapper, state.mapper):
            continue
        seen: set[State] = set()
        waiting = [(changed, _row_changed(session, instance_state(changed)))]
        while waiting:
            look = InMemory()
            for root in _roots(session, *waiting.pop(), look):
                found = instance_state(root)
                if found is state:
                    return changed
                if found not in seen and _is_there(session, root):
                    seen.add(found)
                    waiting.append((root, True))
            if look.missed or any(covers_of(one)[0] for one in look.absent):
                return changed
    return None


def _roots(session: Session, obj: Any, row_changed: bool, look: Reading = READING) -> Iterator[Any]:
    """Yield the roots that the object's changes belong to, itself included."""
    state = instance_state(obj)
    of_child, of_root = covers_of(state.mapper)
    for one in of_root:
        history = state.get_history(one.relationship.key, LOADED_OR_PENDING)
        if history.added or history.deleted:
            yield obj
        if not one.by_links:  # the roots that they had before
            for child in history.added:
                if child is not None:
                    yield from find_roots(
                        session, instance_state(child), one.root, one.relationship, look
                    )
    for one in of_child:
        if one.by_links or row_changed:
            yield from find_roots(session, state, one.root, one.relationship, look)


def _row_changed(session: Session, state: State) -> bool:
    obj = state.obj()
    if state.key is None or obj in session.deleted:
        return True
    return not keeps_version(session, obj) and edit_that_counts(state) is not None


def _is_there(session: Session, obj: Any) -> bool:
    return (
        instance_state(obj).persistent
        and obj not in session.deleted
        and not keeps_version(session, obj)
    )


def _leads_to(mapper: Mapper[Any], root: Mapper[Any]) -> bool:
    """Return whether the class is that root's, or one of its parts', or one of theirs."""
    return mapper.common_parent(root) or any(
        _leads_to(one.root, root) for one in covers_of(mapper)[0]
    )


def roots_of_object(session: Session, obj: Any) -> Iterator[Any]:
    """Yield the roots that a stored object is a part of, itself not included."""
    state = instance_state(obj)
    for one in covers_of(state.mapper)[0]:
        if not one.by_links:
            yield from find_roots(session, state, one.root, one.relationship)


def roots_of(mapper: Mapper[Any], *, by_links: bool) -> list[str]:
    """Return the relationships by which a row of the class, or a link to it, is part of a root."""
    return [
        f"{one.root.class_.__name__}.{one.relationship.key}"
        for one in covers_of(mapper)[0]
        if by_links or not one.by_links
    ]


# -- refusals --------------------------------------------------------------------------------------


def _relationship(mapper: Mapper[Any], name: str) -> RelationshipProperty[Any]:
    what = f"{mapper.class_.__name__}.__version_root_of__ names {name!r}, which is"
    known = facts(mapper)
    if not known.token or known.by_application or known.by_values:
        raise ConfigurationError(
            f"{mapper.class_.__name__} has __version_root_of__, but no version that moves by"
            " itself: give it a token that has a column and can be moved, such as Counter()."
        )
    relationship = mapper.relationships.get(name)
    if relationship is None:
        names = ", ".join(sorted(mapper.relationships.keys())) or "none"
        raise ConfigurationError(f"{what} not a relationship. It has: {names}.")
    if relationship.viewonly:
        raise ConfigurationError(f"{what} viewonly: it is never written. Name the one that is.")
    if relationship.direction is RelationshipDirection.MANYTOONE:
        raise ConfigurationError(
            f"{what} many-to-one: the row on its other side belongs to itself, and to all that"
            f" point to it. Name {mapper.class_.__name__} in the other class's"
            " __version_root_of__, if it is that one's child."
        )
    return relationship


def _refuse_inherited(mapper: Mapper[Any], relationship: RelationshipProperty[Any]) -> None:
    """Refuse an inherited relationship: its rows may belong to the parent or another subclass."""
    owner = relationship.parent
    if owner is not mapper:
        raise ConfigurationError(
            f"{mapper.class_.__name__}.__version_root_of__ names {relationship.key!r}, which is"
            f" inherited from {owner.class_.__name__}: its rows belong to all of these. Name it in"
            f" {owner.class_.__name__}.__version_root_of__."
        )


def _refuse_circle(mapper: Mapper[Any], relationship: RelationshipProperty[Any]) -> None:
    """Refuse a class that would be the root of itself, directly or through others."""
    waiting, seen = [relationship.mapper], set()
    while waiting:
        child = waiting.pop()
        if _share_rows(child, mapper):
            kept = [one for one in declared_covers if one.relationship is not relationship]
            declared_covers[:] = kept
            raise ConfigurationError(
                f"{mapper.class_.__name__}.__version_root_of__ names {relationship.key!r}, which"
                f" makes {mapper.class_.__name__} a part of itself: a change would go around"
                " forever. Leave it out."
            )
        if child not in seen:
            seen.add(child)
            waiting += [
                one.relationship.mapper
                for one in declared_covers
                if _share_rows(one.root, child) and not one.by_links
            ]


def _share_rows(one: Mapper[Any], other: Mapper[Any]) -> bool:
    """Return whether one object can be of both classes: two children of one parent cannot."""
    return one.isa(other) or other.isa(one)
