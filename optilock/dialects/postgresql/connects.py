"""May a connect that failed without a code succeed when it is tried again?

psycopg and psycopg2 give a failed connect no SQLSTATE, whatever the server has answered; asyncpg
gives one. So this is read from the text, and from its form where possible: an answer of the server
is a severity, a colon and *two* spaces (``FATAL:  database "shop" does not exist``). Without an
answer nobody was reached, or the server that was reached is not the one that was asked for
(``target_session_attrs``): that passes. Of the answers those pass that tell of a moment. They are
known in English; a server with another ``lc_messages`` is not understood, and not asked again.

A connect to several servers passes if it passes on one of them.

PgBouncer answers in the same form, and gives all that it refuses one code (08P01), a database that
it does not know as well as a server that is away: there the text decides, too.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["may_pass", "tells_of_a_moment"]

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
    """Is it one that another try may not get?"""
    return any(words in answer for words in _OF_A_MOMENT)
