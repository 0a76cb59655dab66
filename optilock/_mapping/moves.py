"""How the version of a row moves: by Python, by the database, or by the application.

Python's versions (``Counter``, ``Unique``) are in the statement. The database's (``Timestamp``,
``RowVersion``, any column with a SQL default) are known only when they are read back. The
application's (``Manual``) move when the application assigns them. A version made from values moves
with these values.

SQLAlchemy has two gaps for the database's versions:

* If only columns of a joined table change, it writes the version as it is. Then ``onupdate`` does
  not run, or the trigger's version is not read back. :func:`move_with_joined` closes both.
* An UPDATE by primary key sets the version that its row names. That is the version that was read,
  so ``onupdate`` does not run. :func:`move_by_key` closes this one, for all but triggers.

A ``RowVersion`` moves by a trigger. If the trigger is missing, every write would pass, and so would
every lost update. So the version after each UPDATE is compared with the one before it. This needs
no query, because the object has both. SQLite's RETURNING shows the row before the trigger changed
it (https://sqlite.org/lang_returning.html, "Limitations And Caveats"), so there the version is read
again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, event, select
from sqlalchemy.orm import NO_VALUE, Mapper, PassiveFlag, Session

from optilock._mapped import State, facts
from optilock._undocumented.mappers import compare_by_key, mark_changed
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.serialize import is_expression
from optilock.tokens import Token

#: Returns whether a watched session keeps the version of an object's row as it is (``no_bump``).
KeepsVersion = Callable[[Session, object], bool]
#: In the ``info`` of an object: the attribute that is written again as it is, and its value.
_AGAIN = "optilock_written_again"
_BEFORE = "optilock_version_before"
#: Equal to no version.
_MISSED = object()


def move_with_joined(
    mapper: Mapper[Any], is_watched: Callable[[Session], bool], keeps_version: KeepsVersion
) -> None:
    """Move the version also when only columns of the other tables of ``mapper`` change.

    A watched session does not move it if these columns are ignored or the row stands still.
    """
    touch, version = facts(mapper).touch, facts(mapper).version
    if len(mapper.tables) < 2 or not touch:
        return
    columns = _columns(mapper)
    beside = {name for name, some in columns.items() if _is_in(version.table, some)}
    elsewhere = columns.keys() - beside
    act: Callable[[State], None]
    act = functools.partial(_set_expressions, expressions=touch)
    if version not in touch:
        act = functools.partial(_write_again, name=_plain(mapper))

    @event.listens_for(mapper, "before_update", raw=True)
    def before_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        if _any_changed(state, beside) or not _any_changed(state, elsewhere):
            return
        session = state.session
        if session is not None and is_watched(session):
            ignored = facts(mapper).ignored
            counts = {name for name in elsewhere if not ignored.issuperset(columns[name])}
            if keeps_version(session, state.obj()) or not _any_changed(state, counts):
                return
        act(state)


#: True while the caller moves the versions of rows whose joined tables it writes by key.
_seen_to: ContextVar[bool] = ContextVar("optilock_joined", default=False)


def move_by_key(mapper: Mapper[Any]) -> None:
    """Let UPDATEs by primary key move a version that the database makes in the statement.

    This includes the UPDATEs of plain sessions. If they write only columns of a joined table by
    key, SQLAlchemy writes the version as it is, so a plain session is refused there. A write by key
    is also refused if the version is made from the row's values.
    """
    record, cls = facts(mapper), mapper.class_.__name__
    ask: Callable[[], None]
    if record.by_values:
        ask = functools.partial(_refuse_values, cls)
    elif not record.by_database or record.by_itself or record.version.system:
        return
    else:
        ask = functools.partial(_refuse_joined, cls) if len(mapper.tables) > 1 else _nothing
    compare_by_key(mapper, record.token, record.version.table, ask)


def _nothing() -> None:
    pass


def _refuse_values(cls: str) -> None:
    raise ConfigurationError(
        f"The UPDATE of {cls} by primary key would leave its version, which is made from the values"
        " of the row: the next writer would overwrite them unseen. Change the objects."
    )


def _refuse_joined(cls: str) -> None:
    if not _seen_to.get():
        raise ConfigurationError(
            f"The UPDATE of {cls} by primary key was sent by a session that is not watched: where"
            " only columns of its joined table are written, the version would stay, and the next"
            " writer would overwrite them unseen. Use optilock.watch() on the session factory, or"
            " change the objects."
        )


@contextmanager
def declare_joined_moves() -> Iterator[None]:
    """Declare that the caller moves the versions of the rows which it writes in this block."""
    before = _seen_to.set(True)
    try:
        yield
    finally:
        _seen_to.reset(before)


def _is_in(table: Any, columns: list[Any]) -> bool:
    return any(isinstance(column, Column) and column.table is table for column in columns)


def _columns(mapper: Mapper[Any]) -> dict[str, list[Any]]:
    """Return the columns of each attribute, one in each of joined tables."""
    found = ((p.key, getattr(p, "columns", ())) for p in mapper.iterate_properties)
    return {name: list(some) for name, some in found if some}


def _plain(mapper: Mapper[Any]) -> str:
    """Return an attribute that can be written again as it is. A key cannot: the tables share it."""
    version = facts(mapper).version
    for name, columns in _columns(mapper).items():
        match columns:
            case [Column(computed=None, primary_key=False) as column] if (
                column.table is version.table and column is not version
            ):
                return name
    raise ConfigurationError(
        f"{mapper.class_.__name__}: the table {version.table} has no column besides its key and"
        " xmin, so that nothing could be written for xmin to move: use RowVersion()."
    )


def _write_again(state: State, name: str) -> None:
    """Let the next UPDATE write an attribute as it is."""
    if name not in state.committed_state:
        value = _value(state, name)
        mark_changed(state, name, NO_VALUE)
        state.info[_AGAIN] = name, value


def _set_expressions(state: State, expressions: Mapping[Column[Any], ColumnElement[Any]]) -> None:
    """Let the next UPDATE of the object's row set these columns, without events."""
    for column, expression in expressions.items():
        name = facts(state.mapper).names[column]
        mark_changed(state, name, _value(state, name))
        state.dict[name] = expression


