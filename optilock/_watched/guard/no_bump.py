"""``no_bump``: bookkeeping writes that do not move the version.

::

    with no_bump(session):
        page.last_seen = now                # checked as usual, but the version stays
    with no_bump(session, Page):            # rows of these classes, or these objects, alone
        ...

Changes made before the block are flushed on entering it, and changes made inside on leaving it, so
the scope is exact. With an ``AsyncSession`` write ``async with``.

The row is still checked (``WHERE version = …``): a stale object conflicts here as anywhere else.
But other sessions do not notice the write. A session that has read the row before can overwrite the
same columns silently; so use it for columns whose loss does not matter, or that are counted by an
expression (``Page.views + 1``). ``__version_ignore__`` does the same permanently, without the
check.

New rows get their first version as always. Inside the block ``touch`` is refused. A root
(``__version_root_of__``) that the block covers keeps its version; any other does not move for the
change of a child that the block covers, but does when a child is added or removed. No block can
keep a version that the database itself moves at every write (``RowVersion``): the flush raises
``ConfigurationError``, and writes nothing.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import facts
from optilock._watched.guard.records import Flush
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import (
    SessionRecord,
    is_watched,
    keeps_version,
    session_record,
)
from optilock._watched.session.values import NoBumpBlock
from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.errors import ConfigurationError


class no_bump:
    """A block in which writes do not move versions.

    Args:
        session: a watched session, a unit's, an ``AsyncSession`` over one, or a ``scoped_session``
            or ``async_scoped_session``, which stands for the session of its scope.
        only: mapped classes or objects; without them everything that the session writes.

    Raises:
        ConfigurationError: the session is not watched, or one of ``only`` is not mapped.
        ConcurrencyError: (on entering and leaving) the flush met a conflict.
    """

    def __init__(self, session: Any, *only: object) -> None:
        registry = getattr(session, "registry", None)  # scoped_session, async_scoped_session
        self._session = session if registry is None else registry()
        self._sync: Session = getattr(self._session, "sync_session", self._session)
        if not isinstance(self._sync, Session) or not is_watched(self._sync):
            raise ConfigurationError(
                "no_bump() takes a watched session: its sessionmaker was given to optilock.watch(),"
                " or it is the session of a unit of work. A plain session moves every version."
            )
        self._still = _still(only)

    def __enter__(self) -> None:
        self._refuse_async()
        self._sync.flush()
        self._open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._sync.flush()
        finally:
            self._close()

    async def __aenter__(self) -> None:
        await self._session.flush()
        self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self._session.flush()
        finally:
            self._close()

    def _open(self) -> None:
        record = session_record(self._sync)
        record.no_bump_blocks = (*record.no_bump_blocks, self._still)

    def _close(self) -> None:
        record = session_record(self._sync)
        record.no_bump_blocks = tuple(
            still for still in record.no_bump_blocks if still is not self._still
        )

    def _refuse_async(self) -> None:
        if self._sync is not self._session:
            raise ConfigurationError(
                "no_bump() of an AsyncSession flushes, which has to be awaited: write"
                " `async with no_bump(session):`."
            )


def _still(only: tuple[object, ...]) -> NoBumpBlock:
    classes: list[type[Any]] = []
    objects: list[object] = []
    for one in only:
        found = inspect(one, raiseerr=False)
        if isinstance(found, Mapper):
            classes.append(found.class_)
        elif isinstance(found, InstanceState):
            objects.append(one)
        else:
            raise ConfigurationError(
                f"no_bump() got {one!r}: after the session it takes mapped classes and objects."
            )
    return NoBumpBlock(tuple(classes), tuple(objects))


# -- writes under it -------------------------------------------------------------------------------


def with_same_version(flush: Flush, write: Write) -> Write:
    """Return the write with the old version as the new one, if a block covers its object."""
    shape, params = write
    if shape.deletes:
        return write
    if not keeps_version(flush.session, flush.state_of(write).obj()):
        return write
    return Write(shape, {**params, shape.token.column.key: params[shape.token.parameter]})


def refuse_moving(session: Session) -> None:
    """Refuse, before anything is sent, rows whose version the database moves at every write.

    A guard trigger (``__version_guard__``) that can let the version stay is set to do so.

    Raises:
        ConfigurationError: there is one among the changed objects that a block covers.
    """
    guarded: dict[Mapper[Any], None] = {}
    for obj in session.dirty:
        mapper = instance_state(obj).mapper
        guards = getattr(mapper.class_, "__version_guard__", None) is not None
        if guards and keeps_version(session, obj) and session.is_modified(obj):
            guarded[mapper] = None
        if facts(mapper).by_itself and keeps_version(session, obj) and session.is_modified(obj):
            raise ConfigurationError(
                f"{mapper.class_.__name__} is changed under no_bump(), and the database moves its"
                " version at every write (RowVersion): write it outside of the block, or give the"
                " class another token. Nothing was written."
            )
    for mapper in guarded:
        _announce(session, mapper)


def _announce(session: Session, mapper: Mapper[Any]) -> None:
    connection = connection_to_write(session, mapper)
    announced = session_record(session).announced
    if connection not in announced:
        database_of(connection.dialect).servers.announce_no_bump(connection, on=True)
        session_record(session).announced = (*announced, connection)


def withdraw(session: Session) -> None:
    """Let the guard triggers move versions again, at the end of the flush."""
    for connection in forget_announced(session_record(session)):
        database_of(connection.dialect).servers.announce_no_bump(connection, on=False)


def forget_announced(record: SessionRecord) -> tuple[Connection, ...]:
    """Return the connections whose triggers let versions stay, and forget them."""
    announced, record.announced = record.announced, ()
    return announced
