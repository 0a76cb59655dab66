"""Names that a release of SQLAlchemy may not have, found at import and refused by ``watch()``.

A module that imports such a name itself would end the import of the application, with a traceback
through optilock. :func:`find_name` returns a substitute, and the first ``watch()`` refuses the
release with the missing name (:mod:`optilock._watched.guard.release`).
"""

from __future__ import annotations

import pkgutil
from typing import Any

#: The names that were not found.
not_found: list[str] = []


class _Substitute:
    """A class in the place of another one, or of a value; nothing uses it."""

    def __class_getitem__(cls, item: Any) -> type[_Substitute]:
        return cls


def find_name(name: str) -> Any:
    """Return the object with a name such as ``"sqlalchemy.orm:Session.flush"``."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        not_found.append(name.partition(":")[2])
        return _Substitute