def make_from_values(mapper: Mapper[Any], token: Token, keeps_version: KeepsVersion) -> None:
    """Make the version of ``mapper``'s rows from their values, when these are written.

    A session keeps the version if the row stands still.
    """
    names = {name for name in token.reads if name in mapper.columns}

    @event.listens_for(mapper, "before_insert", raw=True)
    def before_insert(mapper: Mapper[Any], connection: Any, state: State) -> None:
        _assign(state, NO_VALUE, version_from(mapper, state.dict))

    @event.listens_for(mapper, "before_update", raw=True)
    def before_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        session = state.session
        still = session is not None and keeps_version(session, state.obj())
        if _any_changed(state, names) and not still:
            loaded = _value(state, facts(mapper).token)
            made = version_from(mapper, {name: _value(state, name) for name in names})
            if made != loaded:
                _assign(state, loaded, made)


def version_from(mapper: Mapper[Any], values: Mapping[str, Any]) -> Any:
    """Return the version of a row with these values, for a token that reads values.

    Raises:
        ConfigurationError: one of them is a SQL expression.
    """
    token = facts(mapper).kind
    assert token is not None
    read = {name: values.get(name) for name in token.reads if name in mapper.columns}
    for name, value in read.items():
        if is_expression(value):
            raise ConfigurationError(
                f"{mapper.class_.__name__}.{name} was set to a SQL expression, and the version is"
                f" made from its value ({type(token).__name__}): set a value."
            )
    return token.make(read)


def _assign(state: State, before: Any, version: Any) -> None:
    """Let SQLAlchemy write this version: it writes an assigned one as it is."""
    token = facts(state.mapper).token
    if token not in state.committed_state:
        mark_changed(state, token, before)
    state.dict[token] = version


def _value(state: State, name: str) -> Any:
    """Return the attribute's value, read now if it is expired."""
    return state.manager[name].impl.get(state, state.dict)


def touch_state(state: State) -> None:
    """Let the next flush move the version of a persistent object, by one step."""
    mapper, record = state.mapper, facts(state.mapper)
    if record.token in state.committed_state:
        return  # touched already
    following: Any = mapper.version_id_generator
    if following:
        loaded = _value(state, record.token)
        _assign(state, loaded, following(loaded))
    elif record.touch and record.version not in record.touch:
        _write_again(state, _plain(mapper))
    else:
        _set_expressions(state, record.touch)


