"""Where a warning points to: the line of the application, not one of SQLAlchemy's or ours."""

from __future__ import annotations

import inspect


def level_of_caller() -> int:
    """``stacklevel=`` for :func:`warnings.warn` in the function that asks."""
    here = inspect.currentframe()
    level, frame = 1, None if here is None else here.f_back
    while frame is not None and frame.f_back is not None and _inside(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


def _inside(path: str) -> bool:
    path = path.replace("\\", "/")
    return "/sqlalchemy/" in path or ("/optilock/" in path and "/tests/" not in path)
