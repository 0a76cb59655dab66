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
refused.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Any

from sqlalchemy.orm import Mapper

from optilock.columns.texts import dump_values, load_values, text_of, version_in
from optilock.errors import BadPrecondition, ConfigurationError
from optilock.mapped import Identity, State, facts, identity_of
from optilock.preconditions.client_values import reason_to_refuse
from optilock.preconditions.entity_tags import ETags, state_of
from optilock.preconditions.expectations import loaded_version
from optilock.watched.rows.entries import attempt_of
from optilock.watched.rows.stored import Values

#: Characters: frameworks take fields of a form up to half a megabyte, or more.
LONGEST = 256 * 1024


def sign_seen(obj: object, names: Iterable[str], *, etags: ETags) -> str:
    """Return the loaded values of ``names`` and their version, signed. Sends no SQL.

    Args:
        obj: an object that a session has loaded; edits that are not flushed do not count.
        names: attributes of columns that a client may edit; it can read their values.
        etags: with keys, and the same that :func:`optilock.preconditions.merge_changes` is given.

    Raises:
        ConfigurationError: there are no keys; there is no loaded version, as for
            :func:`optilock.etag_of`; a name is no column that can be edited, or is not loaded; a
            value has no agreed text; or the text would be longer than 256 KiB.
    """
    state, wanted = state_of(obj, "sign_seen"), list(dict.fromkeys(names))
    mapper, cls = state.mapper, state.class_.__name__
    _check_keys("sign_seen", etags)
    etags.of_values_read(obj)  # refuses what has no version
    for name in wanted:
        reason = reason_to_refuse(mapper, name)
        if reason is not None or name not in facts(mapper).columns:
            raise ConfigurationError(f"sign_seen() got {cls}.{name}: {reason or 'no column'}.")
    version = loaded_version(state, "sign_seen")
    values = _loaded(state, version, wanted)
    return sign_values(mapper, identity_of(state), version, values, etags)


def sign_values(
    mapper: Mapper[Any], identity: Identity, version: Any, values: Values, etags: ETags
) -> str:
    """Return the same for values that were stored in this version.

    Raises:
        ConfigurationError: as :func:`sign_seen`.
    """
    cls = mapper.class_.__name__
    _check_keys("sign_seen", etags)
    signed = etags.of_row(mapper, identity).sign(f"{text_of(version, cls)}.{_packed(cls, values)}")
    if len(signed) > LONGEST:
        raise ConfigurationError(
            f"sign_seen(): what was seen of this {cls} is longer than {LONGEST} characters: leave"
            f" out the longest of {', '.join(values)}. What is left out cannot be merged."
        )
    return signed


def _check_keys(call: str, etags: ETags) -> None:
    if not isinstance(etags, ETags) or not etags.keys:
        raise ConfigurationError(
            f"{call}() needs etags=ETags(keys=[...]), with keys: without one any client could forge"
            " the seen values, and so merge over unseen work."
        )


def _loaded(state: State, version: Any, names: list[str]) -> Values:
    original = attempt_of(state, "verify", version).original
    missing = [name for name in names if name not in original]
    if missing:
        raise ConfigurationError(
            f"sign_seen(): {', '.join(missing)} of this {state.class_.__name__} is not loaded, or"
            " was changed before it was: read it first."
        )
    return {name: original[name] for name in names}


def _packed(cls: str, values: Values) -> str:
    try:
        text = dump_values(values)
    except TypeError as error:
        raise ConfigurationError(
            f"sign_seen(): a value of this {cls} is of type {error}, which has no agreed text:"
            " leave it out. What is left out cannot be merged."
        ) from None
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def read_seen(
    call: str, mapper: Mapper[Any], identity: Identity, given: object, etags: ETags
) -> tuple[Any, Values]:
    """Return the version and the values that were signed for the row of this key.

    Raises:
        BadPrecondition: ``given`` was not signed for this row or is damaged (400), or is missing
            (428).
        ConfigurationError: there are no keys.
    """
    _check_keys(call, etags)
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


def _unpacked(mapper: Mapper[Any], text: str) -> tuple[Any, Values] | None:
    """Read a text of ours; the mapping may have changed since."""
    known = facts(mapper)
    said, _, packed = text.rpartition(".")
    version = version_in(said, known.version.type)
    try:
        plain = urlsafe_b64decode(packed + "=" * (-len(packed) % 4)).decode()
        values = load_values(
            plain, lambda name: getattr(known.columns[name].type, "enum_class", None)
        )
    except (ValueError, TypeError, LookupError):
        return None
    return None if version is None else (version, values)
