"""What older releases of SQLAlchemy have under another name, or not at all."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import LABEL_STYLE_TABLENAME_PLUS_COL, Connection, Select, event
from sqlalchemy.event.registry import _EventKey
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.util import concurrency


def listen_on(connection: Connection, name: str, listener: Callable[..., Any]) -> None:
    """``event.listen()``; older releases refuse a connection whose engine has options."""
    try:
        event.listen(connection, name, listener)
    except InvalidRequestError:
        _EventKey(connection, name, listener, connection).listen()


def in_greenlet() -> bool:
    """Does SQLAlchemy run this for an ``await``? Only to be asked where there is greenlet."""
    asked = getattr(concurrency, "in_greenlet", None)
    if asked is not None:
        return bool(asked())
    before = importlib.import_module("sqlalchemy.util._concurrency_py3k")
    return isinstance(before.getcurrent(), before._AsyncIoGreenlet)


def named_as_by_get(query: Select[Any]) -> Select[Any]:
    """The query, with its columns under the names that they have in ``get()``."""
    if hasattr(Session, "merge_all"):  # since 2.1 as in any query
        return query
    return query.set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL)
