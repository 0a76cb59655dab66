"""Flushes that the guard carries out itself: whether it may, and how it writes a class.

Three things must hold. The installed release of SQLAlchemy passes the self-test, and flushes as one
that is known (:mod:`optilock._watched.guard.release`). The session does not have its own flush
switched off. The class is simple enough (:func:`plan_of`): one table, each value known to Python
before it is written, no listeners of its rows. Otherwise SQLAlchemy carries out the flush: guarded
as well, with the same errors, and slower.
``OPTILOCK_OWN_FLUSH=0`` in the environment, and ``watch(..., own_flush=False)``, do the same. If
that removes a fault, the fault is in the own flush.

The first flush of a class also checks that the guard sees the statements of the class at all. If
SQLAlchemy ever sends them in another way, that flush raises and the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy
from sqlalchemy import Column, Table, Update
from sqlalchemy.orm import Mapper, Session, UOWTransaction

from optilock import events
from optilock._mapped import State, facts
from optilock._mapping.original_values import changed_names
from optilock._undocumented import flushes
from optilock._undocumented.mappers import expire_attributes, keep_with_mapping
from optilock._watched.guard.written_rows import note_expressions
from optilock._watched.writes.shapes import compared_columns, is_shown
from optilock.errors import ConfigurationError

#: An attribute of a session class: the :class:`Switch` of its simple flushes.
OWN_FLUSH = "_optilock_own_flush"
#: In a mapper: its :class:`UpdatePlan`; ``None``: it needs SQLAlchemy's own.
PLAN = "_optilock_update_plan"
#: In a mapper: the guard has checked that it sees the statements of the class.
_SEEN = "_optilock_seen_in_flush"


# -- the release and the switch --------------------------------------------------------------------


class Switch:
    """Whether simple flushes of sessions are the guard's own."""

    __slots__ = ("on",)

    def __init__(self, on: bool) -> None:
        self.on = on


#: For the process, once the release is checked.
installed_release = Switch(False)
ON, OFF = Switch(True), Switch(False)

#: Return whether the session's simple flushes are the guard's own. A C function, because each
#: flush calls it.
has_own_flush: Callable[[Session], bool] = attrgetter(f"{OWN_FLUSH}.on")


def check_own_flush(cls: type[Session], own_flush: Any) -> None:
    """Store the option of ``watch``; ``None`` leaves the class as it is."""
    if own_flush is None:
        return
    if not isinstance(own_flush, bool):
        raise ConfigurationError(f"own_flush={own_flush!r} is neither True, False nor None.")
    setattr(cls, OWN_FLUSH, installed_release if own_flush else OFF)


# -- the plan of a class ---------------------------------------------------------------------------


class UpdatePlan(NamedTuple):
    """The UPDATE of changed columns of a class, and the parameters that it takes."""

    statement: Update
    options: Mapping[str, Any]
    #: Attribute -> the parameter of its column, and the function that compares two of its values.
    columns: Mapping[str, tuple[str, Any]]
    #: The version: its attribute, the parameter that finds it, and the one that sets it.
    version: tuple[str, str, str]
    #: Attribute and parameter of each part of the key.
    keys: tuple[tuple[str, str], ...]
    #: Column -> attribute, for columns that have one.
    names: Mapping[Any, str]
    #: The guard has not seen a statement of the class yet.
    is_first: bool
    #: Dependencies of other rows on rows of the class, and how many there were: more may come.
    followers: Collection[Any]
    known_followers: int


def plan_of(mapper: Mapper[Any]) -> UpdatePlan | None:
    """Make the plan of a class, and keep it in the mapper once its statements were seen.

    ``None``: SQLAlchemy must plan the flush, or flush the class for the first time.
    """
    if not (_is_one_table(mapper) and _has_plain_values(mapper)):
        return keep_with_mapping(mapper, PLAN, None)
    sent = flushes.update_sent_for(mapper)
    if sent is None:
        return None
    plan = _made(mapper, *sent)
    return plan if plan.is_first else keep_with_mapping(mapper, PLAN, plan)


def _is_one_table(mapper: Mapper[Any]) -> bool:
    """Return whether a row of the class is one row of one table, and no other row points to it."""
    table = mapper.persist_selectable
    return (
        isinstance(table, Table)
        and facts(mapper).is_alone
        and mapper.polymorphic_on is None
        and {*mapper.primary_key} == {*table.primary_key}
        and all(other.mapper is not mapper for other in mapper.relationships)
        and all(
            len(attribute.columns) == 1
            and attribute.columns[0] in table.columns.values()
            and facts(mapper).names[attribute.columns[0]] == attribute.key
            for attribute in mapper.column_attrs
        )
    )


