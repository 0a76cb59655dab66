"""Drivers whose n-th call fails: real ones, with methods that ask a :class:`Plan` first."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from optilock.unit import set_trip_time

__all__ = ["ASYNC", "ENGINES", "KINDS", "Injected", "Plan", "faulty_engine", "is_injected"]

ENGINES = ("sqlite", "psycopg", "aiosqlite", "psycopg-async")
ASYNC = ("aiosqlite", "psycopg-async")
#: What happens, and whether the call is carried out before.
KINDS = (
    ("lost", "before"),
    ("lost", "after"),
    ("full", "before"),
    ("timeout", "before"),
    ("interrupt", "before"),
    ("interrupt", "after"),
    ("cancel", "before"),
    ("cancel", "after"),
)
#: Calls that the database answers, and so may refuse.
_ANSWERED = frozenset({"execute", "executemany", "commit"})
_STATES = {"full": ("53100", 13, "SQLITE_FULL"), "timeout": ("57014", 5, "SQLITE_BUSY")}


class Injected(KeyboardInterrupt):
    """Ctrl-C."""


@dataclass
class Plan:
    """Call ``number`` (1 is the first) fails, once; without a number they are counted."""

    number: int = 0
    kind: str = "lost"
    when: str = "before"
    count: int = 0
    armed: bool = False
    #: The calls that were made, and the one that has failed.
    calls: list[str] = field(default_factory=list)
    fired: str | None = None

    def is_due(self, call: str) -> bool:
        if not self.armed:
            return False
        self.count += 1
        self.calls.append(call)
        if self.count < self.number or not self.number or self.fired is not None:
            return False
        if self.kind in _STATES and call not in _ANSWERED:
            return False  # the next one that the database answers
        self.fired = call
        return True


def mark(error: BaseException) -> BaseException:
    vars(error)["injected"] = True
    return error


def is_injected(error: BaseException | None) -> bool:
    """Is it the error that was injected, as SQLAlchemy wraps it, or was it raised from it?

    A connection that is broken in a call that asks no server is found out by the next one.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, asyncio.CancelledError):  # asyncio makes it anew
            return True
        lost = "server closed the connection" in str(getattr(error, "orig", ""))
        if lost or getattr(error, "connection_invalidated", False):
            return True
        for one in (error, getattr(error, "orig", None)):
            if one is not None and vars(one).get("injected"):
                return True
        error = error.__cause__ or getattr(error, "orig", None)
    return False


def _passing(kind: str) -> BaseException:
    return mark(Injected("injected") if kind == "interrupt" else asyncio.CancelledError("injected"))


# -- SQLite ----------------------------------------------------------------------------------------


def _sqlite_error(kind: str) -> BaseException:
    if kind in ("interrupt", "cancel"):
        return _passing(kind)
    _, code, name = _STATES.get(kind, ("", 10, "SQLITE_IOERR"))
    error = sqlite3.OperationalError(f"{name} (injected)")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return mark(error)


