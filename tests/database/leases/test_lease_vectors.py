"""The recorded answers of Azure's Blob service to leases, and what is recommended in their place.

``tests/vectors/lease.json`` says where each comes from. A blob is a row whose lease guards every
write; a container is one whose lease guards deletes only. Writes, deletes and reads name a lease as
a client does. The clock is a table of one row, which the test moves.
"""

from __future__ import annotations

import datetime
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import OptilockError, PreconditionFailed, Versioned, entities, etag_of, leases, watch
from optilock.errors import NotFound
from optilock.leases import ENDLESS, Leasable, LeaseHeld, LeaseLost, LeasePolicy
from optilock.tokens.timestamp import UtcDateTime
from tests.support.models import key, own_base

FILE = json.loads((Path(__file__).parents[2] / "vectors" / "lease.json").read_text())
#: What is no lease's; our own choice, as an id that is not proposed is made by us; and requests
#: without an id that the emulator takes for the creation of a container (409, in place of 400).
LEFT_OUT = {
    "lease.blob.missing_header.bogus",
    "lease.container.missing_header.bogus",
    "lease.blob.missing_header.change.proposed",
    "lease.blob.missing_header.change.lease_id",
    "lease.container.missing_header.change.proposed",
    "lease.container.missing_header.renew",
    "lease.container.missing_header.release",
}
VECTORS = [one for one in FILE["vectors"] if one["id"] not in LEFT_OUT]
IDS = {name: uuid.UUID(given) for name, given in FILE["meta"]["ids"].items()}
BEGIN = datetime.datetime(2026, 1, 31, 23, 59, 50, tzinfo=datetime.UTC)
READS = {"read", "snapshot"}
WRITES = {"write", "set_metadata"}

Base = own_base()


class Now(Base):
    __tablename__ = "lease_clock"
    id: Mapped[int] = key()
    now: Mapped[Any] = mapped_column(UtcDateTime())


CLOCK = select(Now.__table__.c.now).scalar_subquery()


class Blob(Leasable, Versioned, Base):
    __tablename__ = "lease_blobs"
    __lease_policy__ = LeasePolicy(clock=CLOCK)
    id: Mapped[int] = key()
    text: Mapped[int] = mapped_column(default=0)


class Container(Leasable, Versioned, Base):
    __tablename__ = "lease_containers"
    __lease_policy__ = LeasePolicy(clock=CLOCK, guards=("delete",))
    id: Mapped[int] = key()
    text: Mapped[int] = mapped_column(default=0)


#: What our errors are for some of its codes.
ERRORS: dict[Any, type[OptilockError]] = {
    "LeaseIdMissing": LeaseHeld,
    "LeaseAlreadyPresent": LeaseHeld,
    "LeaseIsBreakingAndCannotBeAcquired": LeaseHeld,
    "LeaseIdMismatchWithBlobOperation": LeaseLost,
    "LeaseNotPresentWithBlobOperation": LeaseLost,
    "LeaseIdMismatchWithContainerOperation": LeaseLost,
    "LeaseIdMismatchWithLeaseOperation": LeaseLost,
    "LeaseNotPresentWithLeaseOperation": LeaseLost,
    "LeaseIsBrokenAndCannotBeRenewed": LeaseLost,
    "ConditionNotMet": PreconditionFailed,
    "BlobNotFound": NotFound,
}
CLASSES = {"blob": Blob, "container": Container}


def proposed(args: Any, name: str) -> Any:
    given = args.get(name)
    return IDS.get(given, given)


