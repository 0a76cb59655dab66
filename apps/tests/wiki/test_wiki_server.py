"""The wiki as a process: ``optilock wiki``, and the example with several processes."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from optilock_apps.servers import free_port

from apps.tests.programs import ROOT, visitor, wiki_at
from apps.tests.wiki.wikis import both
from tests.support import in_process
from tests.support.needed import program
from tests.support.waiting import until

EXAMPLE = ROOT / "examples" / "wiki"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wiki")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with wiki_at(folder=folder) as address:
        yield address
    assert list(folder.iterdir()) == []  # the temporary database is gone


@pytest.mark.full
def test_two_clients_of_a_server_lose_nothing(address: str) -> None:
    with visitor(address) as ada, visitor(address) as bob:
        mine, theirs = ada.edit("with"), bob.edit("with")
        text = mine.fields["body"]
        early, late = "Read this first.\n\n", "\nSee also: contextlib.\n"
        assert bob.send(theirs, body=early + text).status == 200
        answer = ada.send(mine, body=text + late)
        assert (answer.status, answer.box) == (409, early + text + late)
        assert ada.send(answer.form).status == 200
        assert bob.edit("with").fields["body"] == early + text + late


def curl(*words: str) -> tuple[int, str]:
    """Status and body."""
    command = [program("curl"), "--silent", "--max-time", "30", "-w", "\n%{http_code}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


def test_on_this_machine_alone_it_answers_for_no_other_name(address: str, folder: Path) -> None:
    """F: a page of another site can give its own name the address 127.0.0.1."""
    port = address.rstrip("/").rpartition(":")[2]
    for path in ("", "pages/try", "pages/try/edit", "api/pages", "static/style.css"):
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", ""):
            status, body = curl("-H", f"Host: {host}" if host else "Host;", f"{address}{path}")
            assert (status, "Write" in body) == (421, False), host
        for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert curl("-H", f"Host: {host}", f"{address}{path}")[0] == 200, host
    with wiki_at("--allowed-host", "wiki.example", folder=folder) as named:
        for host, status in (("Wiki.Example:8080", 200), ("localhost", 200), ("evil.example", 421)):
            assert curl("-H", f"Host: {host}", named)[0] == status
    with wiki_at("--host", "0.0.0.0", folder=folder) as anywhere:
        anywhere = anywhere.replace("0.0.0.0", "127.0.0.1")
        assert curl("-H", "Host: any.example", anywhere)[0] == 200


def test_curl_reads_with_304_and_writes_with_a_tag(address: str) -> None:
    page = f"{address}api/pages/try"
    _, head = curl("-I", page)
    tag = next(line for line in head.splitlines() if line.startswith("etag: ")).split()[1]
    assert curl("-H", f"If-None-Match: {tag}", page) == (304, "")
    patch = ("-X", "PATCH", "-H", "Content-Type: application/json", "-d", '{"body": "short"}')
    assert curl(*patch, "-H", f"If-Match: {tag}", page)[0] == 204
    status, problem = curl(*patch, "-H", f"If-Match: {tag}", page)
    assert (status, '"urn:optilock:precondition-failed"' in problem) == (412, True)
    assert curl(*patch, page)[0] == 428


def test_curl_sends_the_form_of_a_person(address: str) -> None:
    with visitor(address) as ada:
        fields = {**ada.edit("for").fields, "body": "typed"}
    words = [
        word for name, value in fields.items() for word in ("--data-urlencode", f"{name}={value}")
    ]
    assert curl(*words, f"{address}pages/for/edit")[0] == 303
    assert curl(*words, f"{address}pages/for/edit")[0] == 303  # sent again, it wants what is stored
    words[words.index("body=typed")] = "body=other"
    status, page = curl(*words, f"{address}pages/for/edit")
    assert status == 409
    assert "Nothing of yours is lost" in page


@pytest.mark.full
def test_a_database_file_is_made_and_kept(folder: Path) -> None:
    for expected in (200, 404):
        with wiki_at("--database", "kept.db", folder=folder) as here, visitor(here) as ada:
            page = ada.open("/pages/import")
            assert page.status == expected
            if page.forms:
                ada.send(page.form)
    (folder / "kept.db").unlink()


@pytest.mark.full
def test_it_ends_in_good_order_while_an_editor_follows_a_page(folder: Path) -> None:
    with wiki_at(folder=folder) as here:
        command = [program("curl"), "--silent", "--no-buffer", f"{here}pages/try/editing/changes"]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert follower.stdout is not None
        assert follower.stdout.readline().startswith(b"retry: ")
        assert curl(f"{here}pages/nowhere/editing/changes")[0] == 404
    follower.communicate(timeout=30)


def test_help_names_the_options(tmp_path: Path) -> None:
    done = in_process.optilock("wiki", "--help", folder=tmp_path)
    assert done.exit_code == 0
    assert all(option in done.stdout for option in ("--host", "--port", "--database", "--url"))


# -- what cannot begin -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--database", "x.db", "--url", "sqlite:///x.db"), "not both"),
        (("--url", "sqlite://"), "in memory"),
        (("--url", "sqlite:///typo.db"), "There is no database file 'typo.db'"),
        (("--url", "nonsense"), "cannot be read"),
        (("--url", "postgresql+psycopg://me:secret@127.0.0.1:1/x"), "does not answer"),
        (("--url", "sqlite+aiosqlite:///x.db"), "async driver"),
        (("--database", "letter.txt"), "not a database"),
        (("--database", "no/such/folder.db"), "unable to open"),
        (("--host", "256.0.0.1"), "Cannot listen on 256.0.0.1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader, " * 100)
    done = in_process.optilock("wiki", "--port", "0", *words, folder=tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("optilock wiki: ")
    assert said in done.stderr
    assert "secret" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_port_that_somebody_listens_on_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = in_process.optilock("wiki", "--port", port, folder=tmp_path)
    assert done.exit_code == 2
    assert f"Cannot listen on 127.0.0.1, port {port}" in done.stderr


@pytest.mark.parametrize(
    "absent",
    ["jinja2", *(pytest.param(name, marks=pytest.mark.full) for name in ("fastapi", "uvicorn"))],
)
@pytest.mark.full
def test_without_the_extra_the_wiki_says_what_to_install(absent: str) -> None:
    code = (
        f"import sys; sys.modules[{absent!r}] = None; sys.argv = ['optilock', 'wiki'];"
        "from optilock.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"the wiki needs {absent}" in done.stderr
    assert 'pip install "optilock[wiki]"' in done.stderr


# -- several processes -----------------------------------------------------------------------------


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def example_at(folder: Path) -> Iterator[str]:
    """``examples/wiki``, in two processes on a SQLite file."""
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WIKI_DATABASE": f"sqlite:///{folder / 'wiki.db'}",
        "WIKI_SECRET": "a secret of both processes",
    }
    subprocess.run([sys.executable, "main.py"], cwd=EXAMPLE, env=environment, check=True)
    command = [sys.executable, "-m", "uvicorn", "main:app", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "error"], cwd=EXAMPLE, env=environment
    )
    try:
        until(lambda: _listens(port), every=0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.full
def test_of_many_who_save_one_page_one_has_saved_it_and_nobody_has_lost_a_word(
    tmp_path: Path,
) -> None:
    with example_at(tmp_path) as address, visitor(address) as ada:
        form = ada.edit("try")
        everybody = [f"typed by {number}" for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda text: ada.send(form, body=text), everybody))
        assert sorted(answer.status for answer in answers) == [200] + [409] * 7
        boxes = [answer.box for answer in answers if answer.status == 409]
        saved = ada.edit("try").fields["body"]
        assert saved in everybody
        assert sorted(boxes) == [both(text, saved) for text in everybody if text != saved]
    with sqlite3.connect(tmp_path / "wiki.db") as database:
        (count,) = database.execute("SELECT count(*) FROM optilock_wiki_pages").fetchone()
    database.close()
    assert count == 8
