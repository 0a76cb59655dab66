"""Classes whose rows are no entities: what one statement by key cannot do is refused, with what to
use instead."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, inspect
from sqlalchemy.orm import Mapper, Session

from optilock.aggregates import roots_of
from optilock.errors import ConfigurationError
from optilock.mapped import GIVE_ONE, facts
from optilock.session.watched import is_watched
from optilock.statements.by_key import refuse_compared
from optilock.statements.version import class_stands_still

__all__ = ["mapper_of", "refuse_still"]

_INSTEAD = "Use optilock.apply(), or change the object in a session. Nothing was sent."


def mapper_of(model: Any, call: str) -> Mapper[Any]:
    """The mapper of a class whose rows the operation ``call`` can write.

    Raises:
        ConfigurationError: it cannot.
    """
    mapper = inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise ConfigurationError(f"entities.{call}() takes a mapped class, not {model!r}.")
    deletes = call == "delete"
    why = _why_not(mapper, call, deletes=deletes)
    if why is not None:
        raise ConfigurationError(f"entities.{call}({model.__name__}): {why}")
    if facts(mapper).compares:
        refuse_compared(mapper, f"entities.{call}()")
    return mapper


def _why_not(mapper: Mapper[Any], call: str, *, deletes: bool) -> str | None:
    known = facts(mapper)
    if not known.token:
        return f"the class has no version, so it has no ETag: {GIVE_ONE}."
    if known.maps_a_select or known.table_if_any is None:
        return f"the class is mapped to a SELECT, and its rows are stored elsewhere. {_INSTEAD}"
    if any(len(one.tables) > 1 for one in mapper.self_and_descendants):
        return (
            "its rows may be in several tables (joined inheritance), which one statement cannot"
            f" write. {_INSTEAD}"
        )
    if mapper.polymorphic_on is not None and not _is_mapped(mapper):
        return f"what says which class a row is, is no column of its own. {_INSTEAD}"
    if known.by_application and not deletes:
        return (
            "your program makes the versions of the class (Manual), and an entity operation has no"
            f" place for the next one. {_INSTEAD}"
        )
    roots = roots_of(mapper, by_links=deletes)
    if roots:
        return (
            f"its rows are parts of another ({', '.join(roots)}), whose version has to move as well"
            f" and which one statement cannot write. {_INSTEAD}"
        )
    if call.startswith("insert_or_") and mapper.single:
        return (
            "rows of other classes are in its table, and the key may be that of one. Use insert(),"
            " and where it raises AlreadyExists, replace() or merge(). Nothing was sent."
        )
    return None


def _is_mapped(mapper: Mapper[Any]) -> bool:
    column = mapper.polymorphic_on
    return isinstance(column, Column) and column in facts(mapper).columns.values()


def refuse_still(session: Session, mapper: Mapper[Any], call: str) -> None:
    """Refuse to move a version inside of a ``no_bump`` block.

    Raises:
        ConfigurationError: there is one for rows of the class.
    """
    if is_watched(session) and class_stands_still(session, mapper):
        raise ConfigurationError(
            f"entities.{call}({mapper.class_.__name__}) is refused inside of no_bump(), which keeps"
            " versions as they are: an entity that was written has another tag. Write it outside of"
            " the block."
        )
