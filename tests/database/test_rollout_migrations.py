"""What a roll-out leaves is what the mapping asks for."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Counter, RowVersion, Timestamp, Unique, Versioned
from optilock.rollout import roll_out
from tests.migrating import revise

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
TOKENS = [Counter(), Unique(), Timestamp(), RowVersion()]
each_token = pytest.mark.parametrize("token", TOKENS, ids=lambda token: type(token).__name__)


def parcels(token: Any = None) -> type[Any]:
    """A class, before and after it became ``Versioned``."""

    class Base(DeclarativeBase):
        pass

    columns: dict[str, Any] = {
        "__tablename__": "parcels",
        "__annotations__": {"id": Mapped[int], "owner": Mapped[str], "views": Mapped[int]},
        "id": mapped_column(primary_key=True),
        "owner": mapped_column(String(20)),
        "views": mapped_column(),
    }
    if token is None:
        return type("Parcel", (Base,), columns)
    columns["__version_token__"] = token
    if not isinstance(token, RowVersion):
        columns |= {"__version_guard__": "bump", "__version_ignore__": ("views",)}
    return type("Parcel", (Versioned, Base), columns)


@each_token
def test_autogenerate_finds_nothing_to_do_after_a_roll_out(engine, token):
    parcels().metadata.create_all(engine)
    guard = {} if isinstance(token, RowVersion) else {"guard": "bump", "ignore": ["views"]}
    roll_out(engine, "parcels", token=token, **guard)

    mapped = parcels(token)  # held: a mapping that is collected asks for nothing
    assert revise(engine, mapped.metadata).lines == []
