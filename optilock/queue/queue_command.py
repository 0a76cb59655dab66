"""The command ``optilock queue``. Exit codes: 0 done, 1 the database failed or has no tables, or
there is no such message, 2 bad input.

Names, bodies and errors are data of the application: they are printed as they are, except that
characters which cannot be seen are written as Python writes them (``\\n``), and never as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from optilock.dialects.commands import end, exit_codes, open_engine
from optilock.queue.messages import MOST, Message, Unreadable
from optilock.queue.queue import Queue
from optilock.queue.summaries import QueueSummary, queues
from optilock.tables.queue import NAME

C = TypeVar("C", bound=Callable[..., None])


@click.group()
def queue() -> None:
    """List queues, look at their messages, and redrive, cancel or delete them."""


def _options(*others: Callable[[Any], Any]) -> Callable[[C], C]:
    """Return a decorator that adds the options of all commands, and ``others``."""
    shared = (
        click.option("--url", required=True, help="The database, as SQLAlchemy writes it."),
        click.option("--table", default=NAME, show_default=True, help="The table of messages."),
        click.option("--schema", help="The schema of the table."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else."),
    )

    def add(command: C) -> C:
        for option in reversed((*others, *shared)):
            command = option(command)
        return command

    return add


_name = click.argument("name")
_tenant = click.option("--tenant", default="", help="The tenant, if the queue has one.")
_dead = click.option("--dead-letters", "dead", help="Their queue, if it is not NAME.dead.")
_number = click.argument("number", metavar="ID", type=click.IntRange(0, (1 << 63) - 1))
_count = click.option("-n", "count", default=10, show_default=True, help="Messages at most.")


@queue.command()
@_options(click.option("--tenant", help="Only the queues of this tenant."))
def ls(tenant: str | None, url: str, table: str, schema: str | None, as_json: bool) -> None:
    """List all queues that have messages: how many wait, are held, and are dead letters."""
    with exit_codes("queue"), open_engine(url) as engine:
        found = queues(engine, tenant=tenant, table=table, schema=schema)
    if as_json:
        _print_json([asdict(one) for one in found])
    else:
        _print_queues(found)


@queue.command()
@_options(_name, _tenant, _count)
def peek(name: str, tenant: str, count: int, as_json: bool, **given: Any) -> None:
    """Show the next messages of the queue NAME, without receiving them."""
    _print_messages(given, as_json, lambda found: found.peek(count), name, tenant, name)


@queue.command()
@_options(_name, _tenant, _count, _dead)
def dead(name: str, tenant: str, count: int, dead: str | None, as_json: bool, **given: Any) -> None:
    """Show dead letters of the queue NAME, with the errors of their last deliveries."""
    _print_messages(
        given, as_json, lambda found: found.dead_letters.peek(count), name, tenant, dead
    )


@queue.command()
@_options(_name, _number, _tenant, _dead)
def show(
    name: str, number: int, tenant: str, dead: str | None, as_json: bool, **given: Any
) -> None:
    """Show the message ID of the queue NAME or of its dead letters, received or not."""
    with _queue(given, name, tenant, dead) as found:
        places = (found, found.dead_letters)
        shown = [(place.name, one) for place in places if (one := place.find(number)) is not None]
    _require_message(shown, name, number)
    place, message = shown[0]
    until = message.visible_at
    fields = {"queue": place, **_as_json(message), "visible_at": until and until.isoformat()}
    if as_json:
        _print_json(fields)
    else:
        rows = [(key, one if isinstance(one, str) else _json(one)) for key, one in fields.items()]
        _print_table(("field", "value"), rows, "")


@queue.command()
@_options(_name, _number, _tenant)
def cancel(name: str, number: int, tenant: str, as_json: bool, **given: Any) -> None:
    """Delete the message ID of the queue NAME, if no receiver has it."""
    with _queue(given, name, tenant, name) as found:
        done = found.cancel(number)
    _require_message(done, name, number, " that no receiver has")
    _print_done(as_json, "cancelled", 1, "cancelled")


@queue.command()
@_options(_name, _number, _tenant, _dead)
def delete(
    name: str, number: int, tenant: str, dead: str | None, as_json: bool, **given: Any
) -> None:
    """Delete the message ID of the queue NAME or of its dead letters, also if a receiver has it."""
    with _queue(given, name, tenant, dead) as found:
        places = (found, found.dead_letters)
        done = any(place.cancel(number, held=True) for place in places)
    _require_message(done, name, number, " that no transaction is deleting")
    _print_done(as_json, "deleted", 1, "deleted")


@queue.command()
@_options(_name, _tenant, _dead, click.option("-n", "count", type=int, help="At most; or all."))
def redrive(
    name: str, tenant: str, dead: str | None, count: int | None, as_json: bool, **given: Any
) -> None:
    """Put dead letters into the queue NAME again; their deliveries are counted from 0."""
    with _queue(given, name, tenant, dead) as found:
        done = found.redrive(min(count, MOST)) if count is not None else _redrive_all(found)
    _print_done(as_json, "redriven", done, "put into the queue again")


@queue.command()
@_options(
    _name,
    _tenant,
    click.option("--expired", is_flag=True, help="Only messages that have expired."),
    click.option("--yes", is_flag=True, help="Delete all messages."),
)
def purge(name: str, tenant: str, expired: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Delete all messages of the queue NAME, those that receivers have included."""
    if yes == expired:
        end(
            "queue",
            2,
            "write --yes to delete all messages of the queue, or --expired. Nothing was done.",
        )
    with _queue(given, name, tenant, name) as found:
        done = found.purge(expired=expired)
    _print_done(as_json, "deleted", done, "deleted")


