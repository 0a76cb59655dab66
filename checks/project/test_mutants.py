"""Mutants that tests are tried with: ``python -m checks.mutants``."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.mutants import mutants_of, sample

SOURCE = '''"""Ünicode before."""
LIMIT = 3
def f(a: int = 7) -> "text":
    """A docstring."""
    if a > 1 and not a:
        raise ValueError("told" if a else 5)
    g(a)
    return [b for b in a if b]
'''


def made(kind: str) -> list[str]:
    return [
        one.applied_to(SOURCE.encode()).decode()
        for one in mutants_of("x.py", SOURCE)
        if one.kind == kind
    ]


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("opposite", ["    if (a <= 1) and not a:", "    if a > 1 and bool(a):"]),
        ("missing operand", ["    if ((not a)):", "    if ((a > 1)):"]),
        ("always", ["    if True:", "    return [b for b in a if True]"]),
        ("never", ["    if False:"]),
        ("missing call", ["    None"]),
        ("missing result", ["    return None"]),
        ("other constant", ["    if a > 2 and not a:"]),
    ],
)
def test_a_mutant_changes_one_place_of_a_function_and_no_errors_text(
    kind: str, lines: list[str]
) -> None:
    changed = [set(text.splitlines()) - set(SOURCE.splitlines()) for text in made(kind)]
    assert sorted(map(sorted, changed)) == sorted([line] for line in lines)
    for text in made(kind):
        compile(text, "x.py", "exec")


def test_a_seed_is_always_the_same_choice_and_rooms_have_their_share(tmp_path: Path) -> None:
    for room, files in (("queue", 1), ("_watched/guard", 3)):
        folder = tmp_path / "optilock" / room
        folder.mkdir(parents=True)
        for number in range(files):
            (folder / f"file{number}.py").write_text(SOURCE)
    chosen = sample(tmp_path, 40, 4)
    assert chosen == sample(tmp_path, 40, 4)
    assert chosen != sample(tmp_path, 40, 5)
    assert len(chosen) == 40
    assert sum(one.source.startswith("optilock/queue/") for one in chosen) == 10
