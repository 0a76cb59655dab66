"""Requests that are sent again after their answer was lost count once.

::

    again = Idempotency(request.headers.get("Idempotency-Key"), keys=SECRETS, principal=user.id)
    stored = merge(session, Page, 7, {"title": "Home"}, if_match=tag, idempotency=again)
    stored.again                       # True: an earlier sending has written it, this one nothing

The client makes an ``Idempotency-Key`` for each request, and sends it again with the request
(draft-ietf-httpapi-idempotency-key-header). The row's new version is made from it, not at random:
an HMAC of the row, the demanded versions, the operation, the body, the principal and that key,
under a secret of the server. The write of a repeated request misses, because the row is in its next
version. The SELECT that follows a miss finds the very version that this request makes, so this
request wrote the row. No table and no further statement is needed.

Without the secret such a version looks random. A request with another body or another principal
makes another version, and is answered as without the header: 412. The same holds after another
writer has changed the row: the version is no longer there.

* Only ``Unique`` versions can be made so; other classes are refused.
* After a rotation the old secrets still recognise requests, as long as they are in the list.
* Under ``if_match="*"`` the last writer wins, and the version is random. A version made without the
  previous one would come back with each sending, over another writer's edit as well.
* ``insert`` demands that there is no row. If the client gives no key, the key is made from the
  ``Idempotency-Key`` too (:meth:`Idempotency.key_for`): the same POST stores the same row.
* A deleted row has no version: a DELETE that is sent again is ``NotFound``.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from hashlib import sha256
from types import NoneType
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.orm import Mapper

from optilock._columns.identities import identity_of_new_row
from optilock._columns.texts import key_text, text_of
from optilock._mapped import Identity, facts
from optilock.entities.bodies import mapper_of, sets_ignored_only
from optilock.errors import BadEntity, BadPrecondition, ConfigurationError, describe
from optilock.preconditions.entity_tags import ETags, RowTags, secret_keys
from optilock.serialize import DEEPEST, is_too_deep

_LONGEST = 255
# A String of RFC 9651, section 3.3.3; or the same without quotes, as many clients send it.
_STRING = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])++)"')
_BARE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]++")
_VERSION, _KEY = b"optilock.idempotency.version\0", b"optilock.idempotency.key\0"


@dataclass(frozen=True)
class Idempotency:
    """The client's key of a request, and the secrets that recognise the request later.

    Args:
        header: the value of the field ``Idempotency-Key``; ``None`` if the client sent none: then
            no request is recognised, and versions are random.
        keys: secrets of the server, of 16 bytes or more, text or bytes; the first makes versions,
            all recognise them. To change one, add the new one at the end everywhere, move it to
            the front, and remove the old one when no client repeats a request of that time.
        principal: the sender as the server knows it: a user's id, not a name that the client gives.
        batch: a digest of all operations of :func:`~optilock.entities.transaction`.

    Raises:
        BadPrecondition: the header is not a String of RFC 9651, of 1 to 255 characters (400).
        ConfigurationError: there is no secret, or one is too short; or there is no principal.
    """

    header: str | None
    keys: Iterable[str | bytes] = field(kw_only=True, repr=False)
    principal: str = field(kw_only=True)
    batch: bytes = field(default=b"", kw_only=True, repr=False)
    #: What the client has sent, without its quotes.
    key: str | None = field(init=False)

    def __post_init__(self) -> None:
        keys = secret_keys("Idempotency", self.keys)
        if not keys:
            raise ConfigurationError(
                "Idempotency(keys=()): it needs a secret, or any client could make the versions of"
                " others: secrets.token_bytes(32) makes one, for all processes and for good."
            )
        if not isinstance(self.principal, str) or not self.principal:
            raise ConfigurationError(
                "Idempotency(principal=...) must be a text that names the request's sender, and not"
                f" {describe(self.principal)}: without it, one client could be answered for"
                " another. Without a signed-in user, give the session or the API key."
            )
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "key", client_key(self.header))

    def key_for(self, model: type[Any], name: str = "", *, tenant: str = "") -> UUID:
        """Return the primary key of a new row: the same each time that this request is sent.

        It is made from the table, the tenant, the principal and the client's key, and from no
        secret, so that no rotation makes a second row of one request. Without a client's key it is
        random.

        Args:
            model: the class of the row.
            name: distinguishes the rows of one request.
        """
        if self.key is None:
            return uuid4()
        table = facts(mapper_of(model, "insert")).table.fullname
        parts = (tenant, table, name, self.principal, self.key)
        return UUID(bytes=sha256(_KEY + length_prefixed(*parts)).digest()[:16], version=4)


def client_key(header: Any) -> str | None:
    """Return the key in the value of the field Idempotency-Key; ``None`` if there is no field.

    Raises:
        BadPrecondition: it is not a String of RFC 9651, of 1 to 255 characters (400).
    """
    if header is None:
        return None
    if not isinstance(header, str):
        raise ConfigurationError(
            "The field Idempotency-Key is given as its text, or None where the client has sent"
            f" none, and not as {describe(header)}."
        )
    value = header.strip(" \t")
    if len(value) > 2 * _LONGEST + 2:  # each character escaped
        raise _unreadable(f"it is longer than {_LONGEST} characters")
    string = _STRING.fullmatch(value)
    if string is None and not _BARE.fullmatch(value):
        raise _unreadable("it is empty, or not one String")
    key = value if string is None else re.sub(r"\\(.)", r"\1", string[1])
    if len(key) > _LONGEST:
        raise _unreadable(f"it is longer than {_LONGEST} characters")
    return key


def _unreadable(why: str) -> BadPrecondition:
    error = BadPrecondition(
        f"The Idempotency-Key cannot be read: {why}. Send a new random UUID with each new request,"
        ' in two quotes, and the same one with a request that you send again: "8e03978e-40d5-…".'
        " Nothing was written."
    )
    error.detail = str(error)
    return error


# -- recognised requests ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One operation and its arguments."""

    call: str
    row: RowTags
    #: The row must be in one of these versions; ``None``: in any. A new row is in none.
    wanted: tuple[Any, ...] | None
    #: Attribute -> value, as the client has given them.
    values: Mapping[str, Any]

    @cached_property
    def data(self) -> bytes:
        """All of it, each part with its length, so that no two requests have the same bytes."""
        name = self.row.mapper.class_.__name__
        wanted = b"*"
        if self.wanted is not None:
            wanted = length_prefixed(*sorted(text_of(version, name) for version in self.wanted))
        body = body_bytes(self.values, name)
        return length_prefixed(self.row.row, name, self.call, wanted, body)


