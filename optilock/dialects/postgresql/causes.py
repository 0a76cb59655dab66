"""The meaning of PostgreSQL's errors (its documentation, appendix A), and of failed connects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from sqlalchemy.exc import DBAPIError

from optilock._undocumented.connections import is_raised_while_connecting
from optilock.dialects.causes import Cause
from optilock.dialects.refusals import Refusals

#: The function of the server that says "cached plan must not change result type", in whatever
#: language; a feature that is not supported has the same SQLSTATE.
_ALTERED = "RevalidateCachedQuery"


def _raised_in(error: BaseException, fields: Mapping[str, Any]) -> Any:
    """The function of the server that raised it, as psycopg, asyncpg and pg8000 tell it."""
    told = (
        getattr(getattr(error, "diag", None), "source_function", None),
        getattr(error, "server_source_function", None),
        fields.get("R"),
    )
    return next(filter(None, told), None)


class PostgreSQLCodes(Refusals):
    drivers = (
        "psycopg",
        "psycopg2",
        "asyncpg",
        "sqlalchemy.dialects.postgresql.asyncpg",
        "pg8000",
    )
    causes = MappingProxyType(
        {
            "40001": Cause.CONFLICT,
            "40P01": Cause.DEADLOCK,
            "55P03": Cause.LOCK_TIMEOUT,
            # Aurora DSQL, where a driver takes its own codes in place of 40001
            "OC000": Cause.CONFLICT,
            "OC001": Cause.CONFLICT,
            # CockroachDB: "result is ambiguous"
            "40003": Cause.UNKNOWN_OUTCOME,
            "08007": Cause.UNKNOWN_OUTCOME,
            "57P01": Cause.CONNECTION_LOST,
            "57P02": Cause.CONNECTION_LOST,
            "57P03": Cause.CONNECTION_LOST,
            "57P05": Cause.CONNECTION_LOST,
            "25P03": Cause.CONNECTION_LOST,
            # too many connections, of all or of this role: others come to their end
            "53300": Cause.CONNECTION_LOST,
            "08": Cause.CONNECTION_LOST,
            # a prepared statement whose table was altered; the driver prepares it again
            _ALTERED: Cause.ALTERED_TABLE,
            # transaction_timeout: a limit that was set on purpose, as 57014 is
            "25P04": Cause.OTHER,
        }
    )
    # The server ended these while it waited for a statement, or never let us in.
    paused = frozenset({"25P03"})
    lost_before_commit = frozenset({"25P03", "57P03", "57P05", "08001", "08004", "53300"})

    def unwrapped(self) -> tuple[type[Exception], ...]:
        """The operating system's own errors, and before SQLAlchemy 2.1 those of asyncpg."""
        try:
            asyncpg = import_module("asyncpg")
        except ImportError:
            return ()
        return OSError, asyncpg.PostgresError

    def connect_may_pass(self, error: BaseException) -> bool:
        return super().connect_may_pass(error) or may_pass(error)

    def classify(self, error: DBAPIError, *, at_commit: bool = False) -> Cause:
        """PgBouncer has one code for all that it refuses."""
        if is_raised_while_connecting(error) and "08P01" in self._codes(error):
            moment = tells_of_a_moment(str(error.orig))
            return Cause.CONNECTION_LOST if moment else Cause.OTHER
        return super().classify(error, at_commit=at_commit)

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """SQLSTATE and its class: ``sqlstate``, psycopg2's ``pgcode``, pg8000's field ``C``."""
        fields = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        named = (getattr(error, "sqlstate", None), getattr(error, "pgcode", None))
        for found in (*named, fields.get("C")):
            if isinstance(found, str):
                if found == "0A000" and _raised_in(error, fields) == _ALTERED:
                    yield _ALTERED
                yield from (found, found[:2])
                return

    def has_old_plans(self, error: BaseException) -> bool:
        return _ALTERED in self.codes(error)


# -- failed connects that may succeed later --------------------------------------------------------
#
# psycopg and psycopg2 give a failed connect no SQLSTATE, whatever the server has answered; asyncpg
# gives one. So this is read from the text, and from its form where possible: an answer of the
# server is a severity, a colon and *two* spaces (``FATAL: database "shop" does not exist``).
# Without an answer no server was reached, or the server is not of the kind that was asked for
# (``target_session_attrs``): that is temporary. Of the answers, those that describe a moment are
# temporary. They are known in English; the answers of a server with another ``lc_messages`` are not
# understood, and the connect is not repeated.
#
# A connect to several servers is temporary if it is so on one of them.
#
# PgBouncer answers in the same form, and gives every refusal one code (08P01), an unknown database
# as well as an unreachable server: there the text decides, too.

_ANSWER = re.compile(r": \S+\s?: {2}(.*)")
_EACH_SERVER = re.compile(r"^- host: ", re.MULTILINE)
#: 57P03, 57P01, and 53300 in its three ways.
_OF_A_MOMENT = (
    "the database system is ",
    "terminating connection due to ",
    "sorry, too many clients already",
    "remaining connection slots are reserved ",
    "too many connections for ",
    # PgBouncer's
    "server login has been failing",
    "server conn crashed",
    "server DNS lookup failed",
    "pgbouncer cannot connect to server",
    "client_login_timeout (server down)",
    "no more connections allowed",
    "query_wait_timeout",
)
#: Others are errors of the caller's: options that cannot be read, no password.
_FAILED = {"OperationalError", "TargetServerAttributeNotMatched"}


def may_pass(error: BaseException) -> bool:
    """``error`` came out of a connect, and carries no SQLSTATE."""
    if _FAILED.isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return False
    pgconn: Any = getattr(error, "pgconn", None)
    if pgconn is not None and pgconn.needs_password:
        return False
    _, *several = _EACH_SERVER.split(str(error))
    return any(map(_passes, several or [str(error)]))


def _passes(text: str) -> bool:
    answers = _ANSWER.findall(text)
    return not answers or any(map(tells_of_a_moment, answers))


def tells_of_a_moment(answer: str) -> bool:
    """Return whether the answer describes a moment, so that a later connect may succeed."""
    return any(words in answer for words in _OF_A_MOMENT)