def _has_plain_values(mapper: Mapper[Any]) -> bool:
    """Return whether Python knows each value of a row, and the version, before the write."""
    return (
        isinstance(facts(mapper).version, Column)
        and callable(mapper.version_id_generator)
        and not facts(mapper).is_read_back
        and mapper.batch
        and mapper.eager_defaults is not True
    )


def _made(mapper: Mapper[Any], statement: Update, cache: Any) -> UpdatePlan:
    known = facts(mapper)
    parameters: Mapping[Any, str] = compared_columns(statement) or {}
    version, fixed = known.version, {known.version, *mapper.primary_key}
    fixed |= flushes.columns_others_follow(mapper)
    return UpdatePlan(
        statement,
        {"compiled_cache": cache},
        {
            name: (column.key, flushes.comparison_of(mapper, name))
            for name, column in known.columns.items()
            if column not in fixed
        },
        (known.token, parameters[version], version.key),
        tuple((known.names[key], parameters[key]) for key in mapper.primary_key),
        {column: name for name, column in known.columns.items()},
        not is_shown(mapper),
        flushes.followers_of(mapper),
        len(flushes.followers_of(mapper)),
    )


def fill_in_columns(
    plan: UpdatePlan, state: State, compiled: Any, sent: Mapping[str, Any], hear: Any
) -> None:
    """Give the object the values that Python has made of columns at the write."""
    filled_in = []
    for column in compiled.prefetch:
        if column in plan.names and column.key in sent:
            name = plan.names[column]
            filled_in.append(name)
            state.dict[name] = sent[column.key]
            state.committed_state.pop(name, None)
    token, _, new = plan.version
    if new in sent:
        filled_in.append(token)
    if hear and filled_in:
        hear(filled_in)
    if compiled.postfetch:  # what the database has made is read later
        expire_attributes(state, [plan.names[c] for c in compiled.postfetch if c in plan.names])


# -- the first flush of a class: does the guard see its statements? --------------------------------


def execute_planned(uow: UOWTransaction) -> None:
    """Let SQLAlchemy write the rows, and refuse a first flush of a class that the guard missed.

    Raises:
        ConfigurationError: SQLAlchemy sends its statements in a way that the guard does not know.
    """
    first: list[Mapper[Any]] = []
    for mapper in uow.mappers:  # no call of Python, for every flush that is planned
        if _SEEN not in mapper.__dict__:
            first.append(mapper)
    versions = _unseen_versions(uow, first) if first else None
    if events.listeners_to_rows:
        note_expressions(uow)
    UOWTransaction.execute(uow)
    if versions:
        _refuse_unseen_rows(uow, versions)


def _unseen_versions(uow: UOWTransaction, first: Iterable[Mapper[Any]]) -> dict[State, Any]:
    """Return the versions of stored objects whose class has shown the guard no statement yet."""
    found = {}
    for mapper in first:
        if is_shown(mapper) or not isinstance(facts(mapper).version, Column):
            mapper.__dict__[_SEEN] = True
            continue
        token = facts(mapper).token
        found.update({s: s.dict.get(token) for s in uow.mappers[mapper] if s.key is not None})
    return found


def _refuse_unseen_rows(uow: UOWTransaction, versions: Mapping[State, Any]) -> None:
    for state, before in versions.items():
        mapper, (is_delete, listed) = state.mapper, uow.states.get(state, (False, True))
        moved = bool(changed_names(state)) and state.dict.get(facts(mapper).token) != before
        if not listed and (is_delete or moved):
            refuse_unseen(mapper)


def refuse_unseen(mapper: Mapper[Any]) -> None:
    """Raise ``ConfigurationError`` if rows of the class were written, and the guard saw none."""
    if not is_shown(mapper):
        raise ConfigurationError(
            f"SQLAlchemy {sqlalchemy.__version__} writes rows of {mapper.class_.__name__} in a way"
            " that optilock does not know, so no conflict of theirs would be noticed: install a"
            " release of SQLAlchemy that this release of optilock was tried with, or a newer"
            " optilock. The transaction is rolled back."
        )
