"""The columns of a lease, in the table of leased rows or in that of names.

==============  ==================================================================================
lease_id        128 random bits; NULL: there is no lease
lease_since     when the holder acquired it
lease_until     when it ends: a far date if it is endless
lease_length    milliseconds, for which it is renewed; 0: endless; NULL: it is being broken
lease_fence     grows by one with every holder, and never shrinks
lease_holder    the holder's label, which is public; NULL: the holder gave none
==============  ==================================================================================

The state of a lease is not stored: it follows from these columns and from the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, String, Table, Uuid, case, or_
from sqlalchemy.orm import Mapper

from optilock._mapped import NOT_A_VALUE, facts
from optilock.leases.values import LONGEST_HOLDER, LeasePolicy
from optilock.tokens.timestamp import UtcDateTime

#: MariaDB's own type takes the 128 bits of a UUID of some versions only.
LEASE_ID = Uuid().with_variant(Uuid(native_uuid=False), "mysql", "mariadb")
_KEY = "optilock_lease"
NAMES = (
    "lease_id",
    "lease_since",
    "lease_until",
    "lease_length",
    "lease_fence",
    "lease_holder",
)


@dataclass(frozen=True, eq=False)
class LeaseColumns:
    """The columns of one table, and the policy of its leases."""

    table: Table
    policy: LeasePolicy
    #: Statements and conditions, which are made once.
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
    def holder(self) -> Column[Any]:
        return self.table.c.lease_holder

    @property
    def clock(self) -> ColumnElement[Any]:
        return self.policy.clock

    def free(self) -> ColumnElement[bool]:
        """SQL: no lease is in force."""
        return or_(self.until.is_(None), self.until <= self.clock, self.id.is_(None))

    @property
    def lease(self) -> tuple[ColumnElement[Any], ...]:
        """SQL: all columns of the lease, and the time as ``now``."""
        return (*(self.table.c[name] for name in NAMES), self.clock.label("now"))

    @cached_property
    def in_force(self) -> tuple[ColumnElement[Any], ...]:
        """SQL: id, begin, end and holder of the lease that is in force; NULL without one."""
        columns = (self.id, self.since, self.until, self.holder)
        return tuple(case((self.until > self.clock, one)) for one in columns)


def new_columns() -> list[Column[Any]]:
    """Return new columns for a table."""
    beside: dict[Any, Any] = {NOT_A_VALUE: True}
    return [
        Column("lease_id", LEASE_ID, info=beside),
        Column("lease_since", UtcDateTime(), info=beside),
        Column("lease_until", UtcDateTime(), info=beside),
        Column("lease_length", BigInteger(), info=beside),
        Column("lease_fence", BigInteger(), nullable=False, server_default="0", info=beside),
        Column("lease_holder", String(LONGEST_HOLDER), info=beside),
    ]


def register_columns(table: Table, policy: LeasePolicy) -> LeaseColumns:
    """Note that the table has the columns."""
    found = table.info[_KEY] = LeaseColumns(table, policy)
    return found


def columns_in(table: Any) -> LeaseColumns | None:
    """Return the lease's columns of a table, if it has them."""
    found: LeaseColumns | None = table.info.get(_KEY) if isinstance(table, Table) else None
    return found


def columns_of(mapper: Mapper[Any]) -> LeaseColumns | None:
    """Return the lease's columns of the rows of a class."""
    return columns_in(facts(mapper).table_if_any)


def lease_names_in(names: Iterable[str]) -> list[str]:
    """Return the names that are those of a lease's columns."""
    return sorted(set(names) & set(NAMES))
