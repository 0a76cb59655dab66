"""The command line: ``optilock check``, ``demo``, ``migrate``, ``wiki``, and what later joins them.

The commands need click and rich, and the wiki needs more, which the library itself does not;
without them the program says how to get them instead of showing a traceback.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich_click import RichGroup

#: The extra that each top-level module comes with.
_EXTRAS = {
    "click": "cli",
    "rich": "cli",
    "rich_click": "cli",
    "fastapi": "wiki",
    "jinja2": "wiki",
    "starlette": "wiki",
    "uvicorn": "wiki",
}


def main() -> None:
    """Run the program named on the command line."""
    try:
        commands()(prog_name="optilock")
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get((missing.name or "").split(".")[0])
        if extra is None:
            raise
        what = "the wiki" if extra == "wiki" else "the command line"
        print(
            f"optilock: {what} needs {missing.name}, which is not installed:"
            f' pip install "optilock[{extra}]"',
            file=sys.stderr,
        )
        sys.exit(2)


def commands() -> RichGroup:
    """The click group with all commands; raises ``ModuleNotFoundError`` without the extra."""
    import rich_click as click
    from optilock_apps.demo.command import demo
    from optilock_apps.wiki.command import wiki

    from optilock.check.command import check
    from optilock.rollout.command import migrate

    group = click.RichGroup(
        name="optilock", help="Optimistic concurrency for SQLAlchemy: no lost update."
    )
    click.version_option(package_name="optilock")(group)
    group.add_command(check)
    group.add_command(demo)
    group.add_command(migrate)
    group.add_command(wiki)
    return group


if __name__ == "__main__":
    main()
