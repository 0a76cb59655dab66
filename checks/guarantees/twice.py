"""Work that is done again, by a client or the server, because COMMIT's answer was lost."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Engine, Uuid, create_engine, delete, func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from checks.guarantees.outcomes import POSSIBLE, PREVENTED
from checks.guarantees.rows import Base, PlainRow, VersionedRow, fill, stored
from optilock import (
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    entities,
    etag_of,
    expect,
    serializable,
    unit_of_work,
)
from optilock.entities import Idempotency
from optilock.errors import CommitOutcomeUnknown
from optilock.tables.names import commit_tokens
from optilock.testing import Faults
from optilock.tokens import Unique

__all__ = ["REQUESTS", "Request", "outcomes_of_requests"]


class Payment(Versioned, Base):
    __tablename__ = "guarantee_payments"
    __version_token__ = Unique()
    id: Mapped[uuid.UUID] = mapped_column(Uuid(), primary_key=True)
    cents: Mapped[int]


#: Returns whether the request has counted twice.
Trial = Callable[[Engine], bool]


@dataclass(frozen=True)
class Request:
    """What a client asks for, and what the server does about a second sending."""

    title: str
    protection: str
    trial: Trial


def _add_one(make: Callable[[Engine], Any], model: type[Any], engine: Engine) -> bool:
    fill(engine, model)
    for _ in range(2):
        with make(engine) as session:
            session.get_one(model, 1).value += 1
    return stored(engine, model)[1] == 12


def _plain(engine: Engine) -> Any:
    return sessionmaker(engine).begin()


def _unit(engine: Engine) -> Any:
    return UnitOfWork(sessionmaker(engine))


def _serializable(engine: Engine) -> Any:
    return serializable(sessionmaker(engine))


@contextmanager
def _losing_the_answer(engine: Engine) -> Iterator[Engine]:
    """An engine whose first COMMIT is carried out, and its answer lost."""
    other = create_engine(engine.url)
    with Faults(other) as faults:
        faults.commit_lost(stored=True)
        yield other
    other.dispose()


def _add_again(engine: Engine) -> bool:
    """The server's own loop around a session."""
    fill(engine, PlainRow)
    with _losing_the_answer(engine) as other:
        for _ in range(2):
            with suppress(DBAPIError):
                with _plain(other) as session:
                    session.get_one(PlainRow, 1).value += 1
                break
    return stored(engine, PlainRow)[1] == 12


def _add_once(once: bool | str, engine: Engine) -> bool:
    """A decorated function, which a client with a key asks for a second time."""
    fill(engine, VersionedRow)
    commit_tokens.drop(engine, checkfirst=True)
    commit_tokens.create(engine)

    def add(session: Session) -> None:
        session.get_one(VersionedRow, 1).value += 1

    try:
        with _losing_the_answer(engine) as other:
            unit_of_work(sessionmaker(other), exactly_once=once)(add)()
        if isinstance(once, str):
            unit_of_work(sessionmaker(engine), exactly_once=once)(add)()
    finally:
        commit_tokens.drop(engine)
    return stored(engine, VersionedRow)[1] == 12


def _expected(engine: Engine) -> bool:
    fill(engine, VersionedRow)
    with _unit(engine) as session:
        tag = etag_of(session.get_one(VersionedRow, 1))
    for _ in range(2):
        with _unit(engine) as session:
            row = session.get_one(VersionedRow, 1)
            expect(row, tag)
            row.value += 1
    return stored(engine, VersionedRow)[1] == 12


def _pay(pay: Callable[[Session], object], engine: Engine) -> bool:
    with engine.begin() as connection:
        connection.execute(delete(Payment.__table__))
    for _ in range(2):
        with _unit(engine) as session:
            pay(session)
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Payment.__table__)) == 2


def _pay_again(session: Session) -> None:
    session.add(Payment(id=uuid.uuid4(), cents=500))


def _pay_under_the_clients_key(session: Session) -> None:
    row = {"id": uuid.UUID(int=7), "cents": 500, "version": uuid.uuid4()}
    session.execute(insert(Payment.__table__), [row])


def _pay_once(session: Session) -> None:
    sent = Idempotency('"8e03978e"', keys=["a secret of 16 bytes, or more"], principal="ada")
    entities.insert(session, Payment, None, {"cents": 500}, idempotency=sent)


REQUESTS = {
    "add-nothing": Request("add 1", "nothing", partial(_add_one, _plain, PlainRow)),
    "add-version": Request("add 1", "version", partial(_add_one, _unit, VersionedRow)),
    "add-serializable": Request(
        "add 1", "`serializable`", partial(_add_one, _serializable, VersionedRow)
    ),
    "add-etag": Request("add 1", "`expect` with the client's ETag", _expected),
    "again-nothing": Request("add 1, COMMIT's answer lost", "nothing, run again", _add_again),
    "again-version": Request(
        "add 1, COMMIT's answer lost", "`unit_of_work`", partial(_add_once, False)
    ),
    "again-once": Request(
        "add 1, COMMIT's answer lost", "`exactly_once=True`", partial(_add_once, True)
    ),
    "again-key": Request(
        "add 1, both answers lost", "`exactly_once=key`", partial(_add_once, "order-7")
    ),
    "pay-nothing": Request("insert a payment", "version", partial(_pay, _pay_again)),
    "pay-key": Request(
        "insert a payment", "primary key of the client", partial(_pay, _pay_under_the_clients_key)
    ),
    "pay-once": Request("insert a payment", "`Idempotency`", partial(_pay, _pay_once)),
}


def outcomes_of_requests(engine: Engine) -> tuple[str, ...]:
    """Send each request twice."""
    return tuple(_outcome(request.trial, engine) for request in REQUESTS.values())


def _outcome(trial: Trial, engine: Engine) -> str:
    try:
        return POSSIBLE if trial(engine) else PREVENTED
    except (CommitOutcomeUnknown, PreconditionFailed, IntegrityError) as error:
        return f"`{type(error).__name__}`"
