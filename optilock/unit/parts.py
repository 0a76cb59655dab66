"""An option of a unit of work is one *part*, whose methods the unit calls as it goes on.

An application gives its own parts as ``parts=[...]``. A new keyword of the unit is a file with a
part, and its entries in ``optilock/unit/options.py``. The unit itself does not change::

    class Tagged(Part, option="tagged"):
        def connected(self, session: Session, connection: Connection) -> None: ...

The methods of a part are the moments at which it is called. The steps around a flush, and at the
begin and end of transactions, have one order, which :mod:`optilock._watched.session.order` lists. A
part that registers a listener of its own for one of these events would be outside that order, so
its class is refused. So is a second part for one option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from optilock._watched.session.order import ORDER
from optilock.errors import ConfigurationError


class Part:
    """The moments of a unit of work. One object serves many units, so it keeps its notes on
    ``session.info`` or ``connection.info``.

    Raises:
        ConfigurationError: (for the class) the option has a part already, or this one registers a
            listener of its own for an event that has its order in
            :mod:`optilock._watched.session.order`.
    """

    #: The keyword of the unit; the application's own have none, and may be several of a class.
    option: ClassVar[str] = ""

    def __init_subclass__(cls, *, option: str = "", **given: Any) -> None:
        super().__init_subclass__(**given)
        there = _parts.setdefault(option, cls) if option else cls
        if there is not cls and there.__qualname__ != cls.__qualname__:  # no reload
            raise ConfigurationError(
                f"{cls.__name__} wants to be the part for {option}=, which is"
                f" {there.__name__}: an option of a unit has one part. Give yours an option of its"
                " own: class Yours(Part, option='...')."
            )
        for name, member in vars(cls).items():
            is_event = name in ORDER and not hasattr(Part, name)
            for event in [name] if is_event else _listens_to(member):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} would hear of {event} outside of the one order of what"
                    " happens around a flush. A part has the methods opened, begin,"
                    " connected, before_flush, before_commit and after. A listener of the"
                    " application's is registered once, for its sessionmaker; optilock's own are"
                    " steps of the list in optilock/_watched/session/order.py."
                )
        cls.option = option

    def engine_options(self, engine: Engine) -> Mapping[str, Any]:
        """Return execution options of the engine, when the session first uses it."""
        return {}

    def opened(self, sessions: Any) -> None:
        """Run when a unit was made with these sessions, and not entered yet."""

    def begin(self, session: Session) -> None:
        """Run with the new session; nothing has been sent."""

    def connected(self, session: Session, connection: Connection) -> None:
        """Run when a transaction has begun on one more connection; the session has sent nothing."""

    def before_flush(self, session: Session) -> None:
        """Run after the body, if it raised no error; the pending changes are flushed next."""

    def before_commit(self, session: Session) -> None:
        """Run when everything is flushed; COMMIT is sent next."""

    def after(self, session: Session, error: BaseException | None) -> None:
        """Run after the transaction, committed if ``error`` is None; the session closes next."""


_parts: WeakValueDictionary[str, type[Part]] = WeakValueDictionary()


def _listens_to(member: Callable[..., Any] | object) -> list[str]:
    """Return the events of the list for which the function registers a listener itself."""
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


# -- for every unit -------------------------------------------------------------------------------


class StandingPart(Part):
    """A part of every unit of this process, after the unit's own. It chooses no engines."""

    def exited(self, session: Session) -> None:
        """Run last, in the task that has entered the unit; an async unit ends in another one."""


standing: tuple[StandingPart, ...] = ()


def leave_parts(parts: Iterable[StandingPart], session: Session) -> None:
    """Call the parts in the thread or task that has entered the unit."""
    for part in parts:
        part.exited(session)
