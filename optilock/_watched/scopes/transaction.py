"""The scopes of a transaction: what it has moved and verified, and the step before COMMIT."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple
from weakref import WeakSet, ref

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from optilock import events
from optilock._mapped import facts
from optilock._mapping.scope_triggers import has_triggers
from optilock._mapping.scopes import Scope, has_scopes, rules_of
from optilock._undocumented.connections import has_commit_listeners
from optilock._undocumented.flushes import (
    classes_to_flush,
    is_opened_by_session,
    nested_transaction,
)
from optilock._watched.session.connections import (
    connection_to_write,
    given_session,
    refuse_autocommit,
)
from optilock.dialects import database_of
from optilock.dialects.scope_rows import Versions, versions_of
from optilock.errors import ConcurrencyError, ConfigurationError, Entry, PreconditionFailed
from optilock.tables.names import scopes

#: An attribute of a session: its :class:`TransactionScopes`, once there is something.
SCOPES = "_optilock_scopes"
#: Another one: its :class:`_Ending`.
_ENDING = "_optilock_scopes_ending"
#: Pools over which a statement has used the table of scopes.
_seen_tables: WeakSet[sa.Pool] = WeakSet()


class ScopeVersion(NamedTuple):
    """The version of a scope: that of its own row, and that of the table's row ``*``."""

    own: int
    any: int

    def __str__(self) -> str:
        return f"{self.own}-{self.any}"


class _Seen(NamedTuple):
    version: ScopeVersion
    #: By a client: the error is ``PreconditionFailed``.
    demanded: bool


class TransactionScopes:
    """The scopes that a session's running transaction has moved and seen."""

    def __init__(self, root: SessionTransaction | None) -> None:
        self._root = None if root is None else ref(root)
        #: Key -> the savepoints around each of its moves; and the class that it is of.
        self._moves: dict[str, list[tuple[SessionTransaction, ...]]] = {}
        self._classes: dict[str, Mapper[Any]] = {}
        self.seen: dict[Scope, _Seen] = {}
        #: Keys whose rows were moved, or checked, for COMMIT already.
        self.written: set[str] = set()
        self.checked: set[str] = set()

    def is_of(self, root: SessionTransaction | None) -> bool:
        """Return whether these are the scopes of that transaction."""
        return root is not None and self._root is not None and self._root() is root

    def move(self, session: Session, mapper: Mapper[Any], keys: Iterable[str]) -> None:
        """Note that rows of these scopes have changed."""
        around, root = tuple(_open_savepoints(session)), facts(mapper).root
        for key in keys:
            known = self._moves.setdefault(key, [])
            if around not in known:
                known.append(around)
            self._classes[key] = root

    def take_back(self, savepoint: SessionTransaction) -> None:
        """Forget what was moved inside of a savepoint that is rolled back, and locks in it."""
        self.checked.clear()
        for key, all_around in list(self._moves.items()):
            kept = [around for around in all_around if savepoint not in around]
            if kept:
                self._moves[key] = kept
            else:
                del self._moves[key]

    def moves(self, key: str) -> bool:
        """Return whether the transaction moves the scope with this key."""
        return key in self._moves

    def verify(self, scope: Scope, version: ScopeVersion, *, demanded: bool) -> None:
        """Require the version until COMMIT; the first one that was seen counts."""
        known = self.seen.get(scope)
        first = version if known is None else known.version
        self.seen[scope] = _Seen(first, demanded or (known is not None and known.demanded))
        mapper = sa.inspect(scope.model)
        self._classes.update(dict.fromkeys((scope.key, scope.any_key), facts(mapper).root))

    def expected(self) -> Versions:
        """Return the version that each verified key must have."""
        found: Versions = {}
        for scope, (version, _) in self.seen.items():
            found[scope.key] = version.own
            found.setdefault(scope.any_key, version.any)
            found[scope.any_key] = min(found[scope.any_key], version.any)
        return found

    def by_connection(self, session: Session) -> Iterator[tuple[sa.Connection, set[str], Versions]]:
        """Yield each connection with the keys to move, and the versions to check, over it."""
        done = self.written | self.checked
        expected = {key: v for key, v in self.expected().items() if key not in done}
        moves = self._moves.keys() - self.written
        by_class: dict[Mapper[Any], set[str]] = {}
        for key in moves | expected.keys():
            by_class.setdefault(self._classes[key], set()).add(key)
        connections: dict[sa.Connection, set[str]] = {}
        for mapper, keys in by_class.items():
            connection = connection_to_write(session, mapper)
            require_exact(connection, mapper)
            connections.setdefault(connection, set()).update(keys)
        for connection, keys in connections.items():
            yield connection, keys & moves, {k: expected[k] for k in keys & expected.keys()}


