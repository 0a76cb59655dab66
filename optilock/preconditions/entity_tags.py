"""The ETag of a row: strong, opaque, of this row alone, and its version can be read from it.

::

    etag_of(page)                               # '"gM0kXw2f.3"'

    tags = ETags(keys=[new_key, old_key], tenant="acme")
    tags.of(page)                               # '"Zx81…22 characters.3"'
    tags.versions(Page, 7, asked.versions)      # (3,): what the WHERE of the UPDATE compares

Before the point stands which row it is, after it the version. Plain tags have a short digest of
tenant, table and key, so that the tag of one row never passes for that of another. Anybody can work
it out: it stops mistakes and no attack. Signed ones have an HMAC (SHA-256, 128 bits of it) of
tenant, table, key and version instead: who has not read this version of this row cannot name it.
The first key signs, and all of them verify, so a key is changed in three steps: add the new one at
the end everywhere, make it the first, take the old one away when its tags are old enough. Tags are
compared in constant time.

The text changes with every write of the row and with nothing else, so it is a strong validator (RFC
9110 section 8.8.1); a new signing key changes it as well, which costs a client one more reading. It
is that of the version *loaded*: what the object's values belong to, not what may be stored by now.
Edits that are not flushed do not change it.

Only :class:`~optilock.tokens.unique.Unique` promises that a row which is deleted and made again
under the same key never repeats a tag. ``Counter`` and ``RowVersion`` begin at 1 again, and their
tags tell how often a row was written; a ``Timestamp`` can repeat where the clock is set back. A row
that is made again by the very same request, with ``idempotency=``, has the same tag and values.

A tag that no row of the class can have names no version: one of another row, table, tenant or key,
a text that is no version of the class, a number that its column cannot hold. It matches nothing
(412), and no driver ever sees it. What is no tag at all is ``BadPrecondition`` (400).

* **A class in a hierarchy**: a row has one tag, whichever class it was read as.
* **An aggregate** (``__version_root_of__``): the tag of the root is that of the whole, because its
  version moves with every part.
* **A part of a row**: the row's tag is sent with that, too. It changes more often than the part, so
  there may be a 412 too many, and never one too few; columns of ``__version_ignore__`` are not
  covered. What must not meet the other columns' writers needs a row of its own.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from types import NoneType
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper

from optilock.columns.identities import identity_given
from optilock.columns.texts import key_text, text_of, version_in
from optilock.conditions.fields import STAR, tags
from optilock.errors import BadPrecondition, ConfigurationError, described
from optilock.mapped import GIVE_ONE, Identity, State, facts, identity_of

__all__ = ["PLAIN", "ETags", "not_null", "secret_keys", "sent_tags", "state_of"]

# -- secret keys -----------------------------------------------------------------------------------

_SHORTEST = 16


def secret_keys(call: str, keys: Iterable[str | bytes]) -> tuple[bytes, ...]:
    """The keys that ``call`` was given, as bytes.

    Raises:
        ConfigurationError: a key is too short, or something else.
    """
    given = (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)
    if not all(isinstance(key, (str, bytes)) and len(key) >= _SHORTEST for key in given):
        raise ConfigurationError(
            f"{call}(keys=...): a key is text or bytes, at least {_SHORTEST} of them:"
            " secrets.token_bytes(32) makes one."
        )
    return tuple(key.encode() if isinstance(key, str) else key for key in given)


_LABEL = b"optilock.etag"
_TEXT = b"optilock.seen"
_NOT_LOADED = object()


@dataclass(frozen=True)
class ETags:
    """How the tags of rows are made and read.

    Args:
        keys: signing keys of 16 bytes or more, text or bytes; the first signs, all verify. Without
            one the tags are plain.
        tenant: whose rows these are, where several have tables of the same names.

    Raises:
        ConfigurationError: a key is too short, or something else.
    """

    keys: Iterable[str | bytes] = field(default=(), repr=False)
    tenant: str = ""

    def __post_init__(self) -> None:
        keys = secret_keys("ETags", self.keys)
        if not isinstance(self.tenant, str):
            raise ConfigurationError(f"ETags(tenant={self.tenant!r}): the tenant is a text.")
        object.__setattr__(self, "keys", keys)

    def of(self, obj: object) -> str:
        """The strong ETag of a loaded row, quotes included. Sends no SQL.

        Raises ``ConfigurationError`` where there is no version to tell: see
        :func:`optilock.etag_of`.
        """
        state = state_of(obj, "etag_of")
        return self.tag(state.mapper, _stored_identity(state), _version(state))

    def tag(self, mapper: Mapper[Any], identity: Identity, version: Any) -> str:
        """The tag of the row of this key in this version."""
        row, text = self.row(mapper, identity), text_of(version, mapper.class_.__name__)
        return f'"{next(self._seals(row, text))}.{text}"'

    def versions(self, model: type[Any], key: Any, given: object) -> tuple[Any, ...]:
        """The versions that tags name of this row, for the WHERE of its UPDATE or DELETE.

        Args:
            model: the mapped class.
            key: the primary key, as ``session.get()`` takes it.
            given: the tags as :func:`optilock.preconditions.rfc9110.required` has them, the text of
                an ``If-Match``, or what werkzeug has made of it.

        Raises:
            BadPrecondition: these are no tags; or they name no version, as ``*`` does not.
            ConfigurationError: ``model`` has no version, or ``key`` is none of its keys.
            NotFound: no row can have the key (:mod:`optilock.columns.identities`).
        """
        mapper = inspect(model, raiseerr=False)
        if not isinstance(mapper, Mapper) or not facts(mapper).token:
            raise ConfigurationError(
                f"ETags.versions() takes a mapped class with a version, not {model!r}: {GIVE_ONE}."
            )
        identity = identity_given("ETags.versions", mapper, key)
        return self.named(mapper, identity, sent_tags(mapper.class_.__name__, given))

    def named(
        self, mapper: Mapper[Any], identity: Identity, sent: Iterable[str]
    ) -> tuple[Any, ...]:
        """The versions of the row of this key that these tags name, quotes included."""
        row, kind = self.row(mapper, identity), facts(mapper).version.type
        found = []
        for one in sent:
            seal, _, text = one[1:-1].partition(".")
            version = version_in(text, kind) if self._is_ours(seal, row, text) else None
            if version is not None:
                found.append(version)
        return tuple(found)

    def sign(self, mapper: Mapper[Any], identity: Identity, text: str) -> str:
        """A text for the client, signed for the row of this key; it needs ``keys``."""
        return f"{next(self._seals(self.row(mapper, identity), text, _TEXT))}.{text}"

    def signed(self, mapper: Mapper[Any], identity: Identity, sent: str) -> str | None:
        """The text that was signed for the row of this key; ``None``: it was not."""
        seal, _, text = sent.partition(".")
        ours = bool(self.keys) and self._is_ours(seal, self.row(mapper, identity), text, _TEXT)
        return text if ours else None

    def _is_ours(self, seal: str, row: bytes, text: str, label: bytes = _LABEL) -> bool:
        """Every key is tried, so that the time tells nothing."""
        sent, found = seal.encode("latin-1", "replace"), False
        for own in self._seals(row, text, label):
            found |= hmac.compare_digest(sent, own.encode())
        return found

    def _seals(self, row: bytes, text: str, label: bytes = _LABEL) -> Iterator[str]:
        """What stands before the point, by each key."""
        if not self.keys:
            yield _shown(blake2b(row, digest_size=6, person=_LABEL).digest())
        for key in self.keys:
            signed = b"%b\0%b%b" % (label, row, _counted(text))
            yield _shown(hmac.digest(key, signed, "sha256")[:16])  # type: ignore[arg-type]

    def row(self, mapper: Mapper[Any], identity: Identity) -> bytes:
        """Tenant, table and key: each with its length, so that no two rows are one."""
        name = mapper.class_.__name__
        table = facts(mapper).table_if_any
        parts = [self.tenant, name if table is None else table.fullname]
        parts += [key_text(value, name) for value in identity]
        return b"".join(map(_counted, parts))


def _counted(part: str) -> bytes:
    data = part.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(data), data)


def _shown(digest: bytes) -> str:
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


#: Without keys and tenant: what ``etag_of``, ``expect`` and ``apply`` use.
PLAIN = ETags()


# -- an object -------------------------------------------------------------------------------------


def state_of(obj: object, call: str) -> State:
    """The state of a mapped object, which the function ``call`` was given."""
    state = inspect(obj, raiseerr=False)
    if isinstance(state, InstanceState):
        return state
    raise ConfigurationError(
        f"{call}() takes an object of a mapped class that a session has loaded, not"
        f" {described(obj)}."
    )


def _stored_identity(state: State) -> Identity:
    key, name = facts(state.mapper).token, state.class_.__name__
    if not key:
        raise ConfigurationError(
            f"{name} has no version, so there is nothing to make an ETag of: {GIVE_ONE}."
        )
    if state.was_deleted:
        raise ConfigurationError(f"This {name} is deleted: a row that is gone has no ETag.")
    if not state.has_identity:
        raise ConfigurationError(
            f"This {name} is not stored yet, so it has no version: flush the session first."
        )
    return identity_of(state)


def _version(state: State) -> Any:
    """What was loaded, also if something has been written over it in memory."""
    key, name = facts(state.mapper).token, state.class_.__name__
    version = state.committed_state.get(key, state.dict.get(key, _NOT_LOADED))
    if version is _NOT_LOADED:
        raise ConfigurationError(
            f"The version of this {name} is not loaded: a commit has expired it, or it was"
            " deferred. Take the ETag before the commit, call session.refresh(), or create the"
            " sessions with expire_on_commit=False."
        )
    return not_null(version, name)


def not_null(version: Any, name: str) -> Any:
    """The version of a row of the class ``name``, if it is one."""
    if version is None:
        raise ConfigurationError(
            f"The version of this {name} is NULL, and NULL is not a version: give the row one with"
            " an UPDATE, and declare the column NOT NULL."
        )
    return version


# -- what was sent ---------------------------------------------------------------------------------


def sent_tags(name: str, given: Any) -> tuple[str, ...]:
    """The strong tags that a client has sent for a row of the class ``name``, quotes included.

    Weak ones never match (RFC 9110 section 13.1.1), so they are none of them.

    Raises:
        BadPrecondition: there are none, ``*`` names no version, or it is no list of tags.
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
