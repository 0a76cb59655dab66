"""A request that is sent again after its answer was lost counts once.

::

    again = Idempotency(request.headers.get("Idempotency-Key"), keys=SECRETS, principal=user.id)
    stored = merge(session, Page, 7, {"title": "Home"}, if_match=tag, idempotency=again)
    stored.again                       # True: an earlier sending has written it, this one nothing

The client makes an ``Idempotency-Key`` for each request, and sends it again with the request
(draft-ietf-httpapi-idempotency-key-header). From it the row gets its version: not by chance, but as
an HMAC of the row, the versions that were demanded, the operation, the body, the principal and that
key, under a secret of the server. The write of a request that is sent again misses, because the row
is in its next version. The look that follows a miss finds just the version that this request makes,
so it was this request that wrote the row. No table is needed, and no statement more.

Nobody without the secret can tell such a version from a random one. What any of this differs in,
another body or another principal, makes another version, and is answered as without the header:
412. So is a request after which somebody else has written: its version is no longer there.

* Only ``Unique`` has versions that can be made so; other classes are refused.
* After a rotation of the secrets the old ones still recognise, as long as they are in the list.
* Under ``if_match="*"`` the last writer wins, and the version is random: one that is made without
  the version before it would come back with each sending, over another writer's edit as well.
* ``insert`` demands that there is no row. Where the client gives no key, the key is made from the
  ``Idempotency-Key``, too (:meth:`Idempotency.key_for`): the same POST stores the same row.
* A row that was deleted has no version: a DELETE that is sent again is ``NotFound``.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.orm import Mapper

from optilock.columns.identities import identity_of_new_row
from optilock.columns.texts import key_text, text_of
from optilock.entities.bodies import is_of_ignored, mapper_of
from optilock.errors import BadEntity, BadPrecondition, ConfigurationError, described
from optilock.mapped import Identity, facts
from optilock.preconditions.entity_tags import ETags, secret_keys

__all__ = ["Idempotency", "Mark", "Request", "body_bytes", "counted", "identity_of_new", "mark_of"]

_LONGEST = 255
# A String of RFC 9651, section 3.3.3; or the same without quotes, as many clients send it.
_STRING = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])++)"')
_BARE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]++")
_VERSION, _KEY = b"optilock.idempotency.version\0", b"optilock.idempotency.key\0"


@dataclass(frozen=True)
class Idempotency:
    """By what a request is known when it is sent again.

    Args:
        header: the value of the field ``Idempotency-Key``; ``None`` where the client has sent none:
            then nothing is known again, and versions are random.
        keys: secrets of the server, of 16 bytes or more, text or bytes; the first makes versions,
            all recognise them. To change one, add the new one at the end everywhere, make it the
            first, and take the old one away when no client will send a request of then again.
        principal: who sends it, as the server knows him: a user's id, not a name that he gives.
        batch: what :func:`~optilock.entities.transaction` binds its operations to.

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
                "Idempotency(keys=()): it needs a secret, or anybody could make the versions of"
                " others: secrets.token_bytes(32) makes one, for all processes and for good."
            )
        if not isinstance(self.principal, str) or not self.principal:
            raise ConfigurationError(
                "Idempotency(principal=...) is a text that says who sends the request, and not"
                f" {described(self.principal)}: without it, one client could be answered for"
                " another. Where nobody is signed in, give the session or the API key."
            )
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "key", None if self.header is None else _read(self.header))

    def key_for(self, model: type[Any], name: str = "", *, tenant: str = "") -> UUID:
        """The primary key of a new row: the same each time that this request is sent.

        It is made from the table, the tenant, the principal and the client's key, and from no
        secret, so that no rotation makes a second row of one request. Without a client's key it is
        random.

        Args:
            model: the class of the row.
            name: what tells rows from each other, where one request makes several.
        """
        if self.key is None:
            return uuid4()
        table = facts(mapper_of(model, "insert")).table.fullname
        parts = (tenant, table, name, self.principal, self.key)
        return UUID(bytes=sha256(_KEY + counted(*parts)).digest()[:16], version=4)


