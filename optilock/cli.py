"""The command line: ``optilock check``, ``demo``, ``migrate``, and what later joins them.

The commands need click and rich, which the library itself does not; without them the program
says how to get them instead of showing a traceback.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich_click import RichGroup

#: Top-level modules that come with the extra ``cli``.
_EXTRAS = ("click", "rich", "rich_click")


def main() -> None:
    """Run the program named on the command line."""
    try:
        group = commands()
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in _EXTRAS:
            raise
        print(
            f"optilock: the command line needs {missing.name}, which is not installed:"
            ' pip install "optilock[cli]"',
            file=sys.stderr,
        )
        sys.exit(2)
    group(prog_name="optilock")


def commands() -> RichGroup:
    """The click group with all commands; raises ``ModuleNotFoundError`` without the extra."""
    import rich_click as click

    from optilock.check.command import check
    from optilock.demo.command import demo
    from optilock.rollout.command import migrate

    group = click.RichGroup(
        name="optilock", help="Optimistic concurrency for SQLAlchemy: no lost update."
    )
    group.add_command(check)
    group.add_command(demo)
    group.add_command(migrate)
    return group


if __name__ == "__main__":
    main()
