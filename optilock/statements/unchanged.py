"""``unchanged``: the WHERE of a statement that is meant for rows as they were read.

::

    session.execute(update(Account).where(unchanged(account)).values(balance=0))
    session.execute(delete(Draft).where(unchanged(*drafts)))

It is true of a row while its key and its version are those of a loaded object. The number of rows
that the statement matched tells whether all were: ``result.rowcount``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, inspect, or_
from sqlalchemy.orm import InstanceState

from optilock.errors import ConfigurationError, described
from optilock.mapped import GIVE_ONE, facts

__all__ = ["unchanged"]


def unchanged(*objects: object) -> ColumnElement[bool]:
    """A condition that holds for the rows of ``objects`` in the versions that were loaded.

    Raises:
        ConfigurationError: no object; one that is not loaded, or has no version.
    """
    if not objects:
        raise ConfigurationError(
            "unchanged() got no object: a statement without a condition writes every row."
        )
    return or_(*map(_as_loaded, objects))


def _as_loaded(obj: Any) -> ColumnElement[bool]:
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState) or state.key is None:
        raise ConfigurationError(
            f"unchanged() takes objects that a session has loaded, and got {described(obj)} that is"
            " not stored yet, or not mapped."
        )
    mapper = state.mapper
    token = facts(mapper).token
    if not token:
        raise ConfigurationError(f"{mapper.class_.__name__} has no version to compare: {GIVE_ONE}.")
    version = state.committed_state.get(token, state.dict.get(token))
    if version is None:
        raise ConfigurationError(
            f"The version of this {mapper.class_.__name__} is not loaded: a commit has expired it."
            " Call session.refresh(), or create the sessions with expire_on_commit=False."
        )
    keys = [
        getattr(mapper.class_, name) == value
        for name, value in zip(facts(mapper).keys, state.key[1], strict=True)
    ]
    return and_(*keys, getattr(mapper.class_, token) == version)
