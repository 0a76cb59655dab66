"""A tag that comes back is a version of its row in a WHERE, or nothing: never a driver's error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    BigInteger,
    Connection,
    DateTime,
    Engine,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Uuid,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column

from optilock._versioned import Versioned
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.tokens import RowVersion, UtcDateTime
from tests.support.tags import version_text

MOMENT = datetime(2026, 1, 2, 3, 4, 5)
PRECISE = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
#: A type for the column of the version, and a version.
KINDS: dict[str, tuple[Any, Any]] = {
    "small": (SmallInteger, 7),
    "integer": (Integer, 2**31 - 1),
    "big": (BigInteger, 2**63 - 1),
    "uuid": (Uuid, UUID(int=5)),
    "uuid_text": (Uuid(as_uuid=False), str(UUID(int=5))),
    "text": (String(20), 'a"b, c.é%'),
    "bytes": (LargeBinary(20), b"\x00\xff"),
    "numeric": (Numeric(6, 2), Decimal("12.50")),
    "double": (Float(53), 0.1),
    "moment": (PRECISE, MOMENT),
    "zoned": (DateTime(timezone=True), MOMENT.replace(tzinfo=UTC)),
    "utc": (UtcDateTime, MOMENT.replace(tzinfo=UTC)),
}
#: What a client may write after the point.
FORGED = [
    "", "0", "-1", "007", "+7", "1_0", "\u0663", "7 ", "32768", "2147483648", "4294967296", "x",
    "9223372036854775808", "-9223372036854775809", "9" * 5000, "1e400", "inf", "nan", "NaN",
    "Infinity", "1E+1000", "99999.00", "1.234", "." * 70, "%00", "%ff", "%ED%A0%80", "%F0%9F%98%80",
    "a%27%3B--", "A" * 3000, "00", "0g", UUID(int=9).hex, str(UUID(int=9)), "{" + UUID(int=9).hex,
    "2026-01-02T03:04:06", "2026-01-02", "2026-01-02T03:04:05+05:00", "0001-01-01T00:00:00+00:00",
    "9999-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999+00:00", "2026-01-02T03:04:05Z",
]  # fmt: skip


class Base(DeclarativeBase):
    pass


def of_kind(name: str, kind: Any) -> Any:
    version = mapped_column(kind, nullable=False)
    body = {
        "__tablename__": f"tag_{name}",
        "id": mapped_column(Integer, primary_key=True, autoincrement=False),
        "version": version,
        "__mapper_args__": {"version_id_col": version, "version_id_generator": False},
    }
    return type(f"Of{name.title()}", (Base,), body)


CLASSES = {name: of_kind(name, kind) for name, (kind, _) in KINDS.items()}


class Numbered(Versioned, Base):
    """Its column is PostgreSQL's own."""

    __tablename__ = "tag_xmin"
    __version_token__ = RowVersion(xmin=True)
    id = mapped_column(Integer, primary_key=True, autoincrement=False)


def classes_on(name: str) -> list[Any]:
    return [*CLASSES.values(), *([Numbered] if name == "postgresql" else [])]


def create(connection: Connection) -> None:
    classes = classes_on(connection.dialect.name)
    Base.metadata.create_all(connection, tables=[one.__table__ for one in classes])
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        session.add_all(CLASSES[name](id=7, version=value) for name, (_, value) in KINDS.items())
        if Numbered in classes:
            session.add(Numbered(id=7))
        session.commit()


def found(connection: Connection, cls: Any, versions: tuple[Any, ...]) -> list[int]:
    if not versions:  # then nothing has to be asked
        return []
    asked = select(cls.id).where(cls.version.in_(versions), cls.id == 7)
    return list(connection.scalars(asked))


def no_forged_text_reaches_the_driver(connection: Connection) -> None:
    create(connection)
    for cls in classes_on(connection.dialect.name):
        (now,) = connection.scalars(select(cls.version))
        known = version_text(PLAIN.tag(cls.__mapper__, (7,), now))
        for text in FORGED:
            tags = PLAIN.of_row(cls.__mapper__, (7,))
            versions = tags.named([f'"{seal(cls)}.{text}"'])
            assert found(connection, cls, versions) == [7] * (text == known), (cls, text)


def seal(cls: Any) -> str:
    return PLAIN.tag(cls.__mapper__, (7,), 1)[1:-1].partition(".")[0]


def every_version_comes_back_from_its_tag(connection: Connection) -> None:
    create(connection)
    for cls in classes_on(connection.dialect.name):
        for tags in (PLAIN, ETags(keys=["k" * 16], tenant="acme")):
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                tag = tags.of(session.get_one(cls, 7))
            versions = tags.versions(cls, 7, tag)
            assert found(connection, cls, versions) == [7], (cls, tag)
            assert tags.versions(cls, 8, tag) == ()


BOTH = pytest.mark.parametrize(
    "check", [no_forged_text_reaches_the_driver, every_version_comes_back_from_its_tag]
)


@BOTH
def test_tags_in_a_where(engine: Engine, check: Callable[[Connection], None]) -> None:
    with engine.begin() as connection:
        check(connection)


@BOTH
@pytest.mark.anyio
async def test_tags_in_a_where_of_an_async_driver(
    async_engine: AsyncEngine, check: Callable[[Connection], None]
) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(check)