def undo_touch(state: State, columns: Iterable[Column[Any]]) -> None:
    """Undo the changes that were made only to move the version, after the row was not written."""
    again, value = state.info.pop(_AGAIN, (None, None))
    if again is not None and state.committed_state.get(again) is NO_VALUE:
        if state.dict.get(again) == value:
            del state.committed_state[again]
        else:
            state.committed_state[again] = value
    for column in columns:
        name = facts(state.mapper).names[column]
        if name in state.committed_state:
            state.dict[name] = state.committed_state.pop(name)


def check_post_update(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a second UPDATE of a row whose version SQLAlchemy would not read back after it.

    Without the refusal the next write of the same object would conflict with its own.
    """
    for relationship in mapper.relationships:
        if not relationship.post_update:
            continue
        written = {pair[1].table for pair in relationship.synchronize_pairs}
        for row in (mapper, relationship.mapper):
            if facts(row).by_database and facts(row).table_if_any in written:
                raise ConfigurationError(
                    f"{cls.__name__}.{relationship.key} has post_update=True, which writes rows of"
                    f" {row.class_.__name__} a second time, and SQLAlchemy does not read back the"
                    " version that the database makes then. Use Counter() or Unique(), or remove"
                    " post_update=."
                )


def _any_changed(state: State, names: set[str]) -> bool:
    """Return whether one of these attributes has another value than the one that was read."""
    return any(
        state.manager[name]
        .impl.get_history(state, state.dict, PassiveFlag.PASSIVE_NO_INITIALIZE)
        .added
        for name in names.intersection(state.committed_state)
    )


# -- check that the version moves ------------------------------------------------------------------


def require_moves(
    mapper: Mapper[Any],
    token: Token,
    connection_to_write: Callable[[Session, Mapper[Any]], Connection],
) -> None:
    """Read the version of ``mapper``'s rows as the trigger leaves it; refuse one that stays."""
    key = facts(mapper).token
    if token.is_system:

        def before_insert(mapper: Mapper[Any], connection: Any, state: State) -> None:
            state.dict.pop(key, None)  # of the row that the object stood for before

        event.listen(mapper, "before_insert", before_insert, raw=True)
        return
    names = _columns(mapper).keys() - {key}

    def before_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        loaded = _value(state, key)
        state.info[_BEFORE] = state.committed_state.get(key, loaded)

    def refresh_flush(state: State, uow: Any, attributes: Iterable[str]) -> None:
        if key in attributes:
            _read_again(state, uow.session, connection_to_write(uow.session, state.mapper))

    def after_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        before = state.info.pop(_BEFORE, _MISSED)
        if state.dict.get(key) == before and _any_changed(state, names):
            raise trigger_missing_error(mapper)

    event.listen(mapper, "before_update", before_update, raw=True)
    event.listen(mapper, "after_update", after_update, raw=True)
    event.listen(mapper.class_, "refresh_flush", refresh_flush, raw=True)


def does_not_move(state: State) -> None:
    """Stop checking that a version moves: the row had another version, so it is not written."""
    state.info.pop(_BEFORE, None)


def _read_again(state: State, session: Session, connection: Connection) -> None:
    """Read the version after an UPDATE on SQLite; an INSERT's RETURNING is right."""
    mapper, record = state.mapper, facts(state.mapper)
    if not database_of(connection.dialect).one_row.returns_before_triggers:
        return
    identity = mapper.identity_key_from_instance(state.obj())
    if state.key is None and identity not in session.identity_map:  # otherwise a row switch
        return
    keys = tuple(record.version.table.primary_key) or mapper.primary_key
    where = (key == state.dict[record.names[key]] for key in keys)
    statement = select(record.version).where(*where)
    state.dict[record.token] = type(connection).execute(connection, statement).scalar_one()


def trigger_missing_error(mapper: Mapper[Any]) -> ConfigurationError:
    cls, column = mapper.class_.__name__, facts(mapper).version
    return ConfigurationError(
        f"{cls}.{facts(mapper).token} did not move when a row was updated: the trigger of"
        f" {column.table}.{column.name} is missing, and lost updates would not be noticed. The"
        " transaction is rolled back. metadata.create_all() makes the trigger with the table; for"
        " a table that exists, op.create_version_trigger() of optilock.alembic does, or run the"
        " statements that optilock.statements.trigger_ddl("
        f"{cls}.__table__, {cls}.__table__.c.{column.key}, engine.dialect).create gives."
    )