def _open_savepoints(session: Session) -> Iterator[SessionTransaction]:
    running = session.get_nested_transaction()
    while running is not None and running.nested:
        yield running
        running = running.parent


def scopes_of(session: Session) -> TransactionScopes:
    """Return the scopes of the session's running transaction."""
    known: TransactionScopes | None = session.__dict__.get(SCOPES)
    root = session.get_transaction()
    if known is not None and known.is_of(root):
        return known
    known = session.__dict__[SCOPES] = TransactionScopes(root)
    return known


def note_moves(session: Session, mapper: Mapper[Any], keys: Collection[str]) -> None:
    """Note that rows of these scopes have changed; during COMMIT their versions move at once."""
    if not keys:
        return
    known = scopes_of(session)
    known.move(session, mapper, keys)
    ending = session.__dict__.get(_ENDING)
    if ending is not None and ending.committing is not None and known.is_of(ending.committing()):
        _write(session, known)


def verify_version(
    session: Session,
    scope: Scope,
    version: ScopeVersion,
    *,
    demanded: bool,
    locked: bool = False,
) -> None:
    """Require the version of a scope until COMMIT; where triggers move it, lock it at once.

    ``locked``: the version was read by :func:`lock_version`, so that COMMIT need not check it.

    Raises:
        ConcurrencyError: (``PreconditionFailed`` after a demand) the transaction has seen an older
            version before.
    """
    known, mapper = scopes_of(session), sa.inspect(scope.model)
    known.verify(scope, version, demanded=demanded)
    keys = (scope.key, scope.any_key)
    if known.checked.issuperset(keys):
        return
    if has_triggers(mapper):
        version = lock_version(session, scope)
    if known.seen[scope].version != version:
        raise events.report(_conflict(known, dict(zip(keys, version, strict=True))))
    if has_triggers(mapper) or (locked and _keep_locks(session, mapper)):
        known.checked.update(keys)


def _keep_locks(session: Session, mapper: Mapper[Any]) -> bool:
    """Return whether locks reach every writer, and are no savepoint's, which may give them back."""
    connection = connection_to_write(session, mapper)
    local = database_of(connection.dialect).servers.locks_are_local(connection)
    return not local and nested_transaction(session) is None


def require_transaction(connection: sa.Connection, mapper: Mapper[Any]) -> None:
    """Refuse a connection on which rows cannot be stored together with their scopes' versions.

    Raises:
        ConfigurationError: it is in AUTOCOMMIT mode; or as of :func:`require_exact`.
    """
    name = mapper.class_.__name__
    refuse_autocommit(connection, f"Writing rows of {name}, which has __version_scopes__,")
    require_exact(connection, mapper)