def _of_sqlite(cls: type[Any], plan: Plan, names: tuple[str, ...], **more: Any) -> type[Any]:
    def method(name: str) -> Callable[..., Any]:
        real = getattr(cls, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            if not plan.is_due(name):
                return real(self, *args, **options)
            if plan.when == "after":
                real(self, *args, **options)
            if isinstance(self, sqlite3.Cursor):
                self.close()  # or the file is locked for as long as the error is held
            raise _sqlite_error(plan.kind)

        return call

    return type(f"Faulty{cls.__name__}", (cls,), {**{n: method(n) for n in names}, **more})


_FETCHES = ("execute", "executemany", "fetchone", "fetchmany", "fetchall")


def _sqlite_factory(plan: Plan) -> type[sqlite3.Connection]:
    cursor = _of_sqlite(sqlite3.Cursor, plan, _FETCHES)

    def make(self: sqlite3.Connection, factory: Any = cursor) -> Any:
        if plan.is_due("cursor"):
            raise _sqlite_error(plan.kind)
        return sqlite3.Connection.cursor(self, factory)

    def execute(self: sqlite3.Connection, *args: Any) -> Any:
        return make(self).execute(*args)

    return _of_sqlite(
        sqlite3.Connection, plan, ("commit", "rollback"), cursor=make, execute=execute
    )


# -- psycopg ---------------------------------------------------------------------------------------


def _break(connection: Any) -> None:
    """From here on the server is not reached."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)


def _noticed(connection: Any) -> BaseException:
    with suppress(Exception):
        connection.pgconn.consume_input()
    return mark(psycopg.OperationalError("server closed the connection unexpectedly (injected)"))


def _refusal(kind: str) -> str:
    code = _STATES[kind][0]
    return f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'; END $$"


def _of_psycopg(cls: type[Any], plan: Plan, names: tuple[str, ...], **more: Any) -> type[Any]:
    def method(name: str) -> Callable[..., Any]:
        real = getattr(cls, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            if not plan.is_due(name):
                return real(self, *args, **options)
            return _fail(plan, self, name, lambda: real(self, *args, **options))

        return call

    return type(f"Faulty{cls.__name__}", (cls,), {**{n: method(n) for n in names}, **more})


def _fail(plan: Plan, own: Any, name: str, go_on: Callable[[], Any]) -> Any:
    connection = getattr(own, "connection", own)
    if plan.kind in _STATES:
        _refuse(plan, own, name)
    if plan.kind != "lost":
        if plan.when == "after":
            go_on()
        raise _passing(plan.kind)
    if plan.when == "before":
        _break(connection)
        try:
            return go_on()  # what asks no server succeeds, and the next call fails
        except BaseException as error:
            raise mark(error)  # noqa: B904  # it is the driver's own
    go_on()
    _break(connection)
    raise _noticed(connection)


def _refuse(plan: Plan, own: Any, name: str) -> None:
    """The server says no, and its transaction has failed."""
    connection = getattr(own, "connection", own)
    try:
        if name == "commit":
            connection.rollback()
            raise _unsaid(plan.kind)
        psycopg.Cursor.execute(own, _refusal(plan.kind))
        raise _unsaid(plan.kind)
    except psycopg.Error as error:
        raise mark(error)  # noqa: B904  # it is the driver's own


def _unsaid(kind: str) -> BaseException:
    """The server's answer, which inside of a pipeline comes later."""
    return psycopg.errors.lookup(_STATES[kind][0])("injected")


def _of_async_psycopg(cls: type[Any], plan: Plan, names: tuple[str, ...], **more: Any) -> type[Any]:
    def method(name: str) -> Callable[..., Any]:
        real = getattr(cls, name)

        async def call(self: Any, *args: Any, **options: Any) -> Any:
            if not plan.is_due(name):
                return await real(self, *args, **options)
            return await _fail_later(plan, self, name, lambda: real(self, *args, **options))

        return call

    return type(f"Faulty{cls.__name__}", (cls,), {**{n: method(n) for n in names}, **more})


async def _fail_later(plan: Plan, own: Any, name: str, go_on: Callable[[], Any]) -> Any:
    connection = getattr(own, "connection", own)
    if plan.kind in _STATES:
        try:
            if name == "commit":
                await connection.rollback()
                raise _unsaid(plan.kind)
            await psycopg.AsyncCursor.execute(own, _refusal(plan.kind))
            raise _unsaid(plan.kind)
        except psycopg.Error as error:
            raise mark(error)  # noqa: B904
    if plan.kind != "lost":
        if plan.when == "after":
            await go_on()
        raise _passing(plan.kind)
    if plan.when == "before":
        _break(connection)
        try:
            return await go_on()
        except BaseException as error:
            raise mark(error)  # noqa: B904
    await go_on()
    _break(connection)
    raise _noticed(connection)


# -- engines ---------------------------------------------------------------------------------------


def faulty_engine(name: str, url: str, plan: Plan, **options: Any) -> Engine | AsyncEngine:
    """An engine with one connection, whose driver asks the plan."""
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5, **options}
    if "sqlite" in name:
        file, factory = make_url(url).database or "", _sqlite_factory(plan)
        given = {"factory": factory, "timeout": 2, "check_same_thread": False}
        if name == "sqlite":
            return create_engine(f"sqlite:///{file}", connect_args=given, **options)
        return create_async_engine(f"sqlite+aiosqlite:///{file}", connect_args=given, **options)
    parts = make_url(url)
    where = {
        "host": parts.host,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password,
        "dbname": parts.database,
    }
    if name == "psycopg":
        cursor = _of_psycopg(psycopg.Cursor, plan, _FETCHES)
        kind = _of_psycopg(psycopg.Connection, plan, ("commit", "rollback"))

        def connect() -> Any:
            _refuse_connect(plan)
            return kind.connect(**where, cursor_factory=cursor)

        return _far(create_engine("postgresql+psycopg://", creator=connect, **options))
    later = _of_async_psycopg(psycopg.AsyncCursor, plan, _FETCHES)
    async_kind = _of_async_psycopg(psycopg.AsyncConnection, plan, ("commit", "rollback"))

    async def connect_later() -> Any:
        _refuse_connect(plan)
        return await async_kind.connect(**where, cursor_factory=later)

    return _far(
        create_async_engine("postgresql+psycopg://", async_creator=connect_later, **options)
    )


def _far(engine: Any) -> Any:
    """Pipelined units take fewer round trips from the first one on."""
    set_trip_time(engine, 0.001)
    return engine


def _refuse_connect(plan: Plan) -> None:
    if plan.is_due("connect"):
        if plan.kind in ("interrupt", "cancel"):
            raise _passing(plan.kind)
        raise mark(psycopg.OperationalError("connection failed: Connection refused (injected)"))
