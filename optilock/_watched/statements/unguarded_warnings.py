"""Warnings of statements that overwrite versioned rows unseen, in sessions without ``strict=``.

``watch(sessions)`` without ``strict=`` sends such a statement, and warns once for each class and
kind of statement. ``strict=True`` refuses it (:mod:`optilock._watched.statements.unguarded`), and
``strict=False`` is silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Delete, Dialect, Update
from sqlalchemy.orm import Session

from optilock._watched.session.record import warn_caller
from optilock._watched.statements.sql_text import may_write, sql_of
from optilock._watched.statements.unguarded import problems_of_change, problems_of_text
from optilock.errors import UnguardedStatementWarning

#: An attribute of a session class: the sentences that it has given as warnings.
_TOLD = "_optilock_told"


_WORDS = "watch(strict=True) refuses it, and with strict=False there is no warning."


def warn_of_unguarded(
    session: Session,
    statement: Any,
    params: Any = None,
    *,
    dialect: Callable[[], Dialect | None],
) -> None:
    """Warn of an UPDATE, DELETE or text that overwrites versioned rows unseen.

    Once for each class and kind of statement.
    """
    if isinstance(statement, (Update, Delete)):
        problems = problems_of_change(statement, params)
    else:
        sql = statement if isinstance(statement, str) else sql_of(statement)
        if sql is None or not may_write(sql):
            return
        problems = problems_of_text(sql, dialect())
    told = _told_by(type(session))
    for problem in problems:
        if problem not in told:
            text = f"{problem} The session sends it. {_WORDS}"
            warn_caller(text, UnguardedStatementWarning)
            told.add(problem)


def _told_by(cls: type[Session]) -> set[str]:
    """Return the sentences that the watched class, or the one above it, has given as warnings."""
    told: set[str] | None = getattr(cls, _TOLD, None)
    if told is None:
        told = set()
        setattr(cls, _TOLD, told)
    return told
