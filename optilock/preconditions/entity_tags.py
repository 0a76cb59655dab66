"""The ETag of a row: strong, opaque, of this row alone; its version can be read from it.

::

    etag_of(page)                               # '"gM0kXw2f.3"'

    tags = ETags(keys=[new_key, old_key], tenant="acme")
    tags.of(page)                               # '"Zx81…22 characters.3"'
    tags.versions(Page, 7, asked.versions)      # (3,): what the WHERE of the UPDATE compares

The text before the point identifies the row, the text after it is the version. Plain tags have a
short digest of tenant, table and key, so that the tag of one row never passes for that of another.
Anyone can compute it: it stops mistakes and no attack. Signed tags have an HMAC (SHA-256, 128 bits)
of tenant, table, key and version instead, so that a client can name only versions that it has
read. The first key signs, and all keys verify. To change a key, add the new one at the end
everywhere, move it to the front, and remove the old one when its tags are old enough. Tags are
compared in constant time.

The text changes with every write of the row and with nothing else, so it is a strong validator (RFC
9110 section 8.8.1). A new signing key changes it too, which costs a client one more reading. The
tag is that of the *loaded* version, to which the object's values belong, and not of a newer stored
one. An object with edits that are not flushed has none, because its next version is not known.

Only :class:`~optilock.tokens.unique.Unique` promises that a row which is deleted and inserted again
under the same key never repeats a tag. ``Counter`` and ``RowVersion`` begin at 1 again, and their
tags show how often a row was written. A ``Timestamp`` can repeat if the clock is set back. A row
that the very same request inserts again, with ``idempotency=``, has the same tag and values.

A tag that no row of the class can have names no version: a tag of another row, table, tenant or
key, a text that is no version of the class, a number that its column cannot hold. It matches
nothing (412), and no driver ever sees it. Any other text is ``BadPrecondition`` (400).

* **A class in a hierarchy**: a row has one tag, whichever class it was read as.
* **An aggregate** (``__version_root_of__``): the tag of the root is that of the whole, because its
  version moves with every part. While a changed, new or deleted part waits for the flush, the root
  has no tag. A changed part whose root is not in memory counts as a part of each root.
* **A list** has the tag of its scope, ``etag_of(session, Booking.scope(room_id=7))``: it changes
  with every insert, delete and change of a row of the scope. Take it *before* the rows are read.
* **A part of a row** is sent with the row's tag. The tag changes more often than the part, so a 412
  may be unnecessary, but none is missing. Columns of ``__version_ignore__`` are not covered. A part
  that must not conflict with the other columns needs a row of its own.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from types import NoneType
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection, Session

from optilock._columns.identities import identity_given, identity_in
from optilock._columns.texts import key_text, text_of, version_in
from optilock._mapped import HINT_ADD_TOKEN, Identity, State, facts, identity_of
from optilock._mapping.original_values import edit_that_counts
from optilock._mapping.scopes import Scope
from optilock._undocumented.flushes import states_marked_deleted
from optilock._watched.aggregates import unflushed_part
from optilock._watched.rows.roots import LOADED_OR_PENDING
from optilock._watched.rows.touch import is_touched
from optilock._watched.scopes.transaction import ScopeVersion, version_of_scope
from optilock._watched.session.record import keeps_version
from optilock.conditions.request import STAR, tags
from optilock.errors import BadPrecondition, ConfigurationError, Entry, describe
from optilock.tables.names import scopes

__all__ = [
    "PLAIN",
    "ETags",
    "RowTags",
    "ScopeTags",
    "etag_of",
    "refuse_null_version",
    "secret_keys",
    "sent_tags",
    "state_of",
]

_SHORTEST = 16
_LABEL = b"optilock.etag"
_TEXT = b"optilock.seen"
_NOT_LOADED = object()
_STALE = (
    "so its ETag would be that of before the write, and the next request with it would be refused:"
    " call session.flush() first. Take the ETag of the values that were read before you edit them."
)


def secret_keys(call: str, keys: Iterable[str | bytes]) -> tuple[bytes, ...]:
    """Return the keys of a server as bytes; ``call`` is the function that was given them.

    Raises:
        ConfigurationError: a key is too short, or neither text nor bytes.
    """
    given = (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)
    if not all(isinstance(key, (str, bytes)) and len(key) >= _SHORTEST for key in given):
        raise ConfigurationError(
            f"{call}(keys=...): a key is text or bytes, at least {_SHORTEST} of them:"
            " secrets.token_bytes(32) makes one."
        )
    return tuple(key.encode() if isinstance(key, str) else key for key in given)


@dataclass(frozen=True)
class ETags:
    """How the tags of rows are made and read.

    Args:
        keys: signing keys of 16 bytes or more, text or bytes; the first signs, all verify. Without
            one the tags are plain.
        tenant: the owner of the rows, if several owners have tables of the same names.

    Raises:
        ConfigurationError: a key is too short, or neither text nor bytes.
    """

    keys: Iterable[str | bytes] = field(default=(), repr=False)
    tenant: str = ""

    def __post_init__(self) -> None:
        keys = secret_keys("ETags", self.keys)
        if not isinstance(self.tenant, str):
            raise ConfigurationError(f"ETags(tenant={self.tenant!r}): the tenant is a text.")
        object.__setattr__(self, "keys", keys)

    def of(self, obj: object, scope: Scope | None = None) -> str:
        """Return the strong ETag of a loaded row, quotes included; or of a scope (one SELECT).

        Raises ``ConfigurationError`` without a version, as :func:`optilock.etag_of` does.
        """
        if scope is not None:
            return self.of_scope(scope).tag(version_of_scope(obj, scope))
        made = self.of_values_read(obj)
        _refuse_edited(state_of(obj, "etag_of"))
        return made

    def of_values_read(self, obj: object) -> str:
        """Return the tag of the values that were read, also where they were edited since."""
        state = state_of(obj, "etag_of")
        return self.tag(state.mapper, _stored_identity(state), _version(state))

    def tag(self, mapper: Mapper[Any], identity: Identity, version: Any) -> str:
        """Return the tag of the row of this key in this version."""
        return self.of_row(mapper, identity).tag(version)

    def versions(self, model: type[Any], key: Any, given: object) -> tuple[Any, ...]:
        """Return the versions of this row that tags name, for the WHERE of an UPDATE or DELETE.

        Args:
            model: the mapped class.
            key: the primary key, as ``session.get()`` takes it.
            given: the tags as :func:`optilock.preconditions.rfc9110.required` has them, the text of
                an ``If-Match``, or the tags that werkzeug has parsed.

        Raises:
            BadPrecondition: these are no tags, or they name no version (``*``).
            ConfigurationError: ``model`` has no version, or ``key`` is none of its keys.
            NotFound: no row can have the key (:mod:`optilock._columns.identities`).
        """
        mapper = inspect(model, raiseerr=False)
        if not isinstance(mapper, Mapper) or not facts(mapper).token:
            raise ConfigurationError(
                f"ETags.versions() takes a mapped class with a version, not {model!r}:"
                f" {HINT_ADD_TOKEN}."
            )
        identity = identity_given("ETags.versions", mapper, key)
        return self.of_row(mapper, identity).named(sent_tags(mapper.class_.__name__, given))

    def of_scope(self, scope: Scope) -> ScopeTags:
        """Return the tags of a scope."""
        return ScopeTags(self, inspect(scope.model), scope.values, scope)

    def of_row(self, mapper: Mapper[Any], identity: Identity) -> RowTags:
        """Return the tags of one row, for several uses: its digest is computed once."""
        return RowTags(self, mapper, identity)


@dataclass(frozen=True)
class RowTags:
    """The tags of one row, and other signed texts about it."""

    etags: ETags
    mapper: Mapper[Any]
    identity: Identity

    @cached_property
    def row(self) -> bytes:
        """Tenant, table and key, each with its length, so that no two rows have the same bytes."""
        name = self.mapper.class_.__name__
        table = facts(self.mapper).table_if_any
        of_table = _of_table(self.etags.tenant, name if table is None else table.fullname)
        parts = [key_text(value, name) for value in self.identity]
        return of_table + b"".join(map(_counted, parts))

    @cached_property
    def _digest(self) -> str:
        """The seal of all plain tags of the row."""
        return _shown(blake2b(self.row, digest_size=6, person=_LABEL).digest())

    def tag(self, version: Any) -> str:
        """Return the tag of the row in this version."""
        text = self._text_of(version)
        seal = next(self._seals(text)) if self.etags.keys else self._digest
        return f'"{seal}.{text}"'

    def _text_of(self, version: Any) -> str:
        return text_of(version, self.mapper.class_.__name__)

    def named(self, sent: Iterable[str]) -> tuple[Any, ...]:
        """Return the versions of the row that these tags name, quotes included."""
        kind = facts(self.mapper).version.type
        found = []
        for one in sent:
            seal, _, text = one[1:-1].partition(".")
            version = version_in(text, kind) if self._is_ours(seal, text) else None
            if version is not None:
                found.append(version)
        return tuple(found)

    def sign(self, text: str) -> str:
        """Return a text for the client, signed for the row; the tags must have ``keys``."""
        return f"{next(self._seals(text, _TEXT))}.{text}"

    def signed(self, sent: str) -> str | None:
        """Return the text that was signed for the row; ``None`` if it was not."""
        seal, _, text = sent.partition(".")
        return text if self.etags.keys and self._is_ours(seal, text, _TEXT) else None

    def _is_ours(self, seal: str, text: str, label: bytes = _LABEL) -> bool:
        """Try every key, so that the time shows nothing."""
        sent, found = seal.encode("latin-1", "replace"), False
        for own in self._seals(text, label):
            found |= hmac.compare_digest(sent, own.encode())
        return found

    def _seals(self, text: str, label: bytes = _LABEL) -> Iterator[str]:
        """Yield the text before the point, by each key."""
        if not self.etags.keys:
            yield self._digest
        for key in self.etags.keys:
            signed = b"%b\0%b%b" % (label, self.row, _counted(text))
            yield _shown(hmac.digest(key, signed, "sha256")[:16])  # type: ignore[arg-type]


@dataclass(frozen=True)
class ScopeTags(RowTags):
    """The tags of one scope, and other signed texts about it."""

    scope: Scope

    @cached_property
    def row(self) -> bytes:
        parts = (self.etags.tenant, scopes.name, self.scope.key)
        return b"".join(map(_counted, parts))

    def _text_of(self, version: Any) -> str:
        return str(version)

    def named(self, sent: Iterable[str]) -> tuple[ScopeVersion, ...]:
        """Return the versions of the scope that these tags name, quotes included."""
        found = []
        for one in sent:
            seal, _, text = one[1:-1].partition(".")
            parts = text.split("-")
            if self._is_ours(seal, text) and len(parts) == 2 and all(map(_is_number, parts)):
                found.append(ScopeVersion(*map(int, parts)))
        return tuple(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and str(int(text)) == text


def _counted(part: str) -> bytes:
    data = part.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(data), data)


@lru_cache(1_000)
def _of_table(tenant: str, table: str) -> bytes:
    return _counted(tenant) + _counted(table)


def _shown(digest: bytes) -> str:
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


#: Tags without keys and tenant, as ``etag_of``, ``expect`` and ``apply`` use them.
PLAIN = ETags()


def etag_of(obj: object, scope: Scope | None = None) -> str:
    """Return the strong ETag of a loaded row, quotes included. Sends no SQL.

    ``etag_of(session, scope)`` is that of a scope, and sends one SELECT. Call it before you read
    the rows: a tag that is older than the rows costs a client one more request, and one that is
    newer would hide a change.

    With ``Counter`` and ``RowVersion`` a row that is deleted and inserted again may repeat a tag;
    with ``Unique`` it never does.

    Raises:
        ConfigurationError: there is no loaded version: the object is not stored yet or is deleted,
            a commit has expired the version (the session has ``expire_on_commit=True``), it is
            NULL, or the class has none. Or the object, or one of its aggregate's parts, has edits
            that are not flushed: the next version is not known, and the one before is that of other
            values. Or the session has changed rows of the scope, whose next version is known only
            after COMMIT.
    """
    return PLAIN.of(obj, scope)


# -- an object -------------------------------------------------------------------------------------


def state_of(obj: object, call: str) -> State:
    """Return the state of a mapped object; ``call`` is the function that was given it."""
    state = inspect(obj, raiseerr=False)
    if isinstance(state, InstanceState):
        return state
    raise ConfigurationError(
        f"{call}() takes an object of a mapped class that a session has loaded, not"
        f" {describe(obj)}."
    )


def _stored_identity(state: State) -> Identity:
    key, name = facts(state.mapper).token, state.class_.__name__
    if not key:
        raise ConfigurationError(
            f"{name} has no version, so there is nothing to make an ETag of: {HINT_ADD_TOKEN}."
        )
    if state.was_deleted:
        raise ConfigurationError(f"This {name} is deleted: a row that is gone has no ETag.")
    if not state.has_identity:
        raise ConfigurationError(
            f"This {name} is not stored yet, so it has no version: flush the session first."
        )
    return identity_of(state)


def _refuse_edited(state: State) -> None:
    """Refuse an object whose edits its session has not flushed, and which move the version.

    An answer with the new values and the tag of before would make the client's next request stale.
    """
    session = state.session
    if session is None:
        return
    name = state.class_.__name__
    if is_touched(state):
        raise ConfigurationError(
            f"This {name} was touched, and its version moves with the next flush: call"
            " session.flush() first."
        )
    if state in states_marked_deleted(session):
        raise ConfigurationError(
            f"This {name} is to be deleted by the next flush: a row that is gone has no ETag."
        )
    if keeps_version(session, state.obj()):
        return
    key = edit_that_counts(state) or _foreign_key_set_by_parent(session, state)
    if key is not None:
        raise ConfigurationError(f"This {name} has an edit that is not flushed ({key}), {_STALE}")
    part = unflushed_part(state)
    if part is not None:
        raise ConfigurationError(
            f"The version of this {name} moves with its parts, and a change of a"
            f" {type(part).__name__} is not flushed, {_STALE}"
        )


def _foreign_key_set_by_parent(session: Session, state: State) -> str | None:
    """Return the collection of another object that takes the object in, or lets it go."""
    obj = state.obj()
    for parent in (*session.new, *session.dirty):
        for one in inspect(parent).mapper.relationships:
            if (
                one.direction is RelationshipDirection.ONETOMANY
                and not one.viewonly
                and not one.remote_side <= facts(state.mapper).ignored
                and state.mapper.isa(one.mapper)
            ):
                history = inspect(parent).get_history(one.key, LOADED_OR_PENDING)
                if any(child is obj for child in (*history.added, *history.deleted)):
                    return f"{type(parent).__name__}.{one.key}"
    return None


def _version(state: State) -> Any:
    """Return the loaded version, even if it was overwritten in memory."""
    key, name = facts(state.mapper).token, state.class_.__name__
    version = state.committed_state.get(key, state.dict.get(key, _NOT_LOADED))
    if version is _NOT_LOADED:
        raise ConfigurationError(
            f"The version of this {name} is not loaded: a commit has expired it, or it was"
            " deferred. Take the ETag before the commit, call session.refresh(), or create the"
            " sessions with expire_on_commit=False."
        )
    return refuse_null_version(version, name)


def refuse_null_version(version: Any, name: str) -> Any:
    """Return the version of a row of the class ``name``; refuse NULL."""
    if version is None:
        raise ConfigurationError(
            f"The version of this {name} is NULL, and NULL is not a version: give the row one with"
            " an UPDATE, and declare the column NOT NULL."
        )
    return version


# -- what was sent ---------------------------------------------------------------------------------


def sent_tags(name: str, given: Any) -> tuple[str, ...]:
    """Return the strong tags that a client sent for a row of the class ``name``, with quotes.

    Weak tags never match (RFC 9110 section 13.1.1), so they are left out.

    Raises:
        BadPrecondition: there are no tags, ``*`` was sent, or the text is no list of tags.
    """
    if hasattr(given, "to_header"):  # werkzeug.datastructures.ETags
        given = given.to_header() or None
    if given == ():
        return ()
    text = ", ".join(map(str, given)) if isinstance(given, (tuple, list)) else given
    if not isinstance(text, (str, NoneType)):
        raise BadPrecondition(f"The version of {name} is not the text of an ETag: quotes included.")
    found = STAR if text is None else tags(f"The version of {name}", text)
    if found == STAR:
        what = "* names no version" if text else "No version was named"
        raise BadPrecondition(
            f"{what} of {name}: send the ETag that you have read, in If-Match, or wherever this"
            " application takes it (RFC 6585 section 3).",
            428,
        )
    return tuple(tag.opaque for tag in found if not tag.weak)


def tag_of_entry(entry: Entry[Any], etags: ETags = PLAIN) -> str | None:
    """Return the tag of the stored row of an entry; ``None`` if there is none."""
    if entry.database is None or entry.token is None:
        return None
    version = entry.database.get(entry.token)
    mapper: Mapper[Any] = inspect(entry.model)
    identity = identity_in(mapper, entry.identity, entry.database)
    return None if version is None else etags.tag(mapper, identity, version)
