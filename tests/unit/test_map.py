"""tests/MAP.md names the test files of each source file (``python -m tests.map`` writes it)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.map import MAP, Map, read, rows

pytestmark = pytest.mark.pages

WRITE = "run python -m tests.map"


@pytest.fixture(scope="module")
def known() -> Map:
    return read()


def test_the_map_has_a_row_for_every_source_file_that_has_code(known: Map) -> None:
    assert sorted(rows(MAP.read_text())) == known.code, WRITE


def test_every_source_file_has_tests(known: Map) -> None:
    assert [source for source in known.code if not known.closest(source)] == []


def test_every_test_file_of_the_map_has_to_do_with_its_source_file(known: Map) -> None:
    """A test file that was moved, or that no longer tests the file, must not stay on the map."""
    stale = [
        (source, test)
        for source, tests in rows(MAP.read_text()).items()
        for test in tests
        if test not in known.tests or not known.closeness(source, test)
    ]
    assert stale == [], WRITE


def test_names_are_followed_to_the_file_that_defines_them(tmp_path: Path) -> None:
    _write(tmp_path, "optilock/__init__.py", "from optilock.rows import Row\n")
    _write(tmp_path, "optilock/rows.py", "class Row: ...\n")
    _write(tmp_path, "optilock/other.py", "def unlike(): ...\n")
    _write(tmp_path, "tests/test_x.py", "from optilock import Row\ndef test_it(): ...\n")
    found = read(tmp_path)
    assert found.closest("optilock/rows.py") == ["tests/test_x.py"]
    assert found.closest("optilock/other.py") == []


def test_of_two_test_files_the_one_that_shares_more_words_is_closer(tmp_path: Path) -> None:
    _write(tmp_path, "optilock/leases.py", "def renew_lease(): ...\n")
    _write(tmp_path, "optilock/queue.py", "def send(): ...\n")
    _write(tmp_path, "tests/test_leases.py", "def test_a_lease_is_renewed(): ...\n")
    _write(tmp_path, "tests/test_queue.py", "def test_a_queue_holds_a_lease(): ...\n")
    assert read(tmp_path).closest("optilock/leases.py")[0] == "tests/test_leases.py"


def test_a_test_file_in_the_folder_of_the_room_is_close_however_common_its_name_is(
    tmp_path: Path,
) -> None:
    _write(tmp_path, "optilock/queue/inner.py", "def shuffle_rows(): ...\n")
    _write(tmp_path, "tests/database/flush/test_a.py", "def test_a_queue_holds(): ...\n")
    _write(tmp_path, "tests/database/queue/test_b.py", "def test_it_holds(): ...\n")
    assert read(tmp_path).closest("optilock/queue/inner.py") == ["tests/database/queue/test_b.py"]


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
