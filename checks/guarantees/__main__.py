"""Run every scenario on every engine, and write docs/reference/guarantees.md.

::

    python -m checks.guarantees
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path

from checks.guarantees.orders import OF_TWO, orders
from checks.guarantees.outcomes import Outcomes, opened, outcomes
from checks.guarantees.page import PAGE, TITLES, Page, page_of
from checks.guarantees.scenarios import SCENARIOS
from checks.guarantees.twice import outcomes_of_requests
from tests.engines import running


def main() -> None:
    scenarios: dict[tuple[str, str], Outcomes] = {}
    requests: dict[str, tuple[str, ...]] = {}
    explored: dict[tuple[str, str], tuple[str, ...]] = {}
    with contextmanager(running)() as targets, tempfile.TemporaryDirectory() as folder:
        for name in TITLES:
            with opened(targets.get(name, Path(folder))) as engine:
                for key, scenario in SCENARIOS.items():
                    scenarios[name, key] = outcomes(scenario, engine, name)
                for key in OF_TWO:
                    explored[name, key] = orders(SCENARIOS[key], engine, name)
                requests[name] = outcomes_of_requests(engine)
    PAGE.write_text(page_of(Page(scenarios, requests, explored)), encoding="utf-8")


if __name__ == "__main__":
    main()