def _require_message(found: object, name: str, number: int, which: str = "") -> None:
    if not found:
        end("queue", 1, f"there is no message {number} in the queue {_visible(name)}{which}.")


# -- the database ----------------------------------------------------------------------------------


def _redrive_all(found: Queue) -> int:
    done = 0
    while some := found.redrive(MOST):
        done += some
    return done


@contextmanager
def _queue(given: dict[str, Any], name: str, tenant: str, dead: str | None) -> Iterator[Queue]:
    url = given.pop("url")
    with (
        exit_codes("queue"),
        open_engine(url) as engine,
        Queue(engine, name, tenant=tenant, dead_letters=dead, listen=False, **given) as found,
    ):
        yield found


# -- printing --------------------------------------------------------------------------------------


def _print_messages(
    given: dict[str, Any],
    as_json: bool,
    read: Callable[[Queue], list[Message]],
    *place: Any,
) -> None:
    with _queue(given, *place) as queue:
        found = read(queue)
    if as_json:
        _print_json([_as_json(message) for message in found])
        return
    rows = [
        (
            str(one.id),
            str(one.receives),
            one.sent_at.isoformat(" ", "seconds"),
            _json(one.body),
            one.last_error or "",
        )
        for one in found
    ]
    _print_table(("id", "receives", "sent at", "body", "last error"), rows, "There is no message.")


def _as_json(message: Message) -> dict[str, Any]:
    times = {"sent_at": message.sent_at, "expires_at": message.expires_at}
    return {
        "id": message.id,
        "body": _plain(message.body),
        "headers": dict(message.headers),
        "receives": message.receives,
        "group": message.group,
        "dedup": message.dedup,
        "last_error": message.last_error,
        **{name: time and time.isoformat() for name, time in times.items()},
    }


def _plain(body: Any) -> Any:
    return {"unreadable": asdict(body)} if isinstance(body, Unreadable) else body


def _json(value: Any) -> str:
    """Return the value as JSON in one line; of a body that cannot be read, why."""
    return value.reason if isinstance(value, Unreadable) else json.dumps(value, ensure_ascii=False)


def _print_queues(found: list[QueueSummary]) -> None:
    tenants = any(one.tenant for one in found)
    head = (*(("tenant",) if tenants else ()), "queue", "depth", "held", "dead", "keys", "oldest")
    rows = [
        (
            *((one.tenant,) if tenants else ()),
            one.name,
            *(f"{number:,}" for number in (one.depth, one.held, one.dead, one.keys)),
            f"{one.oldest:,.0f} s",
        )
        for one in found
    ]
    _print_table(head, rows, "There is no message in any queue.")


def _print_table(head: Iterable[str], rows: Sequence[tuple[str, ...]], empty: str) -> None:
    _bear_any_encoding()
    if not rows:
        print(empty)
        return
    console = Console()
    if not console.is_terminal:  # a program reads it: no name is broken into lines
        console = Console(width=100_000)
    table = Table(box=None, pad_edge=False)
    for title in head:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_visible(cell)) for cell in row))
    console.print(table)


def _visible(text: str) -> str:
    """Return it with escapes for characters that would move the cursor or cannot be seen."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _print_done(as_json: bool, key: str, count: int, what: str) -> None:
    if as_json:
        _print_json({key: count})
    else:
        print(f"{count:,} messages {what}.")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _bear_any_encoding() -> None:
    """Let a stream that lacks a character write its number, and not end the program."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
