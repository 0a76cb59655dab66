"""SQLAlchemy's own ``version_id_col`` in watched sessions: read with its row, as the mixin's is."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Mapped, defer, load_only, mapped_column

from optilock import ConfigurationError
from tests.models import Base, Native, key


class NativeDeferred(Base):
    __tablename__ = "natives_deferred"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    revision: Mapped[int] = mapped_column(deferred=True)
    __mapper_args__ = {"version_id_col": revision}


@pytest.mark.parametrize(
    "option", [load_only(Native.text), defer(Native.revision), defer("*")], ids=range(3)
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_version_that_an_option_leaves_out_is_read_all_the_same(
    store, watched, other, refused, option, count
):
    store(*(Native(id=n, text="a") for n in range(count)))
    session = watched()
    rows = session.scalars(select(Native).options(option).order_by(Native.id)).all()
    assert all("revision" in row.__dict__ for row in rows)
    session.expunge_all()
    session.rollback()
    other(Native, 0, text="theirs")
    session.add_all(rows)
    for row in rows:
        row.text = "mine"
    assert [entry.identity for entry in refused(session).entries] == [(0,)]


def test_a_version_that_the_mapping_defers_is_refused(store, watched, stored):
    store(NativeDeferred(id=1, text="a"))
    session = watched()
    session.get_one(NativeDeferred, 1).text = "mine"
    with pytest.raises(ConfigurationError, match="deferred"):
        session.flush()
    session.rollback()
    assert stored(NativeDeferred, 1)["text"] == "a"