def _read(header: Any) -> str:
    """The key in the value of the field."""
    if not isinstance(header, str):
        raise ConfigurationError(
            "Idempotency() takes the text of the field Idempotency-Key, or None, and not"
            f" {described(header)}."
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


# -- what is known again ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What one operation wants."""

    call: str
    mapper: Mapper[Any]
    identity: Identity
    #: The versions in one of which the row must be; ``None``: whatever it is. A new row is in none.
    wanted: tuple[Any, ...] | None
    #: Attribute -> value, as the client has given them.
    values: Mapping[str, Any]
    etags: ETags

    @cached_property
    def data(self) -> bytes:
        """All of it; each part with its length, so that no two requests are one."""
        name = self.mapper.class_.__name__
        wanted = b"*"
        if self.wanted is not None:
            wanted = counted(*sorted(text_of(version, name) for version in self.wanted))
        row = self.etags.row(self.mapper, self.identity)
        return counted(row, name, self.call, wanted, body_bytes(self.values, name))


@dataclass(frozen=True)
class Mark:
    """The version by which a request is known again, by each of the secrets."""

    request: Request
    keys: tuple[bytes, ...] = field(repr=False)
    signed: bytes = field(repr=False)

    @property
    def version(self) -> Any:
        """The one that the row gets."""
        return self.by(self.keys[0])

    def by(self, key: bytes) -> Any:
        """The one that this secret makes."""
        kind = facts(self.request.mapper).kind
        assert kind is not None
        return kind.drawn(hmac.digest(key, self.signed, "sha256"))

    def key_of(self, version: Any) -> bytes | None:
        """The secret that has made the version of a row; ``None``: it is another writer's."""
        return next((key for key in self.keys if self.by(key) == version), None)

    def is_ours(self, version: Any) -> bool:
        """Has this request made the version?"""
        return self.key_of(version) is not None


def mark_of(idempotency: Idempotency, request: Request) -> Mark | None:
    """By what the request is known again; ``None``: by nothing.

    Raises:
        ConfigurationError: no version of the class could tell.
    """
    mapper, call = request.mapper, request.call
    _look_at(call, idempotency)
    if call == "delete":
        return None
    kind = facts(mapper).kind
    if kind is None or kind.drawn(bytes(32)) is None:
        raise ConfigurationError(
            f"entities.{call}({mapper.class_.__name__}, idempotency=...): a request that is sent"
            " again is known by the version that it made, and versions of the class tell nothing of"
            " who made them. Give it __version_token__ = Unique(), or leave idempotency= away."
            " Nothing was sent."
        )
    stays = call == "merge" and is_of_ignored(mapper, request.values)
    if idempotency.key is None or request.wanted is None or stays:
        return None
    of_whom = idempotency.principal, idempotency.key, idempotency.batch
    keys: Any = idempotency.keys
    return Mark(request, keys, _VERSION + counted(request.data, *of_whom))


def _look_at(call: str, given: Any) -> None:
    if not isinstance(given, Idempotency):
        raise ConfigurationError(
            f"entities.{call}() got idempotency={described(given)}: give it"
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
    """The key of a new row; ``None``: the database makes it.

    Raises:
        BadEntity: no row can have the key that was given.
        ConfigurationError: it does, and one request could make two rows.
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
    """Is the key one column of UUIDs?"""
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
    try:
        return b"".join(
            counted(attribute) + _bytes(values[attribute], f"{name}.{attribute}")
            for attribute in sorted(values)
        )
    except RecursionError:
        raise BadEntity(
            f"A value of {name} is nested too deeply. Nothing was sent.",
            detail="A value that was sent is nested too deeply.",
        ) from None


def counted(*parts: str | bytes) -> bytes:
    """Each part with its length before it, so that parts in a row stay apart."""
    data = (one.encode("utf-8", "surrogatepass") if isinstance(one, str) else one for one in parts)
    return b"".join(b"%d:%b" % (len(one), one) for one in data)


def _bytes(value: Any, name: str) -> bytes:
    kind, text = _typed(value, name)
    return kind + counted(text)


def _typed(value: Any, name: str) -> tuple[bytes, str | bytes]:
    """The letter of its type, and its text."""
    match value:
        case None:
            return b"n", ""
        case Enum():
            return b"e", value.name or str(value.value)  # no flag at all has no name
        case bool():
            return b"b", key_text(value, name)
        case str():
            return b"s", str.__str__(value)
        case int():
            return b"i", int.__repr__(value)
        case float():
            return b"f", float.__repr__(value)
        case Decimal():
            return b"d", _decimal(value)
        case bytes() | bytearray() | memoryview():
            return b"y", bytes(value)
        case UUID():
            return b"u", key_text(value, name)
        case date() | time():  # a datetime is a date
            return b"t", key_text(value, name)
        case timedelta():
            return b"p", f"{value.days} {value.seconds} {value.microseconds}"
        case Mapping():
            pairs = ((_bytes(key, name), _bytes(one, name)) for key, one in value.items())
            return b"o", b"".join(key + one for key, one in sorted(pairs))
        case list() | tuple():
            return b"l", b"".join(_bytes(one, name) for one in value)
        case set() | frozenset():
            return b"m", b"".join(sorted(_bytes(one, name) for one in value))
    raise ConfigurationError(
        f"{name} was given a {type(value).__name__}, which has no text that is the same in every"
        " process, and a request that is sent again is known by its values: give plain values"
        " (text, numbers, bytes, UUIDs, dates, lists and dictionaries of these), or leave"
        " idempotency= away. Nothing was sent."
    )


def _decimal(value: Decimal) -> str:
    """``str(value)`` asks the context of the thread; this does not."""
    sign, digits, exponent = value.as_tuple()
    return f"{sign} {''.join(map(str, digits))} {exponent}"
