"""One database under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, create_engine, event, make_url

from tests.engines.kept_tables import KeptTables

__all__ = ["KEPT", "Target"]


#: What creates the tables of a test's engine.
KEPT: WeakKeyDictionary[Engine, KeptTables | None] = WeakKeyDictionary()


@dataclass(frozen=True)
class Target:
    """A database under test: how to reach it, and what it can do."""

    #: For example ``"sqlite-wal"``; tests are chosen with ``-k sqlite-wal``.
    name: str
    family: str
    url: str
    #: Statements for every new connection.
    on_connect: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    #: Words that tests ask for; see ``tests/engines/__init__.py``.
    capabilities: frozenset[str] = frozenset()
    #: What creates tables that stay for the next test; ``None`` where each test creates its own.
    tables: KeptTables | None = None
    #: An engine of the same kind that outlives the test.
    like: Engine | None = None
    #: What connects in place of the driver, for an engine without options.
    connect: Callable[..., Any] | None = None
    #: The same database by an async driver, where a test asks for one.
    async_url: str | None = None

    def asynchronous(self, name: str, driver: str) -> Target:
        """The same database, reached by the async ``driver`` (``"postgresql+asyncpg"``)."""
        url = make_url(self.url).set(drivername=driver).difference_update_query(["ssl_disabled"])
        return replace(self, name=name, async_url=url.render_as_string(hide_password=False))

    def engine(self, **options: Any) -> Engine:
        """A new sync engine; the caller disposes it."""
        engine = create_engine(self.url, **{**self.options, **options})
        if self.connect is not None and not options:
            event.listen(engine, "do_connect", self._connected)
        self.prepare(engine)
        return engine

    def share(self, engine: Engine) -> None:
        """What was compiled for the dialect of an earlier engine serves this one, too."""
        if self.like is not None:
            engine.dialect.initialize = lambda connection: None  # it is replaced before it connects
            engine.dialect, engine._compiled_cache = self.like.dialect, self.like._compiled_cache
        KEPT[engine] = self.tables

    def _connected(self, dialect: Any, record: Any, positional: Any, named: Any) -> Any:
        assert self.connect is not None
        return self.connect(*positional, **named)

    def prepare(self, engine: Engine) -> None:
        """Run ``on_connect`` on every new connection of ``engine``."""
        if not self.on_connect:
            return

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, record: Any) -> None:
            cursor = connection.cursor()
            for statement in self.on_connect:
                cursor.execute(statement)
            cursor.close()
