"""No feature grows without a reason, which ``docs/contributing/sizes.md`` has."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

from checks.sizes import PACKAGE, code_lines, features, found

#: A feature that has become smaller by more lines has its new figure in the page.
_SLACK = 40


@functools.cache
def lines() -> dict[str, int]:
    return found()


def test_no_feature_has_more_code_than_its_page_says() -> None:
    now = lines()
    grown = {one.name: now[one.name] for one in features() if now[one.name] > one.lines}
    assert grown == {}, "write the figure and the reason into docs/contributing/sizes.md"
    smaller = [one.name for one in features() if one.lines - now[one.name] > _SLACK]
    assert smaller == [], "run python -m checks.sizes --write"


def test_each_file_is_of_a_feature_and_each_pattern_has_a_file() -> None:
    files = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")]
    assert set(lines()) == {one.name for one in features()}
    unused = {
        pattern
        for one in features()
        for pattern in one.patterns
        if not any(fnmatchcase(file, pattern) for file in files)
    }
    assert unused == set()


def test_lines_of_code_are_counted() -> None:
    source = '"""A text."""\n\nfrom a import (\n    b,\n)\n\n__all__ = ["f"]\n\n\n# A comment.\n'
    assert code_lines(source) == 0
    assert (
        code_lines(source + 'def f():\n    """A text.\n\n    More.\n    """\n    return b\n') == 2
    )
