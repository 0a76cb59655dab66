"""``optilock check``: parts that live and die with a row, and leave its version."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from optilock import Versioned
from optilock.check import Severity, check
from optilock.tokens import Counter

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def models(root, cascade, token=Counter()):  # noqa: B008
    class Base(DeclarativeBase):
        pass

    class Order(Versioned, Base):
        __tablename__ = "rooted_orders"
        __version_root_of__ = root
        id: Mapped[int] = mapped_column(primary_key=True)
        lines = relationship("Line", cascade=cascade, back_populates="order")

    class Line(Versioned, Base):
        __tablename__ = "rooted_lines"
        __version_token__ = token
        id: Mapped[int] = mapped_column(primary_key=True)
        order_id: Mapped[int] = mapped_column(ForeignKey("rooted_orders.id"))
        order = relationship("Order", back_populates="lines")

    Base.kept = Order, Line  # a program's classes stay
    return Base


@pytest.mark.parametrize(
    ("root", "cascade", "found"),
    [
        ((), "all, delete-orphan", ["Order.lines"]),
        (("lines",), "all, delete-orphan", []),
        ((), "save-update, merge", []),
    ],
)
def test_parts_that_are_deleted_with_their_row_are_noted(engine, root, cascade, found):
    """B6: a child changed, the parent's tag did not, and no other check says so."""
    base = models(root, cascade)
    base.metadata.create_all(engine)
    findings = [one for one in check(base, engine) if one.code == "no-root"]
    assert [one.subject for one in findings] == found
    assert all(one.severity is Severity.NOTE for one in findings)
    assert all("__version_root_of__" in one.advice for one in findings)


@pytest.mark.parametrize(
    ("root", "token", "found"),
    [(("lines",), None, ["Line"]), (("lines",), Counter(), []), ((), None, [])],
)
def test_parts_that_only_their_root_guards_are_noted(engine, root, token, found):
    base = models(root, "all, delete-orphan", token)
    base.metadata.create_all(engine)
    findings = [one for one in check(base, engine) if one.code == "part-without-version"]
    assert [(one.subject, one.severity) for one in findings] == [(n, Severity.NOTE) for n in found]
    assert all("Order.lines" in one.message for one in findings)
