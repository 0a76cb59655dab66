"""The part that promises, for all that a unit reads, that it stays as it is until COMMIT."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError
from optilock.guard.promises import promises_of
from optilock.mapped.facts import facts
from optilock.mapped.keys import place_of
from optilock.session.order import listen_in
from optilock.session.records import Promise
from optilock.unit.parts import Part

__all__ = ["VerifyReads"]


class VerifyReads(Part, option="verify_reads"):
    """The part that verifies every versioned row that the unit's session loads."""

    def begin(self, session: Session) -> None:
        listen_in(session, loaded_as_persistent=_loaded)


def _loaded(session: Session, obj: Any) -> None:
    """Note the version, not the object: the session forgets objects that nobody holds."""
    state = instance_state(obj)
    mapper = state.mapper
    token = facts(mapper).token
    if token and token in state.dict:
        promises_of(session).add(
            Promise(mapper, place_of(state)[1], state.dict[token], demanded=False)
        )
    elif not token and facts(mapper).compares:
        raise ConfigurationError(
            f"verify_reads cannot verify rows of {mapper.class_.__name__}: the class compares"
            " values (CompareValues) and has no version. Give it a version as well, read it in a"
            " unit without verify_reads, or run the unit with optilock.serializable()."
        )
