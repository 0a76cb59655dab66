"""PostgreSQL's statements of a queue.

What runs for every message is SQL text: it is compiled faster than it is put together, and the
planner sees what was measured. Each is one statement, so a connection in AUTOCOMMIT mode needs one
trip for it.

``ctid = ANY(ARRAY(SELECT ... LIMIT n))``, not a join: with a join a plan for any ``n`` expects many
rows, and reads the whole table. A row whose place has changed since the statement began is left for
the next one. ``FOR NO KEY UPDATE`` is the lock that an UPDATE takes anyway.

Statements that look for messages are planned at each execution (``_PLANNED``). PostgreSQL would
keep a plan that it has made while the table was nearly empty, and read the whole table with it when
there are a million messages.

A sender wakes waiting sessions (NOTIFY) only if there are some: a NOTIFY in each transaction would
halve the rate of the senders, because it serialises their COMMITs. A waiting session holds an
advisory lock. A sender tries to share it for as long as its transaction lasts, and fails if a
session waits.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert

from optilock.dialects.postgresql.cursors import OwnStatement
from optilock.dialects.queue_sql import HandlerConnection, Messages, Place, Row
from optilock.dialects.queue_sql.parts import by_id
from optilock.dialects.values import quote_table, sql_of

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_PARAMETER = re.compile(r"(?<![:\\]):(\w+)")
_NUMBER, _NUMBERS = sa.BigInteger(), sa.ARRAY(sa.BigInteger())
_KINDS: dict[str, Any] = {
    "n": _NUMBER,
    "low": sa.DateTime(),
    "low_id": _NUMBER,
    "length": _NUMBER,
    "id": _NUMBER,
    "ids": sa.Text(),
    "old_receipt": sa.Uuid(),
    "new_receipt": sa.Uuid(),
    "tenant": sa.Text(),
    "queue": sa.Text(),
    "delays": _NUMBERS,
    "ttls": _NUMBERS,
    "delay": _NUMBER,
    "ttl": _NUMBER,
    "bodies": sa.Text(),
    "new_body": sa.Text(),
    "new_headers": sa.Text(),
    "headers": sa.ARRAY(sa.Text()),
    "group": sa.Text(),
    "dedup": sa.Text(),
}
#: Bodies in one text, because drivers write an array of texts one by one. JSON has no bare newline.
_LINES = "string_to_array(:bodies, chr(10))"
#: Ids in one text, for the same reason.
_IDS = "CAST(:ids AS bigint[])"
#: What a claim returns. Times are in UTC, without a zone, which drivers read eight times as fast.
_COLUMNS: dict[str, Any] = {
    "id": _NUMBER,
    "body": sa.Text(),
    "headers": sa.Text(),
    "sent_at": sa.DateTime(),
    "expires_at": sa.DateTime(),
    "visible_at": sa.DateTime(),
    "receives": sa.Integer(),
    "group_key": sa.Text(),
    "dedup_key": sa.Text(),
    "last_error": sa.Text(),
    "expired": sa.Boolean(),
}
#: A condition that is true, and costs a plan for any parameters so much that none is kept. The
#: second part is never carried out.
_PLANNED = (
    "(:{} IS NOT NULL OR (SELECT count(*) FROM generate_series(1, 1000) AS a,"
    " generate_series(1, 1000) AS b) > 0)"
)
_ZONE = "AT TIME ZONE interval '0'"
#: A condition that is true, and limits the waits of the transaction for locks, unless there is a
#: limit.
_LIMITED = (
    "set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN '2s'"
    " ELSE current_setting('lock_timeout') END, true) IS NOT NULL"
)


class PostgreSQLMessages(Messages):
    one_trip = True

    def __init__(self, place: Place) -> None:
        named = f"{place.tables.messages.fullname} {place.tenant} {place.queue}"
        digest = hashlib.blake2b(named.encode(), digest_size=8).digest()
        #: Of receivers that wait for messages of this queue; another queue's may be the same.
        self.lock = int.from_bytes(digest, "big", signed=True)
        self.channel = f"optilock_{digest.hex()}"
        self._floor = Floor()
        self._mine = {"tenant": place.tenant, "queue": place.queue}
        super().__init__(place)
        deleted = self._deleted(f"id = ANY({_IDS})")
        self._delete = OwnStatement(self._text(deleted))
        self._delete_one = OwnStatement(self._text(self._deleted("id = :id")))
        self._both = OwnStatement(self._text(self._claimed_after(deleted), _COLUMNS))
        self._send, self._send_one, self._send_alike = (
            OwnStatement(self._text(sql, {"id": _NUMBER}))
            for sql in (self._sent(), self._sent_one(), self._sent_alike())
        )
        self._send_keyed, self._send_keyed_inside = (
            OwnStatement(self._text(self._sent_keyed(limit), {"id": _NUMBER}))
            for limit in (f" AND {_LIMITED}", "")
        )

    # -- text ------------------------------------------------------------------------------------

    @property
    def _table(self) -> str:
        # A colon begins a parameter of text().
        return quote_table(_DIALECT, self.m.name, self.m.schema).replace(":", "\\:")

    @property
    def _now(self) -> str:
        return sql_of(_DIALECT, self.place.now)

    @property
    def _since(self) -> str:
        return sql_of(_DIALECT, self.place.begun)

    def _text(self, sql: str, columns: dict[str, Any] | None = None) -> Any:
        names = dict.fromkeys(_PARAMETER.findall(sql))
        made = sa.text(sql).bindparams(*(sa.bindparam(name, type_=_KINDS[name]) for name in names))
        if columns is None:
            return made
        # In their order: by their names SQLAlchemy would look for them again at each execution.
        return made.columns(*(sa.column(name, kind) for name, kind in columns.items()))

    def _claiming(self) -> Any:
        return OwnStatement(self._text(self._claimed_after(None), _COLUMNS))

    def _claimed_after(self, deleted: str | None) -> str:
        """SQL of a claim; before its rows there is one row about all of them."""
        done = f"done AS ({deleted} RETURNING 1), " if deleted else ""
        count = "(SELECT count(*)::integer FROM done)" if deleted else "0"
        return (
            f"WITH {done}found AS ({self._found()}),"
            " last AS (SELECT visible_at, id FROM found ORDER BY visible_at DESC, id DESC LIMIT 1),"
            f" taken AS ({self._taken()})"
            " SELECT (SELECT id FROM last) AS id, NULL AS body, NULL AS headers,"
            f" (SELECT visible_at FROM last) {_ZONE} AS sent_at, NULL::timestamp AS expires_at,"
            f" NULL::timestamp AS visible_at, {count} AS receives, NULL AS group_key,"
            " NULL AS dedup_key, NULL AS last_error, false AS expired"
            f" UNION ALL SELECT {', '.join(_COLUMNS)} FROM taken"
        )

    def _found(self) -> str:
        return (
            f"SELECT id, visible_at, ctid AS place FROM {self._table}"
            " WHERE tenant = :tenant AND queue = :queue AND group_key IS NULL"
            f" AND (visible_at, id) > (:low {_ZONE}, :low_id)"
            f" AND visible_at <= {self._since} AND {_PLANNED.format('n')}"
            " ORDER BY visible_at, id LIMIT :n FOR NO KEY UPDATE SKIP LOCKED"
        )

    def stored_time(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.case((sa.func.isfinite(column), column))

    def _taken(self) -> str:
        times = ", ".join(
            f"CASE WHEN isfinite({name}) THEN {name} {_ZONE} END AS {name}"
            for name in ("sent_at", "expires_at", "visible_at")
        )
        return (
            f"UPDATE {self._table} SET visible_at = (SELECT {self._now} + :length * interval '1"
            " millisecond'), receipt = :new_receipt, receives = receives + 1"
            " WHERE ctid = ANY(ARRAY(SELECT place FROM found))"
            f" RETURNING id, body, headers, {times}, receives, group_key, dedup_key, last_error,"
            f" expires_at <= {self._since} AS expired"
        )

    def _deleted(self, which: str) -> str:
        return (
            f"DELETE FROM {self._table} WHERE {which} AND receipt = :old_receipt"
            " AND tenant = :tenant AND queue = :queue"
            f" AND (expires_at IS NULL OR expires_at > {self._since})"
            f" AND {_PLANNED.format('old_receipt')}"
        )

    def _sent(self) -> str:
        """Numbers are given in the order of the arrays."""
        since, milliseconds = self._since, "* interval '1 millisecond'"
        return (
            f"WITH sent AS (INSERT INTO {self._table} (tenant, queue, visible_at, sent_at,"
            " expires_at, receipt, receives, body, headers)"
            f" SELECT :tenant, :queue, {since} + v.delay {milliseconds}, {since},"
            f" {since} + v.ttl {milliseconds}, :new_receipt, 0, v.body, v.headers"
            f" FROM unnest(:delays, :ttls, {_LINES}, :headers) WITH ORDINALITY"
            " AS v (delay, ttl, body, headers, place) ORDER BY v.place RETURNING id)"
            f" SELECT sent.id, ({self._told()}) AS told FROM sent ORDER BY sent.id"
        )

    def _sent_one(self) -> str:
        since, milliseconds = self._since, "* interval '1 millisecond'"
        return (
            f"INSERT INTO {self._table} (tenant, queue, visible_at, sent_at, expires_at, receipt,"
            f" receives, body, headers) VALUES (:tenant, :queue, {since} + :delay {milliseconds},"
            f" {since}, {since} + :ttl {milliseconds}, :new_receipt, 0, :new_body, :new_headers)"
            f" RETURNING id, ({self._told()}) AS told"
        )

    def _sent_alike(self) -> str:
        """Messages that differ in their bodies only."""
        since, milliseconds = self._since, "* interval '1 millisecond'"
        return (
            f"WITH sent AS (INSERT INTO {self._table} (tenant, queue, visible_at, sent_at,"
            " expires_at, receipt, receives, body)"
            f" SELECT :tenant, :queue, {since} + :delay {milliseconds}, {since},"
            f" {since} + :ttl {milliseconds}, :new_receipt, 0, v.body"
            f" FROM unnest({_LINES}) WITH ORDINALITY AS v (body, place) ORDER BY v.place"
            " RETURNING id)"
            f" SELECT sent.id, ({self._told()}) AS told FROM sent ORDER BY sent.id"
        )

    def _sent_keyed(self, limit: str) -> str:
        """A message with a deduplication key, if no committed message has it.

        A conflict on the index would wait for a handler that has deleted that message, and has not
        ended. So this waits only for a sender that has not ended.
        """
        since, milliseconds = self._since, "* interval '1 millisecond'"
        return (
            f"INSERT INTO {self._table} (tenant, queue, visible_at, sent_at, expires_at, receipt,"
            " receives, body, headers, group_key, dedup_key)"
            f" SELECT :tenant, :queue, {since} + :delay {milliseconds}, {since},"
            f" {since} + :ttl {milliseconds}, :new_receipt, 0, :new_body, :new_headers, :group,"
            f" :dedup WHERE NOT EXISTS (SELECT FROM {self._table} WHERE tenant = :tenant"
            " AND queue = :queue AND dedup_key = :dedup"
            f" AND (expires_at IS NULL OR expires_at > {since})){limit}"
            f" AND {_PLANNED.format('dedup')} ON CONFLICT DO NOTHING RETURNING id"
        )

    def _told(self) -> str:
        """SQL of a NOTIFY if a session waits; evaluated once for all rows."""
        return (
            f"SELECT CASE WHEN NOT pg_try_advisory_xact_lock_shared({self.lock})"
            f" THEN pg_notify('{self.channel}', '') END"
        )

    # -- messages --------------------------------------------------------------------------------

    def claim(self, connection: sa.Connection, n: int, length: int, receipt: UUID) -> list[Row]:
        low = self._floor.next()
        about, rows = self._claimed(connection, n, length, receipt, low)
        return self._rest(connection, n, length, receipt, low, about, rows)

    def _claimed(
        self, connection: sa.Connection, n: int, length: int, receipt: UUID, low: Low
    ) -> tuple[Row, list[Row]]:
        """A row about all of them, and the rows."""
        given = self._for_claim(n, length, receipt, low)
        about, *rows = self._claim.rows(connection, given)
        return about, rows

    def _for_claim(self, n: int, length: int, receipt: UUID, low: Low) -> dict[str, Any]:
        return {
            "n": n,
            "length": length,
            "new_receipt": receipt,
            "low": low[0],
            "low_id": low[1],
            **self._mine,
        }

    def _rest(
        self,
        connection: sa.Connection,
        n: int,
        length: int,
        receipt: UUID,
        low: Low,
        about: Row,
        rows: list[Row],
    ) -> list[Row]:
        """``rows`` and, if they are too few, the rows below ``low``, in their order."""
        enough = len(rows) == n
        self._floor.found((about[3], about[0]) if enough else None)
        if not enough and low is not BEGINNING:
            rows += self._claimed(connection, n - len(rows), length, receipt, BEGINNING)[1]
        rows.sort(key=by_id)
        return rows

    def acknowledge(self, connection: sa.Connection, ids: Sequence[int], receipt: UUID) -> int:
        if len(ids) == 1:
            given = {"id": ids[0], "old_receipt": receipt, **self._mine}
            return self._delete_one.count(connection, given)
        given = {"ids": _in_one_text(ids), "old_receipt": receipt, **self._mine}
        return self._delete.count(connection, given)

    def acknowledge_and_claim(
        self,
        connection: sa.Connection,
        done: tuple[Sequence[int], UUID],
        n: int,
        length: int,
        new: UUID,
    ) -> tuple[int, list[Row]]:
        ids, receipt = done
        low = self._floor.next()
        given = self._for_claim(n, length, new, low)
        given["ids"], given["old_receipt"] = _in_one_text(ids), receipt
        about, *rows = self._both.rows(connection, given)
        return about[6], self._rest(connection, n, length, new, low, about, rows)

    # -- sending ---------------------------------------------------------------------------------

    def insert_unless(self, table: Any) -> Any:
        return insert(table).on_conflict_do_nothing()

    def send(
        self, connection: sa.Connection, rows: list[dict[str, Any]], receipt: UUID
    ) -> list[int]:
        statement, given = self._sending(rows)
        given = {**given, "new_receipt": receipt, **self._mine}
        return [row[0] for row in statement.rows(connection, given)]

    def standing_keys(self, connection: sa.Connection, keys: Sequence[str]) -> dict[str, Any]:
        """None: the INSERT itself looks for them."""
        return {}

    def send_marked(
        self,
        connection: sa.Connection,
        row: dict[str, Any],
        group: str | None,
        dedup: str | None,
        *,
        inside: bool,
    ) -> int | None:
        if dedup is None:
            return super().send_marked(connection, row, group, dedup, inside=inside)
        statement = self._send_keyed_inside if inside else self._send_keyed
        found = statement.rows(connection, {**row, "group": group, "dedup": dedup, **self._mine})
        return found[0][0] if found else None

    def _sending(self, rows: list[dict[str, Any]]) -> tuple[OwnStatement, dict[str, Any]]:
        """The statement for these rows, and its parameters."""
        first = rows[0]
        if len(rows) == 1:
            return self._send_one, first
        given: dict[str, Any] = {"bodies": "\n".join([row["new_body"] for row in rows])}
        times = {(row["delay"], row["ttl"]) for row in rows}
        if len(times) == 1 and not any(row["new_headers"] for row in rows):
            return self._send_alike, {**given, "delay": first["delay"], "ttl": first["ttl"]}
        for name, key in (("delays", "delay"), ("ttls", "ttl"), ("headers", "new_headers")):
            given[name] = [row[key] for row in rows]
        return self._send, given

    # -- handlers that do not return -------------------------------------------------------------

    @contextmanager
    def limited_waits(self, connection: sa.Connection, length: int) -> Iterator[None]:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {length}")
        yield

    def end_handler(
        self,
        connection: sa.Connection,
        handler: HandlerConnection | None,
        number: int,
        receipt: UUID | None,
    ) -> None:
        """End the session whose open transaction has deleted the message: it is the row's xmax."""
        ended = self._text(
            "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a"
            f" JOIN {self._table} m ON a.backend_xid = m.xmax"
            " WHERE m.id = :id AND m.receipt = :old_receipt AND a.pid <> pg_backend_pid()"
        )
        connection.execute(ended, {"id": number, "old_receipt": receipt}).all()

    # -- waiting ---------------------------------------------------------------------------------

    notifies = True

    def can_listen(self, connection: sa.Connection) -> bool:
        """Not behind a pooler, where the next statement may go to another process."""
        driver: Any = connection.connection.driver_connection
        heard = hasattr(driver, "add_notify_handler") or hasattr(driver, "add_listener")
        return heard and told_process(driver) == connection.scalar(
            sa.text("SELECT pg_backend_pid()")
        )

    def listen(self, connection: sa.Connection) -> None:
        connection.execute(sa.text(f"LISTEN {self.channel}"))

    def begin_watch(self, connection: sa.Connection) -> bool:
        return bool(connection.scalar(sa.text(f"SELECT pg_try_advisory_lock({self.lock})")))

    def is_watched(self, connection: sa.Connection) -> bool:
        """Return whether a waiting session, and not a sender, has the lock."""
        high, low = (self.lock >> 32) & 0xFFFFFFFF, self.lock & 0xFFFFFFFF
        asked = (
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND mode = 'ExclusiveLock' AND objsubid = 1"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            f" AND classid = {high} AND objid = {low})"
        )
        return bool(connection.scalar(sa.text(asked)))

    def end_watch(self, connection: sa.Connection) -> None:
        left = f"SELECT pg_advisory_unlock({self.lock}), pg_notify('{self.channel}', '')"
        connection.execute(sa.text(left))

    def tell_waiting(self, connection: sa.Connection) -> None:
        connection.execute(sa.text(self._told()))


