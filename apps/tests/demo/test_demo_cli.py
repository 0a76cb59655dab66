"""The command line says in one sentence what is wrong, and exits with 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from tests.support import in_process


def optilock(*arguments: str) -> Result:
    return in_process.optilock(*arguments, folder=Path.cwd())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--editors", "1"), "--editors takes 2 to 64, not 1"),
        (("--edits", "0"), "--edits takes 1 to 10000, not 0"),
        (("--pages", "0"), "--pages takes 1 to"),
        (("--url", "nonsense"), "not a database URL"),
        (("--url", "postgresql+psycopg://127.0.0.1:1/x"), "Cannot connect"),
        (("--url", "postgresql+nope://127.0.0.1:1/x"), "no driver"),
    ],
)
def test_bad_input_is_one_sentence_on_standard_error(arguments: tuple[str, ...], said: str) -> None:
    done = optilock("demo", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("optilock demo: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear reader, " * 100)
    done = optilock("demo", "--url", f"sqlite:///{file}")
    assert done.exit_code == 2
    assert "not a database" in done.stderr
    assert file.read_text() == "Dear reader, " * 100


def test_help_names_the_options() -> None:
    done = optilock("demo", "--help")
    assert done.exit_code == 0
    assert all(option in done.stdout for option in ("--url", "--editors", "--seed", "--json"))


@pytest.mark.parametrize(
    "absent", ["rich_click", *(pytest.param(n, marks=pytest.mark.full) for n in ("click", "rich"))]
)
def test_without_the_extra_the_command_line_says_what_to_install(absent: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None; from optilock.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert 'pip install "optilock[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["demo", "wiki"])
def test_without_the_applications_their_commands_name_the_extra(command: str) -> None:
    absent = "import sys; sys.modules['optilock_apps'] = None"
    code = f"{absent}; sys.argv = ['optilock', {command!r}]; from optilock.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert f'pip install "optilock[{command}]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_imports_no_other_command() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from optilock.cli import commands\n"
        "assert CliRunner().invoke(commands(), ['check', '--help']).exit_code == 0\n"
        "print({name for name in sys.modules if name.split('.')[-1] == 'command'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "{'optilock.check.command'}\n"
