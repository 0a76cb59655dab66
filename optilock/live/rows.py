"""The state of a row: its version, and the author and the time of its last change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session

from optilock._columns.identities import identity_given
from optilock._mapped import HINT_ADD_TOKEN, Identity, facts, identity_of
from optilock.dialects import database_of
from optilock.errors import ConfigurationError, NotFound
from optilock.preconditions.entity_tags import RowTags
from optilock.serialize import as_json

Authorize = Callable[[Any], object] | None


@dataclass(frozen=True)
class RowState:
    """A row as it is stored."""

    identity: Identity
    version: Any = None
    by: Any = None
    at: Any = None
    deleted: bool = False
    #: The attributes that are known to be changed; ``None``: others are, too.
    fields: frozenset[str] | None = None

    def tag(self, tags: RowTags) -> str | None:
        return None if self.version is None else tags.tag(self.version)

    def as_dict(self, tags: RowTags) -> dict[str, Any]:
        """Return the data of an event, for ``json.dumps``."""
        return {
            "tag": self.tag(tags),
            "by": as_json(self.by),
            "at": as_json(self.at),
            "fields": sorted(self.fields or ()) or None,
            "deleted": self.deleted,
        }


def read_allowed(session: Session, model: type[Any], key: Any, authorize: Authorize) -> RowState:
    """Return the row if it may be read.

    Raises:
        NotFound: there is no such row, or ``authorize`` refuses it.
        ConfigurationError: the class has no version, or ``authorize`` has to be awaited.
    """
    mapper = sa.inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper) or not facts(mapper).token:
        raise ConfigurationError(
            f"Changes takes a mapped class with a version, not {model!r}: {HINT_ADD_TOKEN}."
        )
    identity = identity_given("Changes.stream", mapper, key)
    found = session.get(model, identity)
    allowed = found is not None and (authorize is None or authorize(found))
    if isawaitable(allowed):
        getattr(allowed, "close", lambda: None)()
        raise ConfigurationError(
            "authorize= is called and not awaited, because it runs inside the session of the row:"
            " write it as a plain function of the row."
        )
    if not allowed:
        raise NotFound(model, identity)
    values = {name: getattr(found, name) for name in _names(mapper) if name}
    return _state_of(mapper, identity_of(sa.inspect(found)), values)


def is_notified(session: Session, mapper: Mapper[Any]) -> bool:
    """Return whether changes of the class's rows are notified."""
    connection = session.connection(bind_arguments={"mapper": mapper})
    notices = database_of(connection.dialect).change_notices(connection.dialect)
    return notices.notifies(connection, facts(mapper).table)


def read(
    session: Session, mapper: Mapper[Any], identities: Sequence[Identity]
) -> dict[Identity, RowState]:
    """Return the rows of these keys that there are."""
    known = facts(mapper)
    keys: list[Any] = [getattr(mapper.class_, name) for name in known.keys]
    names = [name for name in _names(mapper) if name]
    columns = dict.fromkeys((*known.keys, *names))
    asked = sa.select(*(getattr(mapper.class_, name) for name in columns))
    database = database_of(session.get_bind(mapper).dialect)
    size = database.keys.keys_at_once(len(keys))
    found = {}
    for start in range(0, len(identities), size):
        some = database.keys.at_keys(keys, identities[start : start + size])
        for row in session.execute(asked.where(some)):
            values = dict(zip(columns, row, strict=True))
            identity = tuple(values[name] for name in known.keys)
            found[identity] = _state_of(mapper, identity, values)
    return found


def _state_of(mapper: Mapper[Any], identity: Identity, values: dict[str, Any]) -> RowState:
    version, by, at = (values.get(name) for name in _names(mapper))
    return RowState(identity, version, by, at)


def _names(mapper: Mapper[Any]) -> tuple[str, str, str]:
    """Return the attributes of version, author and time; an empty text for one that is missing."""
    options = ("__version_author__", "__version_time__")
    author, time = (getattr(mapper.class_, option, None) or "" for option in options)
    return facts(mapper).token, author, time
