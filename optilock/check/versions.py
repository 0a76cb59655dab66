"""What is asked of the column that holds a version: does it keep each version apart from others?"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import DefaultClause, Integer, String, Uuid

from optilock.check.findings import Finding, error, warning
from optilock.check.subjects import Seen
from optilock.check.tables import in_sql, is_text
from optilock.dialects.catalogue import StoredColumn


def nullable(seen: Seen) -> Iterator[Finding]:
    """May a row have no version? Of a view's column nobody can say."""
    if seen.version is None or seen.stored.is_view:
        return
    name, _, found = seen.version
    if found.nullable:
        yield warning(
            "nullable",
            name,
            "The column may be NULL, and a row without a version cannot be checked.",
            f"{seen.subject.roll_out}: it fills the column and makes it NOT NULL.",
        )


def resolution(seen: Seen) -> Iterator[Finding]:
    """Does a time tell two writes apart?"""
    if seen.version is None:
        return
    name, mapped, found = seen.version
    if not keeps_microseconds(found):
        yield error(
            "resolution",
            name,
            "The column keeps less than microseconds: two writes in one tick get the same version,"
            " and the second one overwrites unseen.",
            f"Change it to a type with six digits, {in_sql(mapped.type, seen).upper()}"
            f" (ALTER TABLE {seen.name} …).",
        )


def keeps_microseconds(found: StoredColumn) -> bool:
    """True of what is no time at all."""
    if found.word in ("DATETIME", "TIMESTAMP"):
        return found.size is None or found.size >= 6
    return found.word != "DATE"


def time_zone(seen: Seen) -> Iterator[Finding]:
    """Is a time the same for every connection?"""
    if seen.version is None or not seen.database.keeps_types:
        return
    name, mapped, found = seen.version
    wanted = in_sql(mapped.type, seen)
    without = "with time zone" in wanted and "without time zone" in found.type
    converted = wanted.startswith("datetime") and found.word == "TIMESTAMP"
    if without or converted:
        yield error(
            "time-zone",
            name,
            f"The column is {found.type.upper()}, which is read and written in the time zone of"
            " each connection: two connections with other zones see other versions of one row, so"
            " writes conflict without reason, and an older version can come again.",
            f"Change its type to {wanted.upper()} (ALTER TABLE, with the zone in which its values"
            " were written: … USING … AT TIME ZONE 'UTC' on PostgreSQL).",
        )


#: Bits of the integers that versions outgrow.
_SMALL = {"TINYINT": 8, "SMALLINT": 16, "INT2": 16, "SMALLSERIAL": 16, "MEDIUMINT": 24}


def too_small(seen: Seen) -> Iterator[Finding]:
    """Is there room for every version?"""
    if seen.version is None or not seen.database.keeps_types:
        return
    name, mapped, found = seen.version
    bits = _SMALL.get(found.word) if isinstance(mapped.type, Integer) else None
    token = None if seen.subject.wanted is None else seen.subject.wanted.token
    if bits is not None and (token is None or token.made_by != "application"):
        yield error(
            "too-small",
            name,
            f"The column is {found.type.upper()}: after {2 ** (bits - 1) - 1:,} writes of a row"
            " its next write fails, or, on a server that is not strict, keeps the same version.",
            f"Change it to BIGINT (ALTER TABLE {seen.name} …).",
        )
    length = 32 if isinstance(mapped.type, Uuid) else getattr(mapped.type, "length", None)
    if is_text(found) and isinstance(length, int) and (found.size or length) < length:
        yield error(
            "too-small",
            name,
            f"The column keeps {found.size} characters, and a version has up to {length}: one that"
            " was cut off is not the one that was written, or the write fails.",
            f"Change it to {in_sql(mapped.type, seen).upper()} (ALTER TABLE {seen.name} …).",
        )


def collation(seen: Seen) -> Iterator[Finding]:
    """Are two texts that differ two versions?"""
    if seen.version is None:
        return
    name, mapped, found = seen.version
    if found.lax is not None and isinstance(mapped.type, (String, Uuid)):
        if isinstance(mapped.type, Uuid):
            return  # hexadecimal digits, always in small letters
        yield error(
            "collation",
            name,
            f"{found.lax} takes texts for the same that differ (in case, accents or blanks): two"
            " such versions are one, and a lost update between them is not seen.",
            "Give the column a collation that compares every character (utf8mb4_bin on MariaDB,"
            ' BINARY on SQLite, "C" and not citext on PostgreSQL).',
        )


def moved_by_itself(seen: Seen) -> Iterator[Finding]:
    """Does the database set the version where nobody asked it to?"""
    if seen.version is None:
        return
    name, _, found = seen.version
    if found.moves_by_itself:
        yield error(
            "version-on-update",
            name,
            "The database sets the version in every UPDATE that does not name it (ON UPDATE), to"
            " its clock in the time zone of the connection: a version can come again, and writes"
            " that leave it as it was (no_bump, ignored columns) make others conflict.",
            f"Take the clause away: ALTER TABLE {seen.name} MODIFY the column without ON UPDATE;"
            " __version_guard__ moves versions that others leave alone.",
        )


def first_version(seen: Seen) -> Iterator[Finding]:
    """Is there the default that the mapping leaves new rows to?"""
    if seen.version is None:
        return
    name, mapped, found = seen.version
    if isinstance(mapped.server_default, DefaultClause) and found.default is None:
        first = getattr(mapped.server_default.arg, "text", mapped.server_default.arg)
        yield error(
            "no-default",
            name,
            "The first version of a row is the column's default, and the column has none: new rows"
            " are refused, or have no version.",
            f"ALTER TABLE {seen.name} ALTER COLUMN {mapped.name} SET DEFAULT {first}; on SQLite"
            " with Alembic's batch_alter_table.",
        )


ALL = (nullable, resolution, time_zone, too_small, collation, moved_by_itself, first_version)