def require_exact(connection: sa.Connection, mapper: Mapper[Any]) -> None:
    """Refuse scopes over texts that this database does not compare exactly.

    Raises:
        ConfigurationError: 'A' and 'a' could be one predicate, and would be two scopes.
    """
    database, rules = database_of(connection.dialect), rules_of(mapper)
    if type(database) in rules.exact_on:
        return
    for column in rules.columns:
        if not database.values.is_exact(column, connection.dialect):
            raise ConfigurationError(
                f"{rules.mapper.class_.__name__}.__version_scopes__ names"
                f" {column.table.name}.{column.name}, and {connection.dialect.name} may treat 'A'"
                " and 'a ' as equal texts there: a change of the one would leave the version of the"
                " other. Give the column a collation that compares bytes without padding"
                " (utf8mb4_nopad_bin), or the type optilock.tables.exact_text(length). Nothing was"
                " committed."
            )
    rules.exact_on.add(type(database))


def read_version(session: Session, scope: Scope) -> ScopeVersion:
    """Read the stored version of a scope."""
    connection = connection_to_write(session, sa.inspect(scope.model), for_queries=True)
    require_exact(connection, sa.inspect(scope.model))
    keys = (scope.key, scope.any_key)
    rows = database_of(connection.dialect).scope_rows
    found = versions_of(rows.read(connection, keys), keys)
    return ScopeVersion(*(found[key] for key in keys))


def version_of_scope(session: Any, scope: Scope) -> ScopeVersion:
    """Read the version of a scope that the session has not changed, for an ETag.

    Raises:
        ConfigurationError: the session has changed rows of the scope, or is to.
    """
    found = given_session(session, "etag_of", "await optilock.asyncio.etag_of(session, scope)")
    if SCOPES in found.__dict__:
        known = scopes_of(found)
        changed = known.moves(scope.key) or known.moves(scope.any_key)
    else:
        changed = False
    root = facts(sa.inspect(scope.model)).root
    if changed or any(facts(mapper).root is root for mapper in classes_to_flush(found)):
        raise ConfigurationError(
            f"etag_of(session, {scope!r}): this session has changed rows of {scope.model.__name__},"
            " and the next version of the scope is known only after COMMIT. Take the ETag before"
            " the changes, or in a session of its own after COMMIT. Nothing was sent."
        )
    return read_version(found, scope)


def lock_version(session: Session, scope: Scope) -> ScopeVersion:
    """Lock the rows of a scope, and return its version.

    The row ``*`` is shared with other scopes, unless triggers may move it in this transaction.
    """
    mapper = sa.inspect(scope.model)
    connection = connection_to_write(session, mapper)
    require_exact(connection, mapper)
    keys = (scope.key, scope.any_key)
    database = database_of(connection.dialect)
    rows, found = database.scope_rows, dict.fromkeys(keys, 0)
    if database.locks.one_lock:
        database.locks.begin_writing(connection, scopes)
        found |= rows.read(connection, keys)
    elif has_triggers(mapper):
        found |= rows.lock(connection, sorted(keys))
    else:
        found |= rows.lock_one(connection, *keys)
    return ScopeVersion(*(found[key] for key in keys))


# -- before COMMIT ---------------------------------------------------------------------------------


class _Ending:
    """How far the session is with the end of a transaction."""

    #: The transaction whose COMMIT comes next.
    committing: ref[SessionTransaction] | None = None
    #: The savepoint that is released, unless it turns out to be a COMMIT.
    savepoint: ref[SessionTransaction] | None = None


def _ending_of(session: Session) -> _Ending:
    known: _Ending | None = session.__dict__.get(_ENDING)
    if known is None:
        known = session.__dict__[_ENDING] = _Ending()
    return known


def has_scopes_to_end(session: Session) -> bool:
    """Return whether the session moves or has verified scopes, or its next flush moves some."""
    known: TransactionScopes | None = session.__dict__.get(SCOPES)
    if known is not None and known.is_of(session.get_transaction()):
        return True
    return any(map(has_scopes, classes_to_flush(session)))


def is_to_end(session: Session) -> bool:
    """Return whether the session may move scopes: its flush finds rows by relationships, too."""
    return SCOPES in session.__dict__ or bool(classes_to_flush(session))