@dataclass(frozen=True)
class Mark:
    """The version that recognises a request, for each of the secrets."""

    request: Request
    keys: tuple[bytes, ...] = field(repr=False)
    signed: bytes = field(repr=False)

    @property
    def version(self) -> Any:
        """The version that the row gets."""
        return self.by(self.keys[0])

    def by(self, key: bytes) -> Any:
        """Return the version that this secret makes."""
        kind = facts(self.request.row.mapper).kind
        assert kind is not None
        return kind.drawn(hmac.digest(key, self.signed, "sha256"))

    def key_of(self, version: Any) -> bytes | None:
        """Return the secret that made the version; ``None``: another writer made it."""
        return next((key for key in self.keys if self.by(key) == version), None)

    def is_ours(self, version: Any) -> bool:
        """Return whether this request made the version."""
        return self.key_of(version) is not None


def mark_of(idempotency: Idempotency, request: Request) -> Mark | None:
    """Return the mark of the request; ``None`` if it cannot be recognised.

    Raises:
        ConfigurationError: versions of the class cannot be made from a request.
    """
    mapper, call = request.row.mapper, request.call
    _look_at(call, idempotency)
    if call == "delete":
        return None
    kind = facts(mapper).kind
    if kind is None or kind.drawn(bytes(32)) is None:
        raise ConfigurationError(
            f"entities.{call}({mapper.class_.__name__}, idempotency=...): a request that is sent"
            " again is known by the version that it made, and versions of the class do not show"
            " their request. Give it __version_token__ = Unique(), or omit idempotency=. Nothing"
            " was sent."
        )
    stays = call == "merge" and sets_ignored_only(mapper, request.values)
    if idempotency.key is None or request.wanted is None or stays:
        return None
    of_whom = idempotency.principal, idempotency.key, idempotency.batch
    keys: Any = idempotency.keys
    return Mark(request, keys, _VERSION + length_prefixed(request.data, *of_whom))


def _look_at(call: str, given: Any) -> None:
    if not isinstance(given, Idempotency):
        raise ConfigurationError(
            f"entities.{call}() got idempotency={describe(given)}: give it"
            " Idempotency(header, keys=[...], principal=...). Nothing was sent."
        )


