"""Try every way to write on every engine, and write docs/reference/not-protected.md.

``python -m checks.not_protected``
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path

from checks.not_protected.outcomes import opened, outcomes_of
from checks.not_protected.page import PAGE, TITLES, page_of
from tests.engines import running


def main() -> None:
    found = {}
    with contextmanager(running)() as targets, tempfile.TemporaryDirectory() as folder:
        for name in TITLES:
            with opened(targets.get(name, Path(folder))) as engine:
                found[name] = outcomes_of(engine)
    PAGE.write_text(page_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
