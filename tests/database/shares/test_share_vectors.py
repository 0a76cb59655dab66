"""What is known of share modes and pending deletes of files, on a name.

``tests/vectors/file_share.json`` says where each vector comes from. A REST operation is one by who
holds no handle; a lease of a file behaves as a handle with access W and D that shares R. The clock
is a table of one row, which the test moves when an owner dies.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import OptilockError, asyncio, shares
from optilock.shares import (
    AccessDenied,
    DeletePending,
    NameNotFound,
    ReadOnlyName,
    Shares,
    SharingViolation,
)
from optilock.tables.names import SHARES
from optilock.tokens.timestamp import UtcDateTime
from tests.support.models import key

FILE = json.loads((Path(__file__).parents[2] / "vectors" / "file_share.json").read_text())
VECTORS = FILE["vectors"]
#: The access that an operation without a handle is equal to.
ACCESS = {
    "rest_get": "R",
    "rest_list_ranges": "R",
    "rest_put_range": "W",
    "rest_set_properties": "W",
    "rest_set_metadata": "W",
    "rest_get_properties": "",
    "rest_get_metadata": "",
}
ERRORS = {
    "SharingViolation": SharingViolation,
    "SMBDeletePending": DeletePending,
    "DeletePending": DeletePending,
    "ResourceNotFound": NameNotFound,
    "AccessDenied": AccessDenied,
    "CannotDelete": ReadOnlyName,
    "ReadOnlyAttribute": ReadOnlyName,
}
BEGIN = datetime.datetime(2026, 1, 31, 23, 59, 50, tzinfo=datetime.UTC)


class Base(DeclarativeBase):
    pass


class Now(Base):
    __tablename__ = "share_clock"
    id: Mapped[int] = key()
    now: Mapped[Any] = mapped_column(UtcDateTime())


WITHIN = Shares(clock=select(Now.__table__.c.now).scalar_subquery())


def begin(session: Session) -> None:
    connection = session.connection()
    SHARES.tables.create_all(connection)
    Base.metadata.create_all(connection)
    session.add(Now(id=1, now=BEGIN))
    session.commit()


class Replay:
    """One vector on a name of its own; ``call`` is how a function is called."""

    def __init__(self, call: Any, name: str) -> None:
        self.call, self.name = call, name
        #: By their names in the vector, or by when they were opened.
        self.handles: dict[Any, shares.Handle] = {}

    async def run(self, vector: Any) -> None:
        given = vector["given"]
        if given.get("exists", True):
            await self.call("create", self.name)
        if given.get("read_only"):
            await self.call("set_read_only", self.name)
        for one in given.get("open_handles", ()):
            await self.open(one)
        if given.get("lease_state") == "leased":
            await self.open({"owner": "lease", "access": "WD", "share": "R"})
        for step in vector["steps"]:
            await self.step(step)

    async def step(self, step: Any) -> None:
        expect, error = step["expect"], None
        try:
            await self.do(step["op"], step["args"])
        except OptilockError as raised:
            error = raised
        if expect["status"] < 400:
            assert error is None, step
        else:
            assert type(error) is ERRORS[expect["error_code"]], step
            assert error.status == expect["status"]
        await self.check(expect["effects"])

    async def check(self, effects: Any) -> None:
        state = await self.call("look", self.name)
        found = {
            "handles": len(state.open),
            "delete_pending": state.delete_pending,
            "exists": state.there,
        }
        if "listed" in effects:
            found["listed"] = self.name in await self.call("names")
        for name in effects.keys() - {"ntstatus", "note"}:
            assert found[name] == effects[name]

    async def do(self, op: str, args: Any) -> Any:
        call, name = self.call, self.name
        if op == "open":
            return await self.open(args)
        if op == "close":
            return await call("close", self.handles[args["handle"]])
        if op == "set_delete_pending":
            return await call("delete_pending", self.handles[args["handle"]], args["value"])
        if op == "read_through":
            return await call("check", name, "R", handle=self.handles[args["handle"]])
        if op == "set_read_only":
            return await call("set_read_only", name)
        if op in ("create", "rest_create"):
            return await call("create", name)
        if op == "rest_delete":
            return await call("delete", name)
        if op == "rest_list":
            return await call("names")
        if op == "rest_lease_acquire":
            return await self.open({"owner": "lease", "access": "WD", "share": "R"})
        if op == "owner_dies":
            return await call("later", 61)
        return await call("check", name, ACCESS[op])

    async def open(self, args: Any) -> None:
        options = {"owner": args["owner"], "seconds": 60}
        if "delete_on_close" in args:
            options["delete_on_close"] = args["delete_on_close"]
        handle = await self.call("open", self.name, args["access"], args["share"], **options)
        self.handles[args.get("as", len(self.handles))] = handle


def perform(session: Session, what: str, *args: Any, **options: Any) -> Any:
    """One call in a transaction of its own."""
    if what == "later":
        seconds = datetime.timedelta(seconds=args[0])
        now = session.scalar(select(Now.now))
        session.execute(update(Now).values(now=now + seconds))
        session.commit()
        return None
    if what not in ("close", "delete_pending") and "handle" not in options:
        options["within"] = WITHIN
    try:
        done = getattr(shares, what)(session, *args, **options)
    except OptilockError:
        session.rollback()
        raise
    session.commit()
    return done


def now(replay: Any) -> None:
    """Run what never really waits."""
    with pytest.raises(StopIteration):
        replay.send(None)


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.full
def test_every_vector(engine, tries) -> None:
    """Without ``--product`` a server is asked a third of them."""
    some = VECTORS[:: 1 if engine.dialect.name == "sqlite" else tries(3, 3, 1)]
    with Session(engine) as session:
        begin(session)

        async def call(what: str, *args: Any, **options: Any) -> Any:
            return perform(session, what, *args, **options)

        for vector in some:
            now(Replay(call, vector["id"]).run(vector))
        kept = session.scalar(select(func.count()).select_from(WITHIN.names))
        assert kept == len(some)


@pytest.mark.anyio
@pytest.mark.engines("sqlite-wal")
async def test_every_vector_in_async_code(async_engine, tries) -> None:
    """Without ``--product`` a fifth of them, and the last ones, which are about handles."""
    await replay_all(async_engine, [*VECTORS[: -20 : tries(5, 5, 1)], *VECTORS[-20:]])


@pytest.mark.full
@pytest.mark.anyio
@pytest.mark.engines("postgresql", "mariadb")
async def test_every_vector_in_async_code_on_a_server(async_engine, tries) -> None:
    some = VECTORS[tries(2, 2, 0) : -20 : tries(5, 5, 1)]
    await replay_all(async_engine, [*some, *VECTORS[-20:]])


async def replay_all(async_engine: Any, some: list[Any]) -> None:
    async with AsyncSession(async_engine) as session:
        await session.run_sync(begin)

        async def call(what: str, *args: Any, **options: Any) -> Any:
            if what == "later":
                return await session.run_sync(perform, what, *args)
            if "handle" not in options and what not in ("close", "delete_pending"):
                options["within"] = WITHIN
            try:
                done = await getattr(asyncio.shares, what)(session, *args, **options)
            except OptilockError:
                await session.rollback()
                raise
            await session.commit()
            return done

        for vector in some:
            await Replay(call, vector["id"]).run(vector)
    await async_engine.dispose()


def differs_from_the_matrix(session: Session, every: int) -> list[str]:
    """The first handles beside which others fit otherwise."""
    accesses, modes = FILE["meta"]["access_order"], FILE["meta"]["share_order"]
    begin(session)
    wrong = []
    for first, allowed in [*FILE["matrix"].items()][::every]:
        access, share = (part.replace("none", "") for part in first.split("/"))
        shares.open(session, first, access, share, within=WITHIN)
        found = ""
        for a in accesses:
            for s in modes:
                try:
                    second = shares.open(session, first, a, s, within=WITHIN)
                except SharingViolation:
                    found += "0"
                else:
                    found += "1"
                    shares.close(session, second)
        if found != allowed:
            wrong.append(first)
    return wrong


@pytest.mark.full
@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_the_matrix(engine, tries) -> None:
    """Without ``--full`` the rule alone is compared with it: ``tests/unit/test_share_modes.py``."""
    with Session(engine) as session:
        assert differs_from_the_matrix(session, tries(5, 5, 1)) == []


@pytest.mark.full
@pytest.mark.anyio
async def test_the_matrix_in_async_code(async_engine, tries) -> None:
    async with AsyncSession(async_engine) as session:
        assert await session.run_sync(differs_from_the_matrix, tries(9, 9, 1)) == []
