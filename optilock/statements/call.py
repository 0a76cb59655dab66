"""One ``session.execute``, ``scalar`` or ``scalars`` of a watched session, as it was called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Update
from sqlalchemy.orm import Mapper, Session

from optilock.errors import ConfigurationError
from optilock.mapped import facts
from optilock.session.connections import bind_to_write, own_connection
from optilock.session.watched import watched
from optilock.undocumented.sessions import is_flushing

Execute = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A statement, its parameters, and how it is to be sent."""

    session: Session
    #: SQLAlchemy's own method.
    original: Execute
    statement: Any
    params: Any
    options: Mapping[str, Any]

    def send(self) -> Any:
        """What SQLAlchemy itself does."""
        return self.original(self.session, self.statement, self.params, **self.options)

    def with_statement(self, statement: Any) -> Call:
        """The same call of another statement."""
        return replace(self, statement=statement)

    @property
    def chosen(self) -> Mapping[str, Any]:
        """The execution options that count."""
        given = self.options.get("execution_options") or {}
        return {**self.statement.get_execution_options(), **given}

    @property
    def is_by_key(self) -> bool:
        """Does SQLAlchemy write rows by their primary keys, without a WHERE of the program's?"""
        if not isinstance(self.params, list) or not isinstance(self.statement, Update):
            return False
        return self.chosen.get("dml_strategy", "auto") in ("auto", "bulk")

    @property
    def synchronizes(self) -> bool:
        """Is the session to bring its objects up to date?"""
        return self.chosen.get("synchronize_session", "auto") is not False

    def connection(self, mapper: Mapper[Any] | None = None) -> Connection:
        """Where it is sent, as a statement of the class if there is one; the transaction begins."""
        binds = {"clause": self.statement} if mapper is None else bind_to_write(mapper)
        return own_connection(self.session, {**binds, **(self.options.get("bind_arguments") or {})})

    def flush_before(self) -> None:
        """Write what is pending, unless the call says otherwise."""
        flush_before(self.session, {"autoflush": self.session.autoflush, **self.chosen})

    def refuse_elsewhere(self, mapper: Mapper[Any]) -> None:
        """Refuse a statement for another schema than that of the session's objects.

        Its rows are not theirs, though they have the same keys: objects would take over values and
        versions of rows that they do not stand for.

        Raises:
            ConfigurationError: ``schema_translate_map`` is an option of the statement alone.
        """
        chosen = self.chosen
        if "schema_translate_map" not in chosen or not facts(mapper).guarded:
            return
        if _schemas(self.connection(mapper).get_execution_options()) != _schemas(chosen):
            raise ConfigurationError(
                f"The statement of {mapper.class_.__name__} has a schema_translate_map of its own,"
                " and the session reads and writes its objects in another schema: rows of one would"
                " be taken for rows of the other. Give the map to the engine,"
                " engine.execution_options(schema_translate_map=...), or to the connection,"
                " session.connection(execution_options=...). Nothing was sent."
            )


def _schemas(options: Mapping[str, Any]) -> dict[Any, Any]:
    """The map, without what SQLAlchemy's compiler adds to it (``_none``)."""
    given = options.get("schema_translate_map") or {}
    return {schema: there for schema, there in given.items() if schema != "_none"}


def flush_before(session: Session, options: Mapping[str, Any]) -> None:
    """Write what is pending, unless ``options`` say otherwise, or a listener of a flush asks."""
    if options.get("autoflush", True) and not is_flushing(session):
        session.flush()


@contextmanager
def stating(session: Session, seen_to: bool = True) -> Iterator[None]:
    """The statement is seen to here, and not once more where it reaches the connection."""
    known = watched(session)
    before, known.stating = known.stating, seen_to
    try:
        yield
    finally:
        known.stating = before
