"""The values that a client sees of a row, signed with its version: a text for a hidden field.

::

    tags = ETags(keys=[new_key, old_key])
    form["seen"] = sign_seen(page, ["title", "body"], etags=tags)

The text has the loaded values, their version, and an HMAC of tenant, table, key, version and
values: a client can neither make one nor use that of another row. It is signed and not encrypted:
the client can read it, so sign only the values that the form shows. It is valid as long as its key
is among ``keys``, also after the row has moved on, for
:func:`optilock.preconditions.merge_changes`.

Sets in a column and mutable values are fine. A value of your own type has no agreed text, and is
refused. The text is compressed. If it would still be longer than 40 % of the values, or than 256
KiB, the longest of them are carried as digests: a field that only one side has changed is stored as
ever, and one that both have changed is a conflict without a merge.
"""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.orm import Mapper

from optilock._columns.texts import Digest, dump_values, load_values, text_of, version_in
from optilock._mapped import Identity, State, facts, identity_of
from optilock._watched.rows.entries import side_as_read
from optilock._watched.rows.stored import Values
from optilock.errors import BadPrecondition, ConfigurationError
from optilock.preconditions.client_values import reason_to_refuse
from optilock.preconditions.entity_tags import ETags, state_of
from optilock.preconditions.expectations import loaded_version

#: Characters: frameworks take fields of a form up to half a megabyte, or more.
LONGEST = 256 * 1024
#: Characters that are never too many, and the part of the values' own bytes that more may be.
_FEW, _PART = 8 * 1024, 0.4


@dataclass(frozen=True)
class Seen:
    """What a client has seen of a row."""

    version: Any
    #: Attribute -> value; a :class:`~optilock._columns.texts.Digest` of one that is too long.
    values: Values
    #: Notes of a form about its page, as JSON has them.
    notes: Mapping[str, Any] = field(default_factory=dict)

    def known(self, stored: Values) -> Values:
        """Return the values; of those that are too long, the stored ones that are the same."""
        return {
            name: stored[name] if isinstance(value, Digest) else value
            for name, value in self.values.items()
            if not isinstance(value, Digest) or (name in stored and value.is_of(stored[name]))
        }


def sign_seen(obj: object, names: Iterable[str], *, etags: ETags) -> str:
    """Return the loaded values of ``names`` and their version, signed. Sends no SQL.

    Args:
        obj: an object that a session has loaded; edits that are not flushed do not count.
        names: attributes of columns that a client may edit; it can read their values.
        etags: with keys, and the same that :func:`optilock.preconditions.merge_changes` is given.

    Raises:
        ConfigurationError: there are no keys; there is no loaded version, as for
            :func:`optilock.etag_of`; a name is no column that can be edited, or is not loaded; or a
            value has no agreed text.
    """
    state, seen = read_values(obj, names, etags)
    return sign_values(state.mapper, identity_of(state), seen, etags)


def read_values(obj: object, names: Iterable[str], etags: ETags) -> tuple[State, Seen]:
    """Return the state of an object, and what a client may see of it; as :func:`sign_seen`."""
    state, wanted = state_of(obj, "sign_seen"), list(dict.fromkeys(names))
    mapper, cls = state.mapper, state.class_.__name__
    check_keys("sign_seen", etags)
    etags.of_values_read(obj)  # refuses what has no version
    for name in wanted:
        reason = reason_to_refuse(mapper, name)
        if reason is not None or name not in facts(mapper).columns:
            raise ConfigurationError(f"sign_seen() got {cls}.{name}: {reason or 'no column'}.")
    version = loaded_version(state, "sign_seen")
    return state, Seen(version, _loaded(state, version, wanted))


def sign_values(mapper: Mapper[Any], identity: Identity, seen: Seen, etags: ETags) -> str:
    """Return the text of what a client sees of the row, signed.

    Raises:
        ConfigurationError: as :func:`sign_seen`.
    """
    check_keys("sign_seen", etags)
    packed = _packed(mapper, seen)
    return etags.of_row(mapper, identity).sign(packed)


def check_keys(call: str, etags: ETags) -> None:
    if not isinstance(etags, ETags) or not etags.keys:
        raise ConfigurationError(
            f"{call}() needs etags=ETags(keys=[...]), with keys: without one any client could forge"
            " the seen values, and so merge over unseen work."
        )


def _loaded(state: State, version: Any, names: list[str]) -> Values:
    original = side_as_read(state, version)
    missing = [name for name in names if name not in original]
    if missing:
        raise ConfigurationError(
            f"sign_seen(): {', '.join(missing)} of this {state.class_.__name__} is not loaded, or"
            " was changed before it was: read it first."
        )
    return {name: original[name] for name in names}


def _packed(mapper: Mapper[Any], seen: Seen) -> str:
    """Return the text; the longest values are digests if it would be too long."""
    cls = mapper.class_.__name__
    while True:
        try:
            plain = json.dumps(
                [text_of(seen.version, cls), dump_values(seen.values), seen.notes],
                separators=(",", ":"),
                ensure_ascii=False,
            )
        except TypeError as error:
            raise ConfigurationError(
                f"sign_seen(): a value of this {cls} is of type {error}, which has no agreed text:"
                " leave it out. What is left out cannot be merged."
            ) from None
        data = plain.encode("utf-8", "surrogatepass")
        packed = urlsafe_b64encode(zlib.compress(data)).rstrip(b"=").decode()
        most = max(_FEW, min(LONGEST - 64, _PART * len(data)))
        if len(packed) <= most or all(isinstance(one, Digest) for one in seen.values.values()):
            return packed
        seen = _shortened(seen)


def _shortened(seen: Seen) -> Seen:
    """Return the same, with the digest of the longest value in its place."""
    sizes = {
        name: len(dump_values({"": value}))
        for name, value in seen.values.items()
        if not isinstance(value, Digest)
    }
    longest = max(sizes, key=sizes.__getitem__)
    values = {**seen.values, longest: Digest.of(seen.values[longest])}
    return replace(seen, values=values)


def read_seen(
    call: str, mapper: Mapper[Any], identity: Identity, given: object, etags: ETags
) -> Seen:
    """Return what was signed for the row of this key.

    Raises:
        BadPrecondition: ``given`` was not signed for this row or is damaged (400), or is missing
            (428).
        ConfigurationError: there are no keys.
    """
    check_keys(call, etags)
    cls = mapper.class_.__name__
    if given is None:
        raise _refused("is missing: send back the text that came with it.", cls, 428)
    text = None
    if isinstance(given, str) and len(given) <= LONGEST:
        text = etags.of_row(mapper, identity).signed(given)
    found = None if text is None else _unpacked(mapper, text)
    if found is None:
        raise _refused(
            "was not signed here for this row, or not with a key that is still good, or did not"
            " come back whole: read the row again.",
            cls,
        )
    return found


def _refused(why: str, cls: str, status: int = 400) -> BadPrecondition:
    error = BadPrecondition(f"What was seen of {cls} {why}", status)
    error.detail = f"What was seen {why}"
    return error


def _unpacked(mapper: Mapper[Any], text: str) -> Seen | None:
    """Read a text of ours; the mapping may have changed since."""
    known = facts(mapper)

    def enum_of(name: str) -> Any:
        column = known.columns.get(name)
        return None if column is None else getattr(column.type, "enum_class", None)

    try:
        plain = zlib.decompress(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        said, values, notes = json.loads(plain.decode("utf-8", "surrogatepass"))
        version = version_in(said, known.version.type)
        seen = Seen(version, load_values(values, enum_of), notes)
    except (ValueError, TypeError, LookupError, zlib.error):
        return None
    return None if version is None else seen
