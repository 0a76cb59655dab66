"""Objects that the application's listeners to classes of SQLAlchemy do not notice.

The self-test makes mappers, sessions and an engine of its own. Listeners to *all* mappers or
engines may count statements, prepare connections or configure the application's classes. Nothing
here is needed for protection: where a release has no such setting, these listeners are called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from optilock._undocumented.mappers import mappers_in
from optilock._undocumented.names import find_name

C = TypeVar("C", bound=type[Any])

_mapperlib = find_name("sqlalchemy.orm:mapperlib")


def hide_events(cls: C) -> C:
    """Let listeners to the classes above ``cls`` not be called for objects of it."""
    setattr(cls, "_sa_propagate_class_events", False)  # noqa: B010
    return cls


@contextmanager
def without_flush(session: Session) -> Iterator[None]:
    """Let SQLAlchemy's own flush raise ``AssertionError``."""

    def refuse(*_: Any) -> None:
        raise AssertionError("flushed by SQLAlchemy")

    session.__dict__["_flush"] = refuse
    try:
        yield
    finally:
        del session.__dict__["_flush"]


@hide_events
class _Hidden:
    pass


def configure_hidden(registry: Any) -> None:
    """Call ``registry.configure()``, and no listener to objects or to the configuration."""
    with suppress(AttributeError, TypeError):
        for mapper in mappers_in(registry):
            manager: Any = mapper.class_manager
            manager.dispatch = type(manager).dispatch._for_class(_Hidden)
        with _mapperlib._CONFIGURE_MUTEX:
            before, _mapperlib._already_compiling = _mapperlib._already_compiling, True
            try:
                deque(_mapperlib._do_configure_registries({registry}, True), maxlen=0)
            finally:
                _mapperlib._already_compiling = before
    registry.configure()
