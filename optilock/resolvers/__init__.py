"""Resolvers and merges: how a conflict is settled. Values in, values out, without a session.

::

    from optilock.resolvers import merge_fields, merge_text, per_field

    unit_of_work(SessionLocal, on_conflict=merge_fields)
    unit_of_work(SessionLocal, on_conflict={Page: per_field(body=merge_text)})

:mod:`~optilock.resolvers.rules` has the resolvers, which decide about a row. A decision is a
:mod:`~optilock.resolvers.resolution`, as is the policy of a DELETE for a row that another
transaction has changed or deleted. :mod:`~optilock.resolvers.merge` joins two edits of one value;
for text it uses :mod:`~optilock.resolvers.diff3`. :mod:`~optilock.resolvers.open_text` leaves
places that both sides changed to a person. :mod:`~optilock.resolvers.column_groups` has the columns
that conflict as one.
"""

from optilock.resolvers.merge import add_delta, merge_json, merge_set, merge_text
from optilock.resolvers.resolution import (
    DeletePolicies,
    OnConflict,
    OnDelete,
    Resolution,
    Resolver,
)
from optilock.resolvers.rules import (
    PerField,
    client_wins,
    merge_fields,
    per_field,
    reject,
    store_wins,
)

__all__ = [
    "DeletePolicies",
    "OnConflict",
    "OnDelete",
    "PerField",
    "Resolution",
    "Resolver",
    "add_delta",
    "client_wins",
    "merge_fields",
    "merge_json",
    "merge_set",
    "merge_text",
    "per_field",
    "reject",
    "store_wins",
]
