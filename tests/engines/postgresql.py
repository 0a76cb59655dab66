"""PostgreSQL: from a URL, from the embedded server's wheel, or from a container."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from optilock.testing import servers
from tests.engines.target import Target
from tests.engines.urls import container, given

FAMILY = "postgresql"
NAMES = ("postgresql",)


def start(stack: ExitStack) -> str:
    url = given("OPTILOCK_TEST_POSTGRESQL_URL")
    if url is not None:
        return url
    try:
        return stack.enter_context(servers.postgresql()).url
    except servers.ServerMissing:
        url = container(stack, "postgresql")
        if url is None:
            raise
        return url


def target(name: str, server: str, folder: Path) -> Target:
    found = Target(
        name=name,
        family=FAMILY,
        url=server,
        async_url=server,
        capabilities=frozenset({"row-locks", "resolves-in-place", "batch-statement"}),
    )
    found.empty()
    return found