class Replay:
    """One vector on a row of its own."""

    def __init__(self, session: Session, of: type[Any], number: int) -> None:
        self.session, self.of = session, (of, number)
        self.model, self.key = of, number

    def do(self, op: str, args: Any) -> tuple[int, Any]:
        """The status, and what came back."""
        try:
            done = self._do(op, args)
            self.session.flush()
        except OptilockError as error:
            self.session.rollback()
            return getattr(error, "status", 400), error
        self.session.commit()
        return 200, done

    def _do(self, op: str, args: Any) -> Any:
        session = self.session
        mine = proposed(args, "lease_id") or proposed(args, "x-ms-lease-id")
        length = ENDLESS if args.get("duration") == -1 else args.get("duration")
        if op == "acquire":
            return leases.acquire(session, self.of, length, proposed=proposed(args, "proposed"))
        if op == "renew":
            return leases.renew(session, self.of, mine)
        if op == "change":
            return leases.change(session, self.of, mine, proposed=proposed(args, "proposed"))
        if op == "release":
            return leases.release(session, self.of, mine)
        if op == "break":
            return leases.break_(session, self.of, after=args.get("break_period"))
        if op == "sleep":
            later = datetime.timedelta(seconds=args["seconds"])
            now = session.scalar(select(Now.now))
            return session.execute(update(Now).values(now=now + later))
        if op == "put_child_blob":
            return None
        if op in READS:
            return leases.read(session, self.model, self.key, mine)
        with watch(sessionmaker(session.get_bind()))() as own:
            if mine is not None:
                leases.use(own, self.of, mine)
            row = own.get_one(self.model, self.key)
            if "If-Match" in args:
                tag = etag_of(row) if args["If-Match"] == "$E" else args["If-Match"]
                entities.merge(own, self.model, self.key, {"text": 7}, if_match=tag)
            elif op == "delete":
                own.delete(row)
            else:
                assert op in WRITES
                row.text += 1
            own.commit()
        return None

    def etag(self) -> Any:
        row = self.session.get(self.model, self.key, populate_existing=True)
        tag = None if row is None else etag_of(row)
        self.session.commit()
        return tag


def wanted(vector: Any, place: int, step: Any) -> tuple[int, dict[str, Any]]:
    expect = step["expect"]
    status, effects = expect.get("status", 200), dict(expect.get("effects", {}))
    recommended = vector.get("recommended") or {}
    if recommended.get("step", -1) == place:
        if recommended["status"] != status:
            effects = {}
        status, effects = recommended["status"], {**effects, **recommended.get("effects", {})}
    return status, effects


def wrong_in(session: Session, vector: Any, number: int) -> list[Any]:
    """What is not as wanted."""
    session.execute(update(Now).values(now=BEGIN))
    given = vector["given"]
    if isinstance(given, str):
        given = {"resource": "blob", "lease_state": "leased"}
    of = CLASSES[given["resource"]]
    if given.get("exists", True):
        session.add(of(id=number))
    session.commit()
    replay, found = Replay(session, of, number), []
    setup = list(given.get("setup", ()))
    if not setup and given.get("lease_state") == "leased":
        setup = [{"op": "acquire", "args": {"proposed": "A", "duration": 60}}]
    if "acquire A 15 s + sleep 16" in (vector.get("note") or ""):
        setup = [
            {"op": "acquire", "args": {"proposed": "A", "duration": 15}},
            {"op": "sleep", "args": {"seconds": 16}},
        ]
    for step in setup:
        assert replay.do(step["op"], step["args"])[0] == 200, vector["id"]
    for place, step in enumerate(vector["steps"]):
        before = replay.etag()
        status, effects = wanted(vector, place, step)
        got, done = replay.do(step["op"], step["args"])
        if got != (200 if status < 400 else status):
            found.append((vector["id"], place, "status", status, got))
        if not isinstance(done, ERRORS.get(step["expect"].get("error_code"), object)):
            found.append((vector["id"], place, "error", done))
        if not effects:
            continue
        after = replay.etag()
        if effects.get("exists_after", True) is not (after is not None):
            found.append((vector["id"], place, "exists", after))
        elif after is None:
            continue
        elif "etag_changed" in effects and effects["etag_changed"] is not (before != after):
            found.append((vector["id"], place, "etag", effects["etag_changed"]))
        state = leases.look(session, replay.of)
        session.commit()
        if effects.get("lease_state", state.state) != state.state:
            found.append((vector["id"], place, "state", effects["lease_state"], state.state))
        endless = {"fixed": False, "infinite": True}.get(effects.get("lease_duration"))
        if endless is not None and endless is not (state.until is None):
            found.append((vector["id"], place, "duration", effects["lease_duration"]))
        if "lease_time_seconds" in effects and effects["lease_time_seconds"] != done.seconds:
            found.append((vector["id"], place, "seconds", done.seconds))
        if effects.get("lease_id") in IDS and done.id != IDS[effects["lease_id"]]:
            found.append((vector["id"], place, "id"))
    session.execute(delete(of))
    session.commit()
    return found


