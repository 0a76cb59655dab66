"""The steps of a unit with ``exactly_once=``: at its begin, before COMMIT, after a lost COMMIT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, Pool, insert
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session

from optilock._undocumented.flushes import is_opened_by_session
from optilock._watched.session.connections import own_connection
from optilock.dialects import database_of
from optilock.dialects.causes import Cause
from optilock.dialects.commit_tokens import FENCE
from optilock.errors import ConfigurationError, NotCommitted
from optilock.exactly_once.errors import KeyInUse
from optilock.exactly_once.hooks import owner_of_unit
from optilock.exactly_once.keys import KeyedCall
from optilock.exactly_once.questions import Unanswered, ask_for, random_token, unknown_outcome
from optilock.tables.names import commit_tokens

if TYPE_CHECKING:
    from optilock.exactly_once.hooks import OfUnit

_INSERT = insert(commit_tokens)
#: How often a key is inserted that is there and cannot be read.
_ROUNDS = 5
#: Pools of databases whose table was looked at.
_seen_tables: WeakSet[Pool] = WeakSet()


def claim(session: Session, call: KeyedCall) -> None:
    """Insert the key of a call in the session's transaction, before anything else of the call.

    Raises:
        AlreadyDone: the call's unit is stored.
        KeyReused: the key stands for another call.
        KeyInUse: a transaction that has not ended has the key.
        ConfigurationError: the key is there and its unit was not done; there is no such table, or
            the session has no engine for it.
    """
    try:
        connection = own_connection(session, {"clause": _INSERT})
    except UnboundExecutionError as error:
        raise ConfigurationError(_NO_ENGINE) from error
    _require_table(connection)
    database = database_of(connection.dialect)
    tokens = database.commit_tokens
    try:
        for _ in range(_ROUNDS):
            if tokens.insert(connection, call.token, call.fingerprint, call.wait):
                return
            found = tokens.read(connection, call.token)
            if found is None:  # a purge has come in between
                continue
            if found.fingerprint == FENCE:  # of a question that could not delete it
                if tokens.take_fence(connection, call.token, call.fingerprint):
                    return
                continue
            raise call.found(found)
        raise ConfigurationError(_UNREADABLE)
    except DBAPIError as error:
        if call.wait is not None and database.classify(error) is Cause.LOCK_TIMEOUT:
            raise KeyInUse(call.key) from error
        raise


def set_result(session: OfUnit, result: Any) -> None:
    """Set the result of a ``with`` block under a key: ``AlreadyDone.result`` of a later one.

    Raises:
        ConfigurationError: the session belongs to no unit with a key, or the result does not come
            back from JSON as it is.
    """
    owner, _ = owner_of_unit(session, "set_result")
    if not owner.calls:
        raise ConfigurationError(
            "set_result() got the session of a unit without a key, whose result nothing would give"
            " again: open the unit with exactly_once=key, or leave set_result() out."
        )
    owner.calls[-1].keep(result)


def store_result(session: Session, call: KeyedCall) -> None:
    """Store the result of a call whose transaction goes on: it is done."""
    connection = own_connection(session, {"clause": _INSERT})
    tokens = database_of(connection.dialect).commit_tokens
    tokens.set_result_now(connection, call.token, call.text)


def note_of(token: str) -> str:
    """Return the note for an interrupt that comes before the outcome is known."""
    return (
        "optilock: interrupted inside COMMIT; the work may be stored or not;"
        f" optilock.exactly_once.committed(sessions, {token!r}) finds out"
    )


class TokenOfUnit:
    """The token of a unit with a transaction of its own."""

    def __init__(self, session: Session, call: KeyedCall | None) -> None:
        self._session, self._call = session, call
        self.token = random_token() if call is None else call.token
        self._connection: Connection | None = None
        self._engine: Engine | None = None
        self._announced = False

    @property
    def has_key(self) -> bool:
        """Return whether the work is stored once under the key."""
        return self._call is not None

    def begin(self) -> None:
        """Refuse sessions whose COMMIT is not that of one transaction; nothing was sent.

        Raises:
            ConfigurationError: it is.
        """
        if self._session.twophase:
            raise ConfigurationError(
                "exactly_once= stores its token with the one COMMIT of a unit, and a sessionmaker"
                " with twophase=True has several databases: leave one of them out. Nothing was"
                " sent."
            )
        if isinstance(self._session.bind, Connection):
            raise ConfigurationError(_OF_CONNECTION)

    def claim(self) -> None:
        """Insert the key, if there is one: see :func:`claim`."""
        if self._call is not None:
            claim(self._session, self._call)

    def connected(self, connection: Connection) -> None:
        """Note the unit's connection.

        Raises:
            ConfigurationError: it is the second one, or the program's (``binds=``), or the table
                is missing.
        """
        if self._connection is not None:
            raise ConfigurationError(
                "exactly_once= stores its token with the one COMMIT of a unit, and this unit uses a"
                " second database (or a second engine of one): use one engine in it, or leave"
                " exactly_once= out. Nothing of this unit is stored."
            )
        transaction = self._session.get_transaction()
        if transaction is None or not is_opened_by_session(transaction, connection):
            raise ConfigurationError(_OF_CONNECTION)
        _require_table(connection)
        self._connection, self._engine = connection, connection.engine

    def announce(self) -> None:
        """Let the token, or the result, be stored with COMMIT; nothing else comes before it."""
        connection, call = self._connection, self._call
        if connection is None or self._announced:
            return
        self._announced = True
        _require_one_table(connection)
        tokens = database_of(connection.dialect).commit_tokens
        if call is None:
            tokens.add(connection, self.token)
        else:
            tokens.set_result(connection, call.token, call.text)

    def find_out(self, what: str, error: BaseException) -> None:
        """Return if the unit is stored, though COMMIT has raised ``error``.

        The unit's own connection must be back in its pool.

        Raises:
            NotCommitted: it is not stored, and never will be.
            CommitOutcomeUnknown: the database could not be asked in time.
        """
        assert self._engine is not None
        try:
            stored = ask_for(self._engine, self.token)
        except (Unanswered, ConfigurationError):
            raise unknown_outcome(what, self.token) from error
        except BaseException as interrupt:
            interrupt.add_note(note_of(self.token))
            raise
        if stored is None:
            raise NotCommitted(
                f"{what}. The database was asked: this unit of work is not stored, and a COMMIT"
                " that comes late fails. Run it again; unit_of_work and retry do so by themselves."
            ) from error
        if self._call is not None:
            self._call.found(stored)


def _require_table(connection: Connection) -> None:
    _require_one_table(connection)
    pool = connection.engine.pool
    if pool not in _seen_tables:
        database_of(connection.dialect).commit_tokens.require_table(connection)
        _seen_tables.add(pool)


def _require_one_table(connection: Connection) -> None:
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    if not {None, connection.dialect.default_schema_name}.isdisjoint(translated):
        raise ConfigurationError(_TRANSLATED)


_TRANSLATED = (
    "exactly_once= needs one table of tokens for all connections of the engine, and the"
    " schema_translate_map of this connection gives its schema another name: the question after a"
    " lost COMMIT would look into another table than the unit. Use an engine for each schema, with"
    " its search_path in the URL, or leave exactly_once= out. Nothing of this unit is stored."
)
_UNREADABLE = (
    "The key of this unit is in optilock_commit_tokens, and the user of this connection cannot read"
    " its row: a row security policy hides it, or it was deleted again and again meanwhile. Let the"
    " user read all rows of the table. Nothing of this unit is stored."
)
_OF_CONNECTION = (
    "exactly_once= finds out what became of the unit's COMMIT, and a session that is bound to a"
    " Connection may have none of its own: bind the sessionmaker to an Engine, or leave"
    " exactly_once= out. Nothing was sent."
)
_NO_ENGINE: Any = (
    "exactly_once= with a key inserts it before anything else of the unit, and the session has no"
    " engine for the table optilock_commit_tokens: give the sessionmaker bind=, or the table in"
    " binds= (optilock.tables.names.commit_tokens). Nothing was sent."
)