def _in_one_text(ids: Sequence[int]) -> str:
    """Return the ids as PostgreSQL writes an array."""
    return f"{{{','.join([f'{number:d}' for number in ids])}}}"


def told_process(driver: Any) -> int | None:
    """Return the process number that the server sent when the connection was made."""
    if hasattr(driver, "get_server_pid"):
        return int(driver.get_server_pid())
    told: int | None = getattr(getattr(driver, "info", None), "backend_pid", None)
    return told


# -- where the index scan for messages begins ------------------------------------------------------
#
# Each receive moves its rows in the index and leaves their old entries behind, until a VACUUM, at
# the place where the next scan begins: 60,000 messages after the last VACUUM a scan reads 500
# pages. So a scan begins where the one before has ended. Messages below that were received, or are
# locked by their receiver, or were committed after the scan, by a slow sender or a receiver that
# has failed. A scan from the beginning finds the last ones: once a second, and whenever a scan
# returns fewer messages than asked for.

#: The time, in UTC, and the number of a message: those after it are looked at.
Low = tuple[datetime, int]
#: Before all messages.
BEGINNING: Low = (datetime(1970, 1, 1), 0)
_SECONDS = 1.0


class Floor:
    """Of one queue, in one process; several threads may see an older one, which does no harm."""

    def __init__(self) -> None:
        self._low = BEGINNING
        self._since = 0.0

    def next(self) -> Low:
        """Return the bound from which the next receive searches."""
        now = time.monotonic()
        if now - self._since > _SECONDS:
            self._low, self._since = BEGINNING, now
        return self._low

    def found(self, last: Low | None) -> None:
        """A look has ended at this one; ``None``: there were fewer than asked for."""
        self._low = BEGINNING if last is None else last
