"""The command line: ``optilock check``, ``conflicts``, ``demo``, ``probe`` and the others.

A command's module is imported when the command runs, or when ``--help`` lists it. The commands need
click and rich, and the library itself does not. ``demo`` and ``wiki`` belong to the package
``optilock_apps``. If a package is missing, the program names the extra to install instead of
showing a traceback.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich_click import Command, Context, RichGroup

#: The place of each command.
_COMMANDS = {
    "check": "optilock.check.command:check",
    "conflicts": "optilock.telemetry.conflict_report:report_conflicts",
    "demo": "optilock_apps.demo.command:demo",
    "migrate": "optilock.rollout.command:migrate",
    "probe": "optilock.probe.probe_command:probe",
    "purge": "optilock.exactly_once.command:purge",
    "queue": "optilock.queue.queue_command:queue",
    "wiki": "optilock_apps.wiki.command:wiki",
}
#: The extra of each top-level module that may be missing.
_EXTRAS = {
    "click": "cli",
    "rich": "cli",
    "rich_click": "cli",
    "fastapi": "wiki",
    "httpx": "probe",
    "jinja2": "wiki",
    "starlette": "wiki",
    "uvicorn": "wiki",
}


def main() -> None:
    """Run the program named on the command line."""
    try:
        commands()(prog_name="optilock")
    except ModuleNotFoundError as missing:
        name = missing.name or ""
        extra = _EXTRAS.get(_top_level(name))
        if extra is None:
            raise
        _end_without(name, extra, "the command line" if extra == "cli" else f"the {extra}")


def commands() -> RichGroup:
    """Return the click group of all commands.

    Raises:
        ModuleNotFoundError: the extra ``cli`` is not installed.
    """
    import rich_click as click

    class Commands(click.RichGroup):
        """Imports a command when it is needed."""

        def list_commands(self, context: Context) -> list[str]:
            return [name for name, place in _COMMANDS.items() if find_spec(_top_level(place))]

        def get_command(self, context: Context, name: str) -> Command | None:
            return _imported(name) if name in _COMMANDS else super().get_command(context, name)

    group = Commands(name="optilock", help="Optimistic concurrency for SQLAlchemy: no lost update.")
    click.version_option(package_name="optilock")(group)
    return group


def _imported(name: str) -> Command:
    try:
        command: Command = resolve_name(_COMMANDS[name])
    except ModuleNotFoundError as missing:
        if _top_level(missing.name or "") != "optilock_apps":
            raise
        _end_without("optilock_apps", name, f"the {name}")
    return command


def _end_without(module: str, extra: str, what: str) -> NoReturn:
    print(
        f'optilock: {what} needs {module}, which is not installed: pip install "optilock[{extra}]"',
        file=sys.stderr,
    )
    sys.exit(2)


def _top_level(module: str) -> str:
    return module.split(".")[0]


if __name__ == "__main__":
    main()
