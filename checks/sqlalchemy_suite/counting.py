"""Counting on both sides: what SQLAlchemy wants to write, and what the guard has seen of it.

``wanted``      rows with a version that the unit of work hands over for UPDATE and DELETE
``guarded``     those of them that came to the guard
``statements``  what the guard sent for them

``wanted`` is counted inside SQLAlchemy, before any connection, so that a flush that the guard does
not see at all is still in it; and where the guard stands in the place of SQLAlchemy's plan.
``bulk_update_mappings`` is no flush, and left out.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["count_into"]

_EMITTERS = ("_emit_update_statements", "_emit_post_update_statements", "_emit_delete_statements")


def count_into(counts: Counter[str]) -> None:
    """From here on, for the rest of the process."""
    _count_wanted(counts)
    _count_guarded(counts)
    from optilock._watched.guard.release import check_release

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the functions that are replaced here are others
        check_release()  # which flushes, too
    counts.clear()


def _count_wanted(counts: Counter[str]) -> None:
    from sqlalchemy.orm import persistence

    from optilock._watched.guard import flush

    for name in _EMITTERS:
        setattr(persistence, name, _counted_emitter(getattr(persistence, name), counts))
    write = flush._write

    @functools.wraps(write)
    def counted_write(uow: Any, mapper: Any, plan: Any, rows: list[Any]) -> None:
        counts["wanted"] += len(rows)
        write(uow, mapper, plan, rows)

    flush._write = counted_write


def _counted_emitter(emit: Any, counts: Counter[str]) -> Any:
    def passing(rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            counts["wanted"] += 1
            yield row

    @functools.wraps(emit)
    def counted(base: Any, uow: Any, mapper: Any, table: Any, rows: Any, **options: Any) -> Any:
        token = mapper.version_id_col
        flushing = options.get("bookkeeping", True)  # session.bulk_update_mappings() says False
        if flushing and token is not None and token.table is table:
            rows = passing(rows)
        return emit(base, uow, mapper, table, rows, **options)

    return counted


def _count_guarded(counts: Counter[str]) -> None:
    from optilock._watched.guard import batch, flush, route
    from optilock._watched.guard import connection as connections

    send, route_statement = batch.send, connections.route_statement
    write_of = flush.write_of

    @functools.wraps(send)
    def counted_send(*args: Any, **options: Any) -> Any:
        counts["statements"] += 1
        return send(*args, **options)

    @functools.wraps(route_statement)
    def counted_route(
        running: Any, connection: Any, native: Any, statement: Any, *rest: Any
    ) -> Any:
        rows = rest[0] if isinstance(rest[0], list) else [rest[0]]
        uow, dialect = running.uow, connection.dialect
        if uow is not None and rows and route.shape_for(uow, dialect, statement, rows[0]):
            counts["guarded"] += len(rows)
            return route_statement(running, connection, counting(native), statement, *rest)
        return route_statement(running, connection, native, statement, *rest)

    def counting(native: Any) -> Any:
        def counted_native(*args: Any, **options: Any) -> Any:
            counts["statements"] += 1
            return native(*args, **options)

        return counted_native

    def counted_join(shape_and_params: Any) -> Any:
        counts["guarded"] += 1  # a row that joins one which came by route_statement
        return write_of(shape_and_params)

    flush.write_of = counted_join
    batch.send = counted_send
    connections.route_statement = counted_route
