"""The columns of a lease, in the table of the leased rows or in the one of names.

==============  ==================================================================================
lease_id        128 random bits; NULL: there is no lease
lease_since     when the holder has acquired it
lease_until     when it ends: a far date if it is endless
lease_length    milliseconds, for which it is renewed; 0: endless; NULL: it is being broken
lease_fence     grows by one with every holder, and never shrinks
==============  ==================================================================================

What state a lease is in is not stored: it follows from these columns and from the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Table, Uuid, case, or_
from sqlalchemy.orm import Mapper

from optilock.leases.policy import LeasePolicy
from optilock.mapped import BESIDE, facts
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["FAR", "LeaseColumns", "columns_of", "new_columns", "take"]

#: The end of an endless lease. No server makes it another day in its own time zone.
FAR = datetime(9999, 12, 30, tzinfo=UTC)
#: MariaDB's own type takes the 128 bits of a UUID of some versions only.
LEASE_ID = Uuid().with_variant(Uuid(native_uuid=False), "mysql", "mariadb")
_KEY = "optilock_lease"
NAMES = ("lease_id", "lease_since", "lease_until", "lease_length", "lease_fence")


@dataclass(frozen=True, eq=False)
class LeaseColumns:
    """The columns of one table, and what its leases are like."""

    table: Table
    policy: LeasePolicy
    #: Statements and conditions that were made once.
    known: dict[Any, Any] = field(default_factory=dict)

    @property
    def id(self) -> Column[Any]:
        return self.table.c.lease_id

    @property
    def since(self) -> Column[Any]:
        return self.table.c.lease_since

    @property
    def until(self) -> Column[Any]:
        return self.table.c.lease_until

    @property
    def length(self) -> Column[Any]:
        return self.table.c.lease_length

    @property
    def fence(self) -> Column[Any]:
        return self.table.c.lease_fence

    @property
    def clock(self) -> ColumnElement[Any]:
        return self.policy.clock

    def free(self) -> ColumnElement[bool]:
        """SQL: nobody holds a lease."""
        return or_(self.until.is_(None), self.until <= self.clock, self.id.is_(None))

    @cached_property
    def holder(self) -> tuple[ColumnElement[Any], ...]:
        """SQL: the id, the begin and the end of the lease that is in force; NULL without one."""
        columns = (self.id, self.since, self.until)
        return tuple(case((self.until > self.clock, one)) for one in columns)


def new_columns() -> list[Column[Any]]:
    """The columns, for a table."""
    beside: dict[Any, Any] = {BESIDE: True}
    return [
        Column("lease_id", LEASE_ID, info=beside),
        Column("lease_since", UtcDateTime(), info=beside),
        Column("lease_until", UtcDateTime(), info=beside),
        Column("lease_length", BigInteger(), info=beside),
        Column("lease_fence", BigInteger(), nullable=False, server_default="0", info=beside),
    ]


def take(table: Table, policy: LeasePolicy) -> LeaseColumns:
    """Note that the table has the columns."""
    found = table.info[_KEY] = LeaseColumns(table, policy)
    return found


def columns_in(table: Any) -> LeaseColumns | None:
    """The lease's columns of a table, if it has them."""
    found: LeaseColumns | None = table.info.get(_KEY) if isinstance(table, Table) else None
    return found


def columns_of(mapper: Mapper[Any]) -> LeaseColumns | None:
    """Those of the rows of a class."""
    return columns_in(facts(mapper).table_if_any)


def names_taken(names: Iterable[str]) -> list[str]:
    """Those of the names that the columns of a lease have."""
    return sorted(set(names) & set(NAMES))
