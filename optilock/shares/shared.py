"""The mixin whose rows nobody writes against those who have them open.

::

    class Page(Shared, Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)

It adds no column. :mod:`optilock.shares.guard` says what is asked of whom.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Integer, String, Table, event
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.session.watched import demand_always
from optilock.shares.guard import BY_SHARES
from optilock.shares.locked import USUAL, Shares

__all__ = ["Shared"]


class Shared:
    """Mixin: nobody writes a row of the class against those who have it open."""

    __shares__: ClassVar[Shares] = USUAL


@event.listens_for(Shared, "instrument_class", propagate=True)
def _guard(mapper: Mapper[Any], cls: type[Any]) -> None:
    """From here on its rows are asked for.

    Raises:
        ConfigurationError: nobody could say their names.
    """
    if not isinstance(cls.__shares__, Shares):
        raise ConfigurationError(
            f"{cls.__name__}.__shares__ is {cls.__shares__!r}: write Shares(schema=...), or leave"
            " it out."
        )
    table = mapper.local_table
    if not isinstance(table, Table) or mapper.concrete:
        how = "to a SELECT" if not mapper.concrete else "with concrete=True"
        raise ConfigurationError(
            f"{cls.__name__} is Shared, but is mapped {how}, and the name of a row is made of its"
            " table and key: map a table of its own."
        )
    for column in table.primary_key:
        if not isinstance(column.type, (Integer, String)):
            raise ConfigurationError(
                f"{cls.__name__} is Shared, and the type of its key {column.name} is"
                f" {type(column.type).__name__}: databases write such a key in several ways, and"
                " the name of a row is made of its key. Use a key of integers or texts."
            )
    cls.__shares__.of_rows.add(table.name)
    demand_always(BY_SHARES)
