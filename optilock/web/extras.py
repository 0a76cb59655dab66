"""A framework that is not installed: one sentence says which extra it comes with.

::

    with extra("flask"):
        from flask import Flask
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["extra"]


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import a framework, which comes with the extra of its ``name``.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or name).split(".")[0]
        raise ModuleNotFoundError(
            f"The web layer for {name} needs {package}, which is not installed:"
            f' pip install "optilock[{name}]"',
            name=missing.name,
        ) from missing
