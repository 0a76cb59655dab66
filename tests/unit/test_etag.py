"""The ETag of a loaded row tells the version that was loaded, and asks the database nothing."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, LargeBinary, create_engine, event, text
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    make_transient,
    mapped_column,
)
from sqlalchemy.orm.attributes import set_committed_value

from optilock._versioned import Versioned
from optilock.errors import ConfigurationError
from optilock.preconditions.entity_tags import ETags, etag_of
from optilock.tokens import Unique
from tests.support.tags import version_text

#: RFC 9110 section 8.8.3: DQUOTE *etagc DQUOTE, etagc = %x21 / %x23-7E; without obs-text.
STRONG = re.compile(r'"[\x21\x23-\x7e]*"')


class Base(DeclarativeBase):
    pass


class Account(Versioned, Base):
    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]


class Ticket(Versioned, Base):
    __tablename__ = "tickets"
    __version_token__ = Unique(name="stamp", column="stamp_no")

    id: Mapped[int] = mapped_column(primary_key=True)


class Savings(Account):
    __tablename__ = "savings"

    id: Mapped[int] = mapped_column(ForeignKey(Account.id), primary_key=True)


class Native(Base):
    """A class that has only SQLAlchemy's own version."""

    __tablename__ = "natives"

    id: Mapped[int] = mapped_column(primary_key=True)
    revision: Mapped[bytes] = mapped_column(LargeBinary)

    __mapper_args__ = {"version_id_col": revision, "version_id_generator": False}


class Plain(Base):
    __tablename__ = "plain"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        session.add(Account(id=1, owner="Ada"))
        session.commit()
        yield session


def test_it_is_the_version_in_quotes_and_moves_with_every_write(session: Session) -> None:
    account = session.get_one(Account, 1)
    before = etag_of(account)

    account.owner = "Grace"
    session.flush()

    assert version_text(before) == "1"
    assert version_text(etag_of(account)) == "2"


def test_a_joined_subclass_has_the_version_of_its_base(session: Session) -> None:
    savings = Savings(id=5, owner="Ada")
    session.add(savings)
    session.flush()

    assert version_text(etag_of(savings)) == "1"


def test_it_sends_no_sql(session: Session, engine: Engine) -> None:
    account = session.get_one(Account, 1)
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))

    etag_of(account)
    session.expire(account)
    with pytest.raises(ConfigurationError):
        etag_of(account)

    assert sent == []


def test_it_is_of_the_version_loaded_and_not_of_the_one_stored(session: Session) -> None:
    account = session.get_one(Account, 1)
    session.execute(text("UPDATE accounts SET version = 9"))

    assert version_text(etag_of(account)) == "1"


def test_a_version_set_in_memory_is_not_version_text(session: Session) -> None:
    """SQLAlchemy's own version attribute can be assigned: an edit like another one."""
    session.add(Native(id=1, revision=b"\x01"))
    session.flush()
    native = session.get_one(Native, 1)
    native.revision = b"\x02"

    with pytest.raises(ConfigurationError, match="flush"):
        etag_of(native)
    session.refresh(native)
    assert version_text(etag_of(native)) == "01"


def test_a_unique_token_is_told_as_hexadecimal_digits(session: Session) -> None:
    ticket = Ticket(id=1)
    session.add(ticket)
    session.flush()

    assert version_text(etag_of(ticket)) == ticket.stamp.hex  # type: ignore[attr-defined]


def test_a_tag_is_bound_to_the_table_and_not_to_the_name_of_the_class() -> None:
    """A renamed class reads the tags that clients hold; another table's row has another tag."""

    class Other(DeclarativeBase):
        pass

    class Customer(Versioned, Other):
        __tablename__ = "accounts"
        id: Mapped[int] = mapped_column(primary_key=True)

    renamed = [ETags().of_row(cls.__mapper__, (1,)).tag(7) for cls in (Account, Customer)]
    assert renamed[0] == renamed[1]
    assert ETags().of_row(Plain.__mapper__, (1,)).row != ETags().of_row(Native.__mapper__, (1,)).row


def test_a_detached_object_keeps_its_etag(session: Session) -> None:
    account = session.get_one(Account, 1)
    session.expunge(account)

    assert version_text(etag_of(account)) == "1"


