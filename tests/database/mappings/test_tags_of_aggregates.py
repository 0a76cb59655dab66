"""The tag of a root is that of the whole: it has none while a part waits for the flush.

Also the edits that move no version: relationships over ignored columns, and viewonly ones.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import ConfigurationError, Versioned, etag_of
from optilock._watched.session.record import is_watched
from optilock.statements import no_bump
from optilock.testing import count_statements
from tests.support.models import Account, Base, key
from tests.support.orders import Label, Line, Order, Part
from tests.support.orders import session as session

#: No statement is sent, so that one database is as good as three.
pytestmark = pytest.mark.engines("sqlite-wal")

Edit = Callable[[Session], object]


class TagParent(Versioned, Base):
    __tablename__ = "tg_parents"
    id: Mapped[int] = key()
    children: Mapped[list[TagChild]] = relationship()


class TagChild(Versioned, Base):
    """It does not know its parent."""

    __tablename__ = "tg_children"
    id: Mapped[int] = key()
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("tg_parents.id"))


class Visit(Versioned, Base):
    __tablename__ = "tg_visits"
    __version_ignore__ = ("viewer_id",)
    id: Mapped[int] = key()
    viewer_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))
    viewer: Mapped[Account | None] = relationship(foreign_keys=[viewer_id])
    owner: Mapped[Account | None] = relationship(foreign_keys=[owner_id])
    shown: Mapped[Account | None] = relationship(foreign_keys=[owner_id], viewonly=True)


def changed_line(session: Session) -> None:
    session.get_one(Line, 1).text = "mine"


def changed_grandchild(session: Session) -> None:
    session.get_one(Line, 1)
    session.get_one(Part, 1).text = "mine"


def grandchild_of_unread_child(session: Session) -> None:
    session.get_one(Part, 1).text = "mine"


def new_in_collection(session: Session) -> None:
    session.get_one(Order, 1).lines.append(Line(id=9))


def new_by_key(session: Session) -> None:
    session.add(Line(id=9, order_id=1))


def deleted(session: Session) -> None:
    session.delete(session.get_one(Line, 2))


def removed(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.lines.remove(order.lines[0])


def moved_away(session: Session) -> None:
    session.get_one(Line, 1).order_id = 2


def expired_part(session: Session) -> None:
    line = session.get_one(Line, 1)
    session.expire(line)
    line.text = "mine"


def linked(session: Session) -> object:
    label = session.get_one(Label, 2)
    label.orders.append(session.get_one(Order, 1))
    return label


def deleted_label(session: Session) -> None:
    session.delete(session.get_one(Label, 1))


EDITS: list[Edit] = [
    changed_line,
    changed_grandchild,
    grandchild_of_unread_child,
    new_in_collection,
    new_by_key,
    deleted,
    removed,
    moved_away,
    expired_part,
    linked,
    deleted_label,
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_root_has_no_tag_while_a_part_waits_for_the_flush(session, engine, edit):
    """B5: nothing is read to find it, and after the flush the tag is another one."""
    order = session.get_one(Order, 1)
    before = etag_of(order)
    with session.no_autoflush:
        held = edit(session)  # the session holds it weakly
    with count_statements(engine) as sent, pytest.raises(ConfigurationError, match="Order"):
        etag_of(order)
    assert sent.count == 0
    del held
    session.flush()
    assert etag_of(order) != before


def ignored_column(session: Session) -> None:
    session.get_one(Line, 1).seen = 7


def other_order(session: Session) -> None:
    session.add(Line(id=9, order_id=2))


def kept_version(session: Session) -> None:
    no_bump(session, Line).__enter__()
    session.get_one(Line, 1).text = "mine"


def object_behind_a_link(session: Session) -> None:
    session.get_one(Label, 1).text = "mine"


def unrelated_object(session: Session) -> None:
    session.add(Account(id=1, owner="half made"))


KEPT: list[Edit] = [
    ignored_column,
    other_order,
    kept_version,
    object_behind_a_link,
    unrelated_object,
]


@pytest.mark.parametrize("edit", KEPT, ids=lambda edit: edit.__name__)
def test_a_root_keeps_its_tag_where_its_version_stays(session, tables, edit):
    """B5: only a change that moves the root is refused."""
    if edit is kept_version and not is_watched(session):
        pytest.skip("a plain session has no no_bump")
    tables(Account)
    order = session.get_one(Order, 1)
    before = etag_of(order)
    with session.no_autoflush:
        edit(session)
    assert etag_of(order) == before
    session.flush()
    assert etag_of(order) == before


def test_an_object_has_no_tag_while_a_collection_takes_it_in(store, watched):
    """B5: its own attributes are as they were; the flush gives it the parent's key."""
    store(TagParent(id=1), TagChild(id=1))
    session = watched()
    child, parent = session.get_one(TagChild, 1), session.get_one(TagParent, 1)
    before = etag_of(child)
    parent.children.append(child)
    with pytest.raises(ConfigurationError, match=r"TagParent\.children"):
        etag_of(child)
    session.flush()
    assert etag_of(child) != before


@pytest.fixture
def visit(store, watched):
    store(Account(id=1), Account(id=2))
    store(Visit(id=1, owner_id=1, viewer_id=1))
    return watched().get_one(Visit, 1)


@pytest.mark.parametrize("name", ["viewer", "shown"])
def test_a_relationship_that_moves_no_version_leaves_the_tag(visit, name):
    """B5: its foreign key column is ignored, or it is viewonly."""
    session = Session.object_session(visit)
    before = etag_of(visit)
    setattr(visit, name, session.get_one(Account, 2))
    assert etag_of(visit) == before
    session.flush()
    assert etag_of(visit) == before


def test_a_relationship_that_moves_the_version_leaves_no_tag(visit):
    session = Session.object_session(visit)
    visit.owner = session.get_one(Account, 2)
    with pytest.raises(ConfigurationError, match="owner"):
        etag_of(visit)
