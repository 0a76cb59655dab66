"""Rows that a statement of a session has written, for :class:`optilock.events.Written`.

Rows that are given by their keys are known. Those of ``update(Model).where(...)`` are not: reading
them would be one more statement, so there is one event with their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Delete, Insert, Update, inspect
from sqlalchemy.orm import FromStatement, Mapper, Session

from optilock._mapped import State, facts, identity_of
from optilock._mapping.tables import owner_of
from optilock._undocumented.statements import subject_of
from optilock._watched.session.commit_events import author_of, note_row
from optilock._watched.statements.version import columns_set

_ACTIONS = {Update: "update", Delete: "delete", Insert: "insert"}


def note_statement_rows(session: Session, statement: Any, params: Any, result: Any) -> None:
    """Note the rows of an UPDATE, DELETE or INSERT that was sent."""
    if isinstance(statement, FromStatement):
        statement = statement.element
    action = next((name for kind, name in _ACTIONS.items() if isinstance(statement, kind)), None)
    mapper = None if action is None else _mapper_of(statement)
    if action is None or mapper is None:
        return
    names = _names(mapper, statement, params)
    if isinstance(params, Mapping):
        params = [params]
    if action != "delete" and isinstance(params, list) and _have_keys(mapper, params):
        note_rows_by_key(session, mapper, action, params, names)
        return
    count = getattr(result, "rowcount", -1)
    if count:
        rows = count if isinstance(count, int) and count > 0 else None
        note_row(session, mapper, action, columns=names, rows=rows)


def note_rows_by_key(
    session: Session,
    mapper: Mapper[Any],
    action: str,
    rows: Iterable[Mapping[str, Any]],
    names: Iterable[str] = (),
) -> None:
    """Note rows that are given as mappings with their keys."""
    known = facts(mapper)
    following: Any = mapper.version_id_generator
    for row in rows:
        keys = tuple(row.get(name) for name in known.keys)
        given = row.get(known.token)
        inserts = action == "insert"
        columns = known.columns if inserts else known.columns.keys() - {*known.keys}
        version = following(None if inserts else given) if callable(following) else None
        note_row(
            session,
            mapper,
            action,
            None if None in keys else keys,
            before=None if inserts else given,
            version=version,
            columns=dict.fromkeys((*names, *(name for name in row if name in columns))),
            author=author_of(mapper, row),
        )


def note_saved(session: Session, states: Iterable[State], stored: Mapping[State, Any]) -> None:
    """Note objects that ``bulk_save_objects()`` has written; ``stored``: versions before it."""
    for state in states:
        known = facts(state.mapper)
        inserts = state not in stored
        following: Any = state.mapper.version_id_generator
        key = None if state.key is None and inserts else identity_of(state)
        if key is None and all(name in state.dict for name in known.keys):
            key = tuple(state.dict[name] for name in known.keys)
        note_row(
            session,
            state.mapper,
            "insert" if inserts else "update",
            key,
            before=stored.get(state),
            version=following(None) if inserts and callable(following) else _version(state),
            columns=[name for name in known.columns if name in state.dict],
            author=author_of(state.mapper, state.dict),
        )


def _version(state: State) -> Any:
    token = facts(state.mapper).token
    return state.dict.get(token) if token else None


def _have_keys(mapper: Mapper[Any], rows: list[Any]) -> bool:
    keys = facts(mapper).keys
    return all(isinstance(row, Mapping) and all(name in row for name in keys) for row in rows)


def _mapper_of(statement: Any) -> Mapper[Any] | None:
    subject = inspect(subject_of(statement), raiseerr=False)
    mapper = getattr(subject, "mapper", None)
    return mapper if isinstance(mapper, Mapper) else owner_of(getattr(statement, "table", None))


def _names(mapper: Mapper[Any], statement: Any, params: Any) -> list[str]:
    if isinstance(statement, Delete):
        return []
    known = facts(mapper)
    if isinstance(statement, Update):
        columns = columns_set(mapper, statement, params)
    else:
        given = statement.compile().params if not params else {}
        columns = {known.columns[name] for name in known.columns if name in given}
    return [name for name, column in known.columns.items() if column in columns]