def test_a_row_inserted_again_repeats_a_counter_but_not_a_unique_token(session: Session) -> None:
    tags = []
    for _ in range(2):
        account, ticket = Account(id=2, owner="Ada"), Ticket(id=2)
        session.add_all([account, ticket])
        session.flush()
        tags.append((etag_of(account), etag_of(ticket)))
        session.delete(account)
        session.delete(ticket)
        session.flush()

    (counter, unique), (counter_again, unique_again) = tags
    assert counter == counter_again
    assert unique != unique_again


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        (3, "3"),
        (-1, "-1"),
        (Decimal("3.10"), "3.1"),
        (uuid.UUID(int=255), "000000000000000000000000000000ff"),
        (b"\x00\xff", "00ff"),
        (datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        ("abc:1", "abc:1"),
        ('a"b, c\\d\n', "a%22b%2C%20c%5Cd%0A"),
        ("é%", "%C3%A9%25"),
        ("", ""),
    ],
)
def test_versions_of_every_kind_are_told_in_legal_characters(version: Any, tag: str) -> None:
    etag = etag_of(native_with(version))
    assert version_text(etag) == tag
    assert STRONG.fullmatch(etag)


def test_one_moment_in_two_time_zones_is_one_tag() -> None:
    moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5)))

    assert etag_of(native_with(moment)) == etag_of(native_with(elsewhere))


def native_with(version: Any) -> Native:
    """A stored object, as if it had been loaded with this version."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        native = Native(id=1, revision=b"")
        session.add(native)
        session.commit()
    engine.dispose()
    set_committed_value(native, "revision", version)
    return native


# -- what has no ETag ------------------------------------------------------------------------------


def test_a_row_that_is_not_stored_yet_has_none(session: Session) -> None:
    account = Account(id=3, owner="Ada")

    with pytest.raises(ConfigurationError, match=r"Account is not stored yet.*flush"):
        etag_of(account)
    session.add(account)
    with pytest.raises(ConfigurationError, match=r"Account is not stored yet.*flush"):
        etag_of(account)


def test_an_object_made_transient_again_has_none(session: Session) -> None:
    account = session.get_one(Account, 1)
    make_transient(account)

    with pytest.raises(ConfigurationError, match="not stored yet"):
        etag_of(account)


def test_a_deleted_row_has_none(session: Session) -> None:
    account = session.get_one(Account, 1)
    session.delete(account)
    session.flush()

    with pytest.raises(ConfigurationError, match="is deleted"):
        etag_of(account)
    session.commit()
    with pytest.raises(ConfigurationError, match="is deleted"):
        etag_of(account)


def test_a_row_whose_deletion_was_rolled_back_has_one_again(session: Session) -> None:
    account = session.get_one(Account, 1)
    session.delete(account)
    session.flush()
    session.rollback()
    session.refresh(account)

    assert version_text(etag_of(account)) == "1"


def test_an_expired_object_says_how_to_get_one(session: Session) -> None:
    account = session.get_one(Account, 1)
    session.commit()

    with pytest.raises(ConfigurationError, match=r"not loaded.*refresh.*expire_on_commit=False"):
        etag_of(account)
    session.refresh(account)
    assert version_text(etag_of(account)) == "1"


def test_a_null_version_is_no_version() -> None:
    with pytest.raises(ConfigurationError, match=r"Native is NULL.*NOT NULL"):
        etag_of(native_with(None))


def test_a_class_without_a_version_has_none(session: Session) -> None:
    plain = Plain(id=1)
    session.add(plain)
    session.flush()

    with pytest.raises(ConfigurationError, match=r"Plain has no version.*optilock\.Versioned"):
        etag_of(plain)


@pytest.mark.parametrize("version", [True, object(), ["a"]])
def test_a_version_without_an_agreed_text_is_refused(version: Any) -> None:
    with pytest.raises(ConfigurationError, match="which has no agreed text"):
        etag_of(native_with(version))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "an object of object"),
        (Account, "the class Account"),
        (None, "an object of NoneType"),
    ],
)
def test_only_objects_of_mapped_classes_have_one(value: Any, what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not {what}"):
        etag_of(value)