def before_commit(session: Session) -> None:
    """Move and check the scopes at COMMIT, and not at the release of a savepoint.

    A COMMIT while a savepoint is open looks like its release, and then that follows at once.
    """
    ending, savepoint = _ending_of(session), nested_transaction(session)
    if savepoint is not None and (ending.savepoint is None or ending.savepoint() is not savepoint):
        ending.savepoint = ref(savepoint)
        return
    if has_scopes_to_end(session):
        end_scopes(session)
    else:
        _comes_next(session)


def _comes_next(session: Session) -> None:
    """Note that COMMIT comes next: scopes that are moved from here on are written at once."""
    root = session.get_transaction()
    _ending_of(session).committing = None if root is None else ref(root)


def end_scopes(session: Session) -> None:
    """Flush, then move and check the versions of scopes: COMMIT comes next.

    Raises:
        ConcurrencyError: (``PreconditionFailed`` when a client had named the version) with an
            entry for each scope that another transaction has moved since it was verified.
    """
    session.flush()
    _comes_next(session)
    _write(session, scopes_of(session))


def _write(session: Session, known: TransactionScopes) -> None:
    for connection, moves, expected in list(known.by_connection(session)):
        found: Versions = {}
        rows = database_of(connection.dialect).scope_rows
        if (
            not expected
            and _may_wait_for_commit(session, connection)
            and rows.move_with_commit(connection, sorted(moves))
        ):
            known.written |= moves
            continue
        for moving, keys in runs(moves, expected):
            if moving:
                found.update({k: v - 1 for k, v in rows.move(connection, keys).items()})
            else:
                absent = [key for key in keys if not expected[key]]
                found.update(rows.check(connection, keys, absent))
        if any(found.get(key, 0) != version for key, version in expected.items()):
            raise events.report(_conflict(known, found))
        known.written |= moves
        known.checked |= expected.keys()
        _seen_tables.add(connection.engine.pool)


def _may_wait_for_commit(session: Session, connection: sa.Connection) -> bool:
    """Return whether COMMIT, which comes next, is the connection's own, and the table is there.

    A listener to COMMIT, such as that of an exploration, sees all statements before it.
    """
    transaction = session.get_transaction()
    return (
        transaction is not None
        and connection.engine.pool in _seen_tables  # without it a statement is the one to fail
        and not session.twophase
        and is_opened_by_session(transaction, connection)
        and not has_commit_listeners(connection)
    )


def runs(moves: Collection[str], expected: Mapping[str, int]) -> list[tuple[bool, list[str]]]:
    """Return the keys in their order, cut into runs to move (``True``) and to check."""
    ordered = sorted({*moves, *expected})
    return [(moving, list(keys)) for moving, keys in groupby(ordered, lambda key: key in moves)]


def _conflict(known: TransactionScopes, found: Versions) -> ConcurrencyError:
    moved, demanded = [], False
    for scope, seen in known.seen.items():
        own, of_any = seen.version
        if (found.get(scope.key, own), found.get(scope.any_key, of_any)) != seen.version:
            moved.append(entry_of_scope(scope, demanded=seen.demanded))
            demanded |= seen.demanded
    kind = PreconditionFailed if demanded else ConcurrencyError
    return kind(moved, message_of(moved))


def entry_of_scope(scope: Scope, *, demanded: bool) -> Entry[Any]:
    """Return the entry of a scope that another transaction has moved."""
    values = dict(scope.items)
    return Entry(
        model=scope.model,
        identity=scope.values,
        kind="updated",
        action="verify",
        original=values,
        current=values,
        database=values,
        changes={},
        demanded=demanded,
        table=scopes.name,
    )


def message_of(moved: Iterable[Entry[Any]]) -> str:
    """Return the message for scopes that others have moved."""
    shown = "; ".join(one.row for one in moved)
    return (
        f"Another transaction has added, changed or deleted rows of {shown} after this one had"
        " verified it. Nothing of this transaction is stored. Run the whole unit of work again, so"
        " that it decides on the rows of now."
    )
