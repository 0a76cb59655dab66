"""``update(Model)`` and ``delete(Model)`` through a watched session.

::

    session.execute(update(Account).where(Account.owner == "Ada").values(balance=0))

The version of every row that such a statement changes moves: its column has an ``onupdate``, so
this is true of plain sessions, of connections and of ``update(table)`` as well. A watched session
sees to three more things.

* Objects of these rows that the session holds get the new version, so that the next flush does not
  conflict with the session's own statement. Before the statement their rows are locked and looked
  at: an object that is older than its row keeps its version, and goes on to conflict. That look is
  one SELECT, and is sent only when the session holds objects of the class. With
  ``synchronize_session=False`` there is none, and the objects conflict until they are refreshed.
* Where only columns of a joined child's table change, the version in its parent's table moves.
* Where only ignored columns change, the version stays as it is.

UPDATE by primary key (a list of rows) needs the version in every row, and after
``bulk_save_objects`` the objects know their new version. An upsert has to move the version:
:mod:`optilock.guard.upserts`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Column, Insert, Select, Update, inspect, select, tuple_
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts import locked_table, read_stored
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.guard.state import watched
from optilock.guard.upserts import refuse_upsert
from optilock.seen import moved_by_us, version_seen
from optilock.tokens import Counter
from optilock.version_checks import check_tokens
from optilock.version_makers import made_by_application, touch_of
from optilock.versioned import ignored_columns, token_attribute

__all__ = ["guarded_bulk_save", "guarded_bulk_update", "guarded_execute"]

State = InstanceState[Any]
Execute = Callable[..., Any]


def guarded_execute(original: Execute) -> Execute:
    """``execute``, ``scalar`` or ``scalars`` of a watched session."""

    @functools.wraps(original)
    def execute(self: Session, statement: Any, params: Any = None, **options: Any) -> Any:
        if type(statement) is Select:  # most are
            return original(self, statement, params, **options)
        if type(statement) is not Update:
            if isinstance(statement, Insert):
                refuse_upsert(statement)
            return original(self, statement, params, **options)
        mapper = _mapper_of(statement)
        if mapper is None or token_attribute(mapper) is None:
            return original(self, statement, params, **options)
        if isinstance(params, list):
            if statement.whereclause is None:
                _require_versions(mapper, params)
            return original(self, statement, params, **options)
        return _by_criteria(self, original, mapper, statement, params, options)

    return execute


def guarded_bulk_update(original: Execute) -> Execute:
    """``bulk_update_mappings``: rows without a version are refused before anything is sent."""

    @functools.wraps(original)
    def bulk_update_mappings(self: Session, mapper: Any, mappings: Iterable[Any]) -> None:
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if isinstance(found, Mapper) and token_attribute(found) is not None:
            _require_versions(found, rows)
        original(self, mapper, rows)

    return bulk_update_mappings


def guarded_bulk_save(original: Execute) -> Execute:
    """``bulk_save_objects``: the objects of stored rows know the version that they have then."""

    @functools.wraps(original)
    def bulk_save_objects(
        self: Session, objects: Iterable[Any], *args: Any, **options: Any
    ) -> None:
        saved = list(objects)
        original(self, saved, *args, **options)
        for obj in saved:
            _follow(obj._sa_instance_state)

    return bulk_save_objects


def _follow(state: State) -> None:
    """A counted version is known; a random one was made by SQLAlchemy, and is read when needed."""
    key, following = token_attribute(state.mapper), state.mapper.version_id_generator
    if key is None or state.key is None or not state.modified or key not in state.dict:
        return
    if _counts(state.mapper) and callable(following):
        state.dict[key] = following(state.dict[key])
    elif state.session is not None:
        state._expire_attributes(state.dict, (key,))
    else:
        del state.dict[key]
    session = state.session
    state._commit_all(state.dict, None if session is None else session.identity_map)


def _mapper_of(statement: Update) -> Mapper[Any] | None:
    """The class that ``update(Model)`` names; ``None`` for ``update(table)``."""
    subject = statement._propagate_attrs.get("plugin_subject")
    mapper = getattr(subject, "mapper", None)
    return mapper if isinstance(mapper, Mapper) else None


# -- by criteria ---------------------------------------------------------------------------------


def _by_criteria(
    session: Session,
    original: Execute,
    mapper: Mapper[Any],
    statement: Update,
    params: Any,
    options: dict[str, Any],
) -> Any:
    token: Any = mapper.version_id_col
    columns = _set_columns(mapper, statement, params)
    explicit = token in columns
    if not explicit and (columns <= ignored_columns(mapper) or _stands_still(session, mapper)):
        return original(session, _unmoved(mapper, statement), params, **options)
    if made_by_application(mapper) and not explicit:
        return original(session, statement, params, **options)
    chosen = {**statement.get_execution_options(), **(options.get("execution_options") or {})}
    binds = {"mapper": mapper, **(options.get("bind_arguments") or {})}
    if chosen.get("autoflush", session.autoflush):
        session.flush()
    held: dict[Any, State] = {}
    if chosen.get("synchronize_session", "auto") is not False:
        held = _held(session, mapper)
    matched = _matching(session, binds, mapper, statement, params, held) if held else []
    if token.table is not mapper.local_table:
        _move_parent(session.connection(bind_arguments=binds), mapper, statement, params)
    key: Any = token_attribute(mapper)
    versions = [(state, state.dict[key]) for state in held.values() if key in state.dict]
    result = original(session, statement, params, **options)
    for state, version in versions:
        # SQLAlchemy expires it, or gives it the new value, also where the object is older.
        state.dict[key] = version
        state.expired_attributes.discard(key)
    if matched:
        _take_over(session, session.connection(bind_arguments=binds), mapper, matched, explicit)
    return result


def _set_columns(mapper: Mapper[Any], statement: Update, params: Any) -> set[Any]:
    """The columns that get a new value; what is no column stands for itself."""
    names: list[Any] = [*(statement._values or ())]
    names += [name for name, _ in getattr(statement, "_ordered_values", None) or ()]
    if isinstance(params, Mapping):
        names += [name for name in params if name in mapper.column_attrs]
    return {_column(mapper, name) for name in names}


def _column(mapper: Mapper[Any], name: Any) -> Any:
    if not isinstance(name, str):
        for column in mapper.columns:
            if column.shares_lineage(name):
                return column
        return name
    if name in mapper.column_attrs:
        return mapper.column_attrs[name].columns[0]
    return mapper.local_table.columns.get(name, name)


def _stands_still(session: Session, mapper: Mapper[Any]) -> bool:
    """Is a ``no_bump`` block open for all rows, or for this class?"""
    return any(
        issubclass(mapper.class_, still.classes) if still.classes else not still.objects
        for still in watched(session).still
    )


def _unmoved(mapper: Mapper[Any], statement: Update) -> Update:
    """The statement, saying that the version stays."""
    token: Any = mapper.version_id_col
    ordered = getattr(statement, "_ordered_values", None)
    if token.table is not mapper.local_table or token.onupdate is None or ordered:
        return statement  # an ordered statement cannot be added to: there the version moves
    return statement.values({token: token})


def _held(session: Session, mapper: Mapper[Any]) -> dict[Any, State]:
    """Objects of the class in the session whose version is known, by their keys."""
    key: Any = token_attribute(mapper)
    return {
        tuple(state.key[1]): state
        for state in session.identity_map.all_states()
        if state.mapper.isa(mapper) and state.key and version_seen(state, key) is not None
    }


def _matching(
    session: Session,
    binds: Any,
    mapper: Mapper[Any],
    statement: Update,
    params: Any,
    held: dict[Any, State],
) -> list[tuple[State, Any]]:
    """Those of ``held`` whose rows match, are locked now, and are the version they hold."""
    key: Any = token_attribute(mapper)
    connection = session.connection(bind_arguments=binds)
    database, table = database_of(connection.dialect), locked_table(mapper)
    database.begin_writing(connection, table)
    keys = [
        getattr(mapper.class_, mapper.get_property_by_column(c).key) for c in mapper.primary_key
    ]
    query = select(*keys, getattr(mapper.class_, key)).where(*statement._where_criteria)
    query = database.lock(query, table, deleting=False)
    found: list[tuple[State, Any]] = []
    identities = sorted(held, key=repr)
    step = max(1, (database.max_parameters or 30_000) // (len(keys) + 1))
    for start in range(0, len(identities), step):
        some = identities[start : start + step]
        here = keys[0].in_([one for (one,) in some]) if len(keys) == 1 else tuple_(*keys).in_(some)
        for row in connection.execute(query.where(here), params or {}):
            state = held.get(tuple(row[:-1]))
            if state is not None and version_seen(state, key) == row[-1]:
                found.append((state, row[-1]))
    return found


def _move_parent(
    connection: Connection, mapper: Mapper[Any], statement: Update, params: Any
) -> None:
    """The version is in a parent's table, and the statement writes only the child's."""
    token: Any = mapper.version_id_col
    pairs = [(column, _local(mapper, column)) for column in token.table.primary_key]
    rows = select(*(local for _, local in pairs)).where(*statement._where_criteria)
    parents = [parent for parent, _ in pairs]
    here = parents[0].in_(rows) if len(parents) == 1 else tuple_(*parents).in_(rows)
    touch: Mapping[Any, Any] = touch_of(mapper)
    if not touch:
        following: Any = mapper.version_id_generator
        default = token.onupdate
        clause = default is not None and default.is_clause_element
        touch = {token: default.arg if clause else following(None)}
    connection.execute(token.table.update().where(here).values(touch), params or {})


def _local(mapper: Mapper[Any], column: Column[Any]) -> Column[Any]:
    columns = mapper.get_property_by_column(column).columns
    return next(one for one in columns if one.table is mapper.local_table)


def _take_over(
    session: Session,
    connection: Connection,
    mapper: Mapper[Any],
    matched: list[tuple[State, Any]],
    explicit: bool,
) -> None:
    """Give the objects the versions that the statement has made."""
    key: Any = token_attribute(mapper)
    after: dict[Any, Any] = {}
    for state, before in matched:
        after[state] = before + 1 if _counts(mapper) and not explicit else None
    if explicit or not _counts(mapper):
        identities = [tuple(state.key[1]) for state, _ in matched if state.key]
        stored = read_stored(connection, mapper, identities, only=(key,), lock=False)
        after = {s: stored.get(tuple(s.key[1]), {}).get(key) for s, _ in matched if s.key}
    moved = watched(session).moved
    for state, before in matched:
        if after[state] is not None:
            moved_by_us(state, key, before, after[state])
            moved.append((state, key, before, after[state]))
    session._register_altered([state for state, _ in matched])  # a savepoint expires them, too


def _counts(mapper: Mapper[Any]) -> bool:
    cls = mapper.class_
    return hasattr(cls, "__version_token__") and isinstance(check_tokens(cls)[0], Counter)


# -- by primary key ------------------------------------------------------------------------------


def _require_versions(mapper: Mapper[Any], rows: list[Any]) -> None:
    key: Any = token_attribute(mapper)
    names = [mapper.get_property_by_column(column).key for column in mapper.primary_key]
    for number, row in enumerate(rows):
        if isinstance(row, Mapping) and row.get(key) is None:
            shown = ", ".join(f"{name}={row[name]!r}" for name in names if name in row)
            raise ConfigurationError(
                f"Row {number} ({shown}) of an UPDATE of {mapper.class_.__name__} by primary key"
                f" has no {key!r}: the version that was read says which row is meant, and without"
                f" it another writer's change would be overwritten. Add it to every row,"
                f" {{{names[0]!r}: ..., {key!r}: ..., ...}}. Nothing was sent."
            )
