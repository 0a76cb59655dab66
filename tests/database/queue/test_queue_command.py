"""All queues of a database, ``cancel``, and the command ``optilock queue``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from optilock import ConfigurationError
from optilock.queue import AsyncQueue, Draft, Queue, QueueNotFound, queues
from optilock.queue.messages import token_of
from tests.database.queue.test_async_queue import runner as runner
from tests.database.queue.test_async_queue import sync as sync
from tests.support import in_process
from tests.support.queues import bodies, make_tables, shift
from tests.support.queues import queue as queue
from tests.support.waiting import until

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

#: Names with a meaning for SQL, LIKE, rich, a shell, a path, a terminal, or none.
NAMES = [
    *("a", "A", "a ", " a", "a'b", 'a"b', "a\\b", "a/b/../c", "a%", "a_", "a\nb", "a\rb", "\t"),
    *("[red]x[/red]", "[/]", "[bold", ":smile:", "{name}", "%s", "--url", "-n", "%", "*", "$HOME"),
    *(";", "`", "\x1b[31m", "\x7f", "ä", "a\u0308", "日本", "\U0001f512", "\u202e", "\u200b"),
    *("\ufeff", "\ufffd", "x" * 195),
]


def test_queues_of_every_name(engine):
    """E3: each is one queue, with the numbers of its own messages."""
    make_tables(engine)
    for number, name in enumerate(NAMES):
        with Queue(engine, name) as one:
            one.send_many(range(number + 1))
            one.receive(1)
    found = {one.name: one for one in queues(engine)}
    assert set(found) == set(NAMES)
    for number, name in enumerate(NAMES):
        assert (found[name].depth, found[name].held, found[name].dead) == (number, 1, 0), name


def test_the_numbers_of_a_queue(engine):
    """E3: depth, held, dead and oldest; of one tenant, or of all."""
    make_tables(engine)
    assert queues(engine) == []
    with Queue(engine, "work", max_receives=1) as work, Queue(engine, "work", tenant="b") as theirs:
        work.send_many(["poison", "held", Draft("later", delay=100), Draft("g", group="g")])
        poison, _ = work.receive(2)
        work.fail(poison, "no")
        work.send("soon over", ttl=0.001)
        work.send("a", dedup="k")
        done = work.send("done", dedup="done")
        work.delete(done)
        theirs.send("theirs")
        until(lambda: queues(engine, tenant="")[0].depth == 3)
        mine = queues(engine, tenant="")
        assert [(one.name, one.tenant) for one in queues(engine)] == [
            ("work", ""),
            ("work.dead", ""),
            ("work", "b"),
        ]
    (other,) = queues(engine, tenant="b")
    assert (other.depth, other.held, other.dead) == (1, 0, 0)
    assert [(one.depth, one.held, one.dead) for one in mine] == [(3, 1, 1), (1, 0, 0)]
    assert all(0 < one.oldest < 60 for one in mine)


def made_like(queue: Queue, **options: Any) -> Queue:
    return Queue(queue.engine, "work", clock=queue.store.place.clock, **options)


def test_without_tables_it_says_how_they_are_made(engine):
    """E3: an error of this library, whose text has the next step."""
    with pytest.raises(QueueNotFound, match=r'op.create_optilock_tables\("queue"\)'):
        queues(engine, table="absent")
    with pytest.raises(ConfigurationError, match="takes an Engine or an AsyncEngine"):
        queues("sqlite://")  # type: ignore[call-overload]


# -- cancel ----------------------------------------------------------------------------------------


def test_a_message_that_waits_is_cancelled(queue, engine):
    """E3: by its id, also one that is delayed; one that a receiver has is not."""
    plain, delayed, once = queue.send_many(
        ["plain", Draft("delayed", delay=50), Draft("once", dedup="k")]
    )
    assert queue.cancel(delayed.id)
    assert queue.cancel(once)
    assert not queue.cancel(once)
    assert not queue.send("once", dedup="k").duplicate
    held = queue.receive(1)
    assert [one.id for one in held] == [plain.id]
    assert not queue.cancel(plain.id)
    queue.fail(held[0], "no", delay=10)
    assert queue.cancel(plain.id)
    with made_like(queue, tenant="other") as other:
        theirs = other.send("theirs").id
        assert not queue.cancel(theirs)
        assert bodies(other.peek()) == ["theirs"]
    for wrong in ("7", True, -1, None):
        with pytest.raises(ConfigurationError, match="takes the id of a message"):
            queue.cancel(wrong)


def test_it_is_cancelled_with_the_callers_transaction(queue, engine):
    """E3: after a rollback the message is there."""
    number = queue.send("a").id
    with Session(engine) as session:
        assert queue.cancel(number, session=session)
        session.rollback()
    assert queue.metrics().waiting == 1
    with Session(engine) as session:
        assert queue.cancel(number, session=session)
        session.commit()
    assert queue.metrics().waiting == 0


@pytest.mark.needs("row-locks")
def test_a_message_that_a_handler_is_deleting_is_not_waited_for(queue, engine):
    """E3: its time is over, and its handler goes on."""
    queue.send("a")
    (message,) = queue.receive()
    shift(engine, 60)
    with Session(engine) as session:
        token = token_of(message.id, message.receipt)
        queue.store.acknowledge(session.connection(), [message.id], token)
        assert not queue.cancel(message.id)
        session.rollback()
    assert queue.cancel(message.id)


def test_the_next_message_of_the_group_can_be_received(queue):
    """E3: the one that was cancelled held it up."""
    first = queue.send("first", group="g", delay=100)
    queue.send("second", group="g")
    assert queue.receive() == []
    assert queue.cancel(first.id)
    assert bodies(queue.receive()) == ["second"]


@pytest.mark.anyio
async def test_the_same_for_asyncio(async_engine, sync):
    """E3: ``await queues(engine)`` and ``await queue.cancel(id)``."""

    async with AsyncQueue(async_engine, "real") as ours:
        sent = await ours.send("a")
        (found,) = await queues(async_engine)
        assert (found.name, found.depth) == ("real", 1)
        assert await ours.cancel(sent.id)
        assert await queues(async_engine) == []
        with pytest.raises(QueueNotFound):
            await queues(async_engine, table="absent")


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    make_tables(engine)
    with Queue(engine, "mails", max_receives=1) as mails:
        mails.send_many([{"to": "ada"}, "[red]grace[/red]"])
        mails.fail(mails.receive(1)[0], ValueError("no [bold]mailbox\n\x1b[31m"))
    for name in NAMES:
        with Queue(engine, name) as one:
            one.send("x")
    engine.dispose()
    return tmp_path


def run(shop: Path, *words: str, columns: int = 60) -> Result:
    return in_process.optilock(
        "queue", *words, "--url", f"sqlite:///{shop}/shop.db", folder=shop, columns=columns
    )


@pytest.mark.engines("sqlite-wal")
@pytest.mark.usefixtures("engine")
def test_ls_shows_each_queue_on_one_line(shop):
    """E3: no name is markup, breaks a line, or moves the cursor."""
    shown = run(shop, "ls")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert len(lines) == 1 + len(NAMES) + 2
    for name in ("[red]x[/red]", "a\\nb", "\\x1b[31m", "x" * 195, ":smile:", "\\u202e", "日本"):
        assert any(line.startswith(f"{name} ") for line in lines), name
    found = json.loads(run(shop, "ls", "--json").stdout)
    assert {one["name"] for one in found} == {*NAMES, "mails", "mails.dead"}
    mails = next(one for one in found if one["name"] == "mails")
    assert (mails["depth"], mails["held"], mails["dead"]) == (1, 0, 1)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.usefixtures("engine")
@pytest.mark.full
def test_messages_are_shown_redriven_and_deleted(shop):
    """E3: peek, dead, redrive and purge; a look receives nothing."""
    assert '"[red]grace[/red]"' in run(shop, "peek", "mails").stdout
    (letter,) = json.loads(run(shop, "dead", "mails", "--json").stdout)
    assert (letter["body"], letter["receives"]) == ({"to": "ada"}, 1)
    assert letter["last_error"] == "ValueError: no [bold]mailbox\n\x1b[31m"
    assert r"no [bold]mailbox\n\x1b[31m" in run(shop, "dead", "mails").stdout
    assert run(shop, "redrive", "mails").stdout == "1 messages put into the queue again.\n"
    assert json.loads(run(shop, "redrive", "mails", "--json").stdout) == {"redriven": 0}
    assert len(json.loads(run(shop, "peek", "mails", "--json").stdout)) == 2
    refused = run(shop, "purge", "mails")
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert run(shop, "purge", "mails", "--yes").stdout == "2 messages deleted.\n"
    assert run(shop, "peek", "mails").stdout == "There is no message.\n"
    for name in NAMES:
        given = json.loads(run_last(shop, "purge", "--yes", "--json", name).stdout)
        assert given == {"deleted": 1}, name
    assert run(shop, "ls").stdout == "There is no message in any queue.\n"


@pytest.mark.engines("sqlite-wal")
@pytest.mark.usefixtures("engine")
def test_one_message_is_shown_cancelled_or_deleted_by_its_id(shop):
    """E3: also a dead letter, one that a receiver has, and one that cannot be read."""
    engine = create_engine(f"sqlite:///{shop}/shop.db")
    with Queue(engine, "jobs", max_receives=1) as jobs:
        ids = [str(one.id) for one in jobs.send_many(["cut", "held", "poison", "waits"])]
        cut, held, poison, waits = ids
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE optilock_message SET body = x'7b1bff' WHERE id = {cut}"
            )
        found = json.loads(run(shop, "peek", "jobs", "--json").stdout)
        assert [str(one["id"]) for one in found] == ids
        assert "The body cannot be read" in run(shop, "peek", "jobs", columns=200).stdout
        jobs.fail(jobs.receive(2)[1], "no")
    engine.dispose()
    shown = json.loads(run(shop, "show", "jobs", cut, "--json").stdout)
    assert (shown["queue"], shown["body"]["unreadable"]["body"]) == ("jobs.dead", "{\x1b\\xff")
    table = run(shop, "show", "jobs", cut, columns=200).stdout
    assert "jobs.dead" in table
    assert not table.startswith("{")
    assert "\x1b" not in table
    assert json.loads(run(shop, "show", "jobs", held, "--json").stdout)["receives"] == 1
    for number, code in ((held, 1), (poison, 1), (waits, 0), (waits, 1)):
        assert run(shop, "cancel", "jobs", number, "--json").exit_code == code
    for number in (held, poison, cut):
        deleted = run(shop, "delete", "jobs", number, "--json")
        assert json.loads(deleted.stdout) == {"deleted": 1}
        gone = run(shop, "delete", "jobs", number)
        assert (gone.exit_code, f"no message {number} " in gone.stderr) == (1, True)
        assert run(shop, "show", "jobs", number).exit_code == 1
    assert run(shop, "show", "jobs", "x").exit_code == 2
    assert "jobs" not in run(shop, "ls").stdout


def run_last(shop: Path, *words: str) -> Result:
    """Run with the last word after ``--``, as a shell would for a name that begins with a dash."""
    *options, name = words
    url = f"sqlite:///{shop}/shop.db"
    return in_process.optilock("queue", *options, "--url", url, "--", name, folder=shop)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.usefixtures("engine")
def test_exit_codes(shop):
    """E3: 1, the database has no tables; 2, bad input; and nothing is made."""
    empty = shop / "empty.db"
    empty.touch()
    for words in (["ls"], ["peek", "a"], ["dead", "a"], ["redrive", "a"], ["purge", "a", "--yes"]):
        ended = in_process.optilock("queue", *words, "--url", f"sqlite:///{empty}", folder=shop)
        assert ended.exit_code == 1
        assert "op.create_optilock_tables" in ended.stderr
        assert ended.stdout == ""
    assert empty.stat().st_size == 0
    assert run(shop, "peek", "a", "-n", "0").exit_code == 2
    assert run(shop, "redrive", "a", "-n", "-1").exit_code == 2
    assert run(shop, "peek", "y" * 300).exit_code == 2
    away = in_process.optilock("queue", "ls", "--url", "sqlite:///away.db", folder=shop)
    assert (away.exit_code, (shop / "away.db").exists()) == (2, False)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.usefixtures("engine")
@pytest.mark.full
def test_a_terminal_that_lacks_a_character(shop):
    """E3: the command as a shell runs it, with an encoding that has ASCII alone."""
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-m", "optilock.cli", "queue", "ls", "--url", f"sqlite:///{shop}/shop.db"],
        env={"PYTHONPATH": f"{root}:{root / 'apps'}", "PATH": "", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert b"\\u65e5\\u672c" in ended.stdout
