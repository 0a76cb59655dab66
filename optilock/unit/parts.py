"""What an option of a unit of work is: one *part*, whose methods the unit calls as it goes on.

An application gives its own parts as ``parts=[...]``. A new keyword of the unit is a file with a
part, and its entries in ``optilock/unit/options.py``; the unit itself does not change::

    class Tagged(Part, option="tagged"):
        def connected(self, session: Session, connection: Connection) -> None: ...

A part says by its methods of which moments it wants to hear. What happens around a flush, and when
transactions begin and end, has one order, which :mod:`optilock.watched.session.order` lists. A part
that registers a listener of its own for one of these events would stand outside of that order, so
its class is refused. So is a second part for one option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError
from optilock.mapped import facts, place_of
from optilock.watched.guard.promises import promises_of
from optilock.watched.session.order import ORDER, listen_in
from optilock.watched.session.records import Promise


class Part:
    """The moments of a unit of work. One object serves many units: what it notes, it notes on
    ``session.info`` or ``connection.info``.

    Raises:
        ConfigurationError: (for the class) the option has a part already, or this one registers a
            listener of its own for an event that has its order in
            :mod:`optilock.watched.session.order`.
    """

    #: The keyword of the unit; the application's own have none, and may be several of a class.
    option: ClassVar[str] = ""

    def __init_subclass__(cls, *, option: str = "", **given: Any) -> None:
        super().__init_subclass__(**given)
        there = _parts.setdefault(option, cls) if option else cls
        if there is not cls and there.__qualname__ != cls.__qualname__:  # not read in once more
            raise ConfigurationError(
                f"{cls.__name__} wants to be the part for {option}=, which is"
                f" {there.__name__}: an option of a unit has one part. Give yours an option of its"
                " own: class Yours(Part, option='...')."
            )
        for name, member in vars(cls).items():
            heard = name in ORDER and not hasattr(Part, name)
            for event in [name] if heard else _listens_to(member):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} would hear of {event} outside of the one order of what"
                    " happens around a flush. A part has the methods opened, begin,"
                    " connected, before_flush, before_commit and after. A listener of the"
                    " application's is registered once, for its sessionmaker; optilock's own are"
                    " steps of the list in optilock/watched/session/order.py."
                )
        cls.option = option

    def engine_options(self, engine: Engine) -> Mapping[str, Any]:
        """Execution options of the engine, taken when the session first asks for it."""
        return {}

    def opened(self, sessions: Any) -> None:
        """A unit was made with these sessions, as the application gave them; it is not entered."""

    def begin(self, session: Session) -> None:
        """The session is new; nothing has been sent."""

    def connected(self, session: Session, connection: Connection) -> None:
        """A transaction has begun on one more connection; nothing has been sent by the session."""

    def before_flush(self, session: Session) -> None:
        """The body is over without an error; what is pending will be flushed next."""

    def before_commit(self, session: Session) -> None:
        """Everything is flushed; COMMIT comes next."""

    def after(self, session: Session, error: BaseException | None) -> None:
        """The transaction is over, committed when ``error`` is None; the session closes next."""


_parts: WeakValueDictionary[str, type[Part]] = WeakValueDictionary()


def _listens_to(member: Callable[..., Any] | object) -> list[str]:
    """The events of the list that a function registers a listener for by itself."""
    code = getattr(member, "__code__", None)
    if code is None or not {"listen", "listens_for"}.intersection(_names(code)):
        return []
    return [one for one in _constants(code) if isinstance(one, str) and one in ORDER]


def _names(code: CodeType) -> set[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)


def _constants(code: CodeType) -> Iterator[object]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _constants(one)
        else:
            yield one


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
        place = place_of(state)
        promised = Promise(mapper, place[1], state.dict[token], demanded=False)
        promises_of(session).add(place, promised)
    elif not token and facts(mapper).compares:
        raise ConfigurationError(
            f"verify_reads cannot verify rows of {mapper.class_.__name__}: the class compares"
            " values (CompareValues) and has no version. Give it a version as well, read it in a"
            " unit without verify_reads, or run the unit with optilock.serializable()."
        )