def identity_of_new(
    call: str,
    mapper: Mapper[Any],
    key: Any,
    idempotency: Idempotency | None,
    etags: ETags,
    name: str = "",
) -> Identity | None:
    """Return the key of a new row; ``None`` if the database makes it.

    Raises:
        BadEntity: no row can have the given key.
        ConfigurationError: the database makes the key, so one request could make two rows.
    """
    if key is not None:
        return identity_of_new_row(f"entities.{call}", mapper, key)
    if idempotency is None:
        return None
    _look_at(call, idempotency)
    if not _is_uuid(mapper):
        raise ConfigurationError(
            f"entities.{call}({mapper.class_.__name__}, None, idempotency=...): the database makes"
            " the key, another one each time that the request is sent, so it would store a second"
            " row. Let the key be a UUID, which is then made from the Idempotency-Key; or give a"
            " key: idempotency.key_for() makes one. Nothing was sent."
        )
    if idempotency.key is None:
        return None
    return (idempotency.key_for(mapper.class_, name, tenant=etags.tenant),)


def _is_uuid(mapper: Mapper[Any]) -> bool:
    """Return whether the key is one column of UUIDs."""
    try:
        return [column.type.python_type for column in mapper.primary_key] == [UUID]
    except NotImplementedError:  # a type of the application
        return False


# -- the bytes of a body ---------------------------------------------------------------------------


def body_bytes(values: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of a body, attribute -> value of the class ``name``.

    Two bodies have the same bytes if they want the same values stored, and only then. Names are
    written in their order, each value with its type and its length. The result is the same in
    every process and with every Python: it depends on no order of a dictionary or a set, on no
    hash, and on no context of decimal numbers.

    Raises:
        BadEntity: a value is nested too deeply.
        ConfigurationError: a value is of a type without a text that stays the same.
    """
    if is_too_deep(values):
        raise BadEntity(
            f"A value of {name} is nested too deeply: more than {DEEPEST} collections are inside"
            " one another. Nothing was sent.",
            detail="A value that was sent is nested too deeply.",
        )
    return b"".join(
        length_prefixed(attribute) + _bytes(values[attribute], f"{name}.{attribute}")
        for attribute in sorted(values)
    )


def length_prefixed(*parts: str | bytes) -> bytes:
    """Return the parts, each after its length, so that no two sequences have the same bytes."""
    data = (one.encode("utf-8", "surrogatepass") if isinstance(one, str) else one for one in parts)
    return b"".join(b"%d:%b" % (len(one), one) for one in data)


def _bytes(value: Any, name: str) -> bytes:
    for kind, letter, text in _KINDS:
        if isinstance(value, kind):
            return letter + length_prefixed(text(value, name))
    raise ConfigurationError(
        f"{name}: idempotency= cannot fingerprint a value of type {type(value).__name__}. Use text,"
        " numbers, bytes, UUIDs, dates, or lists and dictionaries of these, or omit idempotency=."
        " Nothing was sent."
    )


def _mapping(value: Mapping[Any, Any], name: str) -> bytes:
    pairs = ((_bytes(key, name), _bytes(one, name)) for key, one in value.items())
    return b"".join(key + one for key, one in sorted(pairs))


def _decimal(value: Decimal) -> str:
    """Return a text that does not depend on the thread's decimal context, as ``str`` does."""
    sign, digits, exponent = value.as_tuple()
    return f"{sign} {''.join(map(str, digits))} {exponent}"


#: A type, its letter, and the text of a value. The first type that fits counts.
_KINDS: tuple[tuple[Any, bytes, Callable[[Any, str], str | bytes]], ...] = (
    (NoneType, b"n", lambda value, name: ""),
    (Enum, b"e", lambda value, name: value.name or str(value.value)),  # an empty flag has no name
    (bool, b"b", key_text),
    (str, b"s", lambda value, name: str.__str__(value)),
    (int, b"i", lambda value, name: int.__repr__(value)),
    (float, b"f", lambda value, name: float.__repr__(value)),
    (Decimal, b"d", lambda value, name: _decimal(value)),
    ((bytes, bytearray, memoryview), b"y", lambda value, name: bytes(value)),
    (UUID, b"u", key_text),
    ((date, time), b"t", key_text),  # a datetime is a date
    (timedelta, b"p", lambda value, name: f"{value.days} {value.seconds} {value.microseconds}"),
    (Mapping, b"o", _mapping),
    ((list, tuple), b"l", lambda value, name: b"".join(_bytes(one, name) for one in value)),
    (
        (set, frozenset),
        b"m",
        lambda value, name: b"".join(sorted(_bytes(one, name) for one in value)),
    ),
)
