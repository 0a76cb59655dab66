"""The pictures in ``docs/pictures``, made anew: ``python -m apps.tests.wiki.pictures``."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from apps.tests.programs import ROOT, visitor, wiki_at
from apps.tests.wiki.windows import conflict
from tests.support.chromium import Page, chromium, window

FOLDER = ROOT / "docs" / "pictures"

TEA = """\
Green tea

1. Boil the water and let it cool down to 80 degrees.
2. Put two spoons of leaves into the pot.
3. Pour the water over them and wait three minutes.
4. The same leaves can be used again.
"""
#: The step that Bob changes, and what Ada changes in the same minute.
BOB = ("cool down to 80 degrees", "cool down to 70 degrees, or it gets bitter")
MERGES = ("can be used again.", "can be used again, twice.")
CLASHES = ("80 degrees", "75 degrees")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        for name, happens in (
            ("occupied", occupied),
            ("merge", partial(meets, mine=MERGES)),
            ("clash", partial(meets, mine=CLASHES)),
        ):
            with tempfile.TemporaryDirectory() as folder, wiki_at(folder=Path(folder)) as address:
                with visitor(address) as somebody:
                    somebody.send(somebody.open("/new").form, name="Green tea", body=TEA)
                ada, bob = window(browser, address), window(browser, address)
                happens(ada, bob)
                ada.screenshot(path=FOLDER / f"wiki-{name}.png", full_page=True)
                print(FOLDER / f"wiki-{name}.png")


def occupied(ada: Page, bob: Page) -> None:
    for page in (bob, ada):
        page.goto("/pages/Green tea/edit")


def meets(ada: Page, bob: Page, mine: tuple[str, str]) -> None:
    conflict(ada, bob, "Green tea", mine=TEA.replace(*mine), theirs=TEA.replace(*BOB))


if __name__ == "__main__":
    main()
