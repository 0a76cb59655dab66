"""The mixin that gives the rows of a class their leases.

::

    class Page(Leasable, Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)
        text: Mapped[str]

Its columns (:mod:`optilock.leases.columns`) are of the table alone: no attribute of an object has
them, so they are in no entry, no comparison and no merge, and nobody assigns them. They move no
version and wake no guard trigger.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Table, event
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.leases.columns import columns_in, names_taken, new_columns, take
from optilock.leases.condition import UNDER_LEASES
from optilock.leases.policy import LeasePolicy
from optilock.mapped import tokens_of
from optilock.undocumented.mappers import leave_out
from optilock.watched.session.watched import demand_always

__all__ = ["Leasable"]

_USUAL = LeasePolicy()


class Leasable:
    """Mixin: a row of the class can be leased."""

    __lease_policy__: ClassVar[LeasePolicy] = _USUAL


@event.listens_for(Leasable, "instrument_class", propagate=True)
def _give_columns(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Put the columns on the table before the mapper looks at it, and keep them out of the class.

    Raises:
        ConfigurationError: rows of the class cannot have leases.
    """
    policy = cls.__lease_policy__
    if not isinstance(policy, LeasePolicy):
        raise ConfigurationError(
            f"{cls.__name__}.__lease_policy__ is {policy!r}: write LeasePolicy(longest=300)."
        )
    token, _ = tokens_of(cls)
    if token is not None and token.every_write:
        raise ConfigurationError(
            f"{cls.__name__} is Leasable, but a {type(token).__name__} is moved by every UPDATE of"
            " the row, so a lease would change its version and its ETag. Use Counter(), Unique() or"
            " Timestamp()."
        )
    table = mapper.local_table
    parent = mapper.inherits
    if parent is not None and not mapper.concrete:
        _inherit(mapper, cls, parent, policy)
    elif not isinstance(table, Table):
        raise ConfigurationError(
            f"{cls.__name__} is Leasable, but is mapped to a SELECT: map the table itself."
        )
    elif columns_in(table) is None:
        taken = names_taken(table.columns.keys())
        if taken:
            raise ConfigurationError(
                f"{cls.__name__} is Leasable, and its table {table.name} has a column {taken[0]!r}"
                " of its own, which would be the lease's: give that column another name."
            )
        for column in new_columns():
            table.append_column(column)
        take(table, policy)
    demand_always(UNDER_LEASES)
    leave_out(mapper, [column for column in _of(mapper).columns if names_taken([column.key])])


def _inherit(mapper: Mapper[Any], cls: type[Any], parent: Mapper[Any], policy: LeasePolicy) -> None:
    above = columns_in(_of(mapper))
    if above is None:
        raise ConfigurationError(
            f"{cls.__name__} is Leasable, and {parent.class_.__name__} is not: put the mixin on"
            f" {mapper.base_mapper.class_.__name__}, whose row stands for the whole."
        )
    if policy is not above.policy:
        raise ConfigurationError(
            f"{cls.__name__} has a __lease_policy__ beside the one that it inherits: a row has one"
            f" lease, so say it on {mapper.base_mapper.class_.__name__} only."
        )


def _of(mapper: Mapper[Any]) -> Any:
    """The table whose row stands for the whole."""
    return mapper.local_table if mapper.concrete else mapper.base_mapper.local_table