def replay_all(session: Session, some: Any = slice(None)) -> list[Any]:
    session.add(Now(id=1, now=BEGIN))
    session.commit()
    return [
        wrong
        for number, vector in enumerate(VECTORS[some], 1)
        for wrong in wrong_in(session, vector, number)
    ]


TABLES = [one.__table__ for one in (Now, Blob, Container)]


@pytest.mark.modes(full=True)
def test_every_vector(engine: Any, tries: Any) -> None:
    """Without ``--product`` a server is asked a third of them."""
    every = 1 if engine.dialect.name == "sqlite" else tries(3, 3, 1)
    Base.metadata.create_all(engine, tables=TABLES)
    with Session(engine) as session:
        wrong = replay_all(session, slice(None, None, every))
        assert "\n".join(map(str, wrong)) == ""
    Base.metadata.drop_all(engine, tables=TABLES)


def test_a_clock_that_jumps(engine: Any) -> None:
    """Forward it ends leases early; back it prolongs them, and nothing that was released."""
    Base.metadata.create_all(engine, tables=TABLES)
    with Session(engine) as session:
        session.add_all([Now(id=1, now=BEGIN), Blob(id=1), Blob(id=2)])
        session.commit()
        one, two = (leases.acquire(session, (Blob, n), 30) for n in (1, 2))
        leases.release(session, two)
        session.commit()

        def jump(days: int) -> None:
            session.execute(update(Now).values(now=BEGIN + datetime.timedelta(days=days)))
            session.commit()

        jump(1)
        assert leases.look(session, one).state == "expired"
        with pytest.raises(LeaseLost):
            leases.change(session, one)
        jump(-1)
        assert leases.look(session, one).seconds == 24 * 3600 + 30
        with pytest.raises(LeaseHeld):
            leases.acquire(session, (Blob, 1), 30)
        assert leases.look(session, (Blob, 2)).state == "available"
        leases.acquire(session, (Blob, 2), 30)
        session.rollback()
        with watch(sessionmaker(engine))() as own:
            own.get_one(Blob, 2).text = 7
            own.commit()
            own.get_one(Blob, 1).text = 7
            with pytest.raises(LeaseHeld):
                own.commit()
            own.rollback()
        renewed = leases.renew(session, one)
        assert renewed.seconds == 30
        session.commit()
    Base.metadata.drop_all(engine, tables=TABLES)


@pytest.mark.anyio
@pytest.mark.engines("sqlite-wal")
async def test_every_vector_in_async_code(async_engine: Any, tries: Any) -> None:
    """Without ``--product`` a fifth of them."""
    await replay_all_async(async_engine, slice(None, None, tries(5, 5, 1)))


@pytest.mark.full
@pytest.mark.anyio
@pytest.mark.engines("postgresql", "mariadb")
async def test_every_vector_in_async_code_on_a_server(async_engine: Any, tries: Any) -> None:
    await replay_all_async(async_engine, slice(tries(2, 2, 0), None, tries(5, 5, 1)))


async def replay_all_async(async_engine: Any, some: slice) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(lambda c: Base.metadata.drop_all(c, tables=TABLES))
        await connection.run_sync(lambda c: Base.metadata.create_all(c, tables=TABLES))
    async with AsyncSession(async_engine) as session:
        assert "\n".join(map(str, await session.run_sync(replay_all, some))) == ""
    async with async_engine.begin() as connection:
        await connection.run_sync(lambda c: Base.metadata.drop_all(c, tables=TABLES))
    await async_engine.dispose()
