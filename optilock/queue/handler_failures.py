"""The error that a handler raised, read once.

Everything that a program can raise becomes a :class:`Failure`: reading it never raises, although
the ``str()`` of an error is the program's code. A worker reads it where the handler ran, in its
thread or task, so text that takes for ever to make is a handler that never returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optilock.dialects.transient import FINAL
from optilock.errors import ConfigurationError
from optilock.queue.errors import MessageNotFound, ReceiptExpired

#: The most characters that are stored.
_LONGEST = 2_000
_name_of_class: Any = vars(type)["__name__"]


@dataclass(frozen=True)
class Failure:
    """The class and the text of an error; and the error itself, if it was one."""

    kind: str
    text: str
    error: BaseException | None = None
    #: Handling the message again would overwrite a value.
    final: bool = False
    #: Ids of messages that another receiver has, or that are gone.
    lost: tuple[int, ...] = ()

    def in_ascii(self) -> Failure:
        """Return it for a database that cannot store all characters."""
        text = self.text.encode("ascii", "replace").decode()
        return Failure(self.kind, text, self.error, self.final, self.lost)


def failure_of(error: object) -> Failure:
    """Return the stored form of an error, or of a text.

    Raises:
        ConfigurationError: it is neither.
    """
    given: Any = error
    its_class = type(given)  # isinstance() would ask its __class__, which may raise
    if issubclass(its_class, Failure):
        same: Failure = given
        return same
    if issubclass(its_class, str):
        return Failure("", _storable(given))
    if not issubclass(its_class, BaseException):
        raise ConfigurationError("error takes an exception or a text.")
    raised: BaseException = given
    kind = _kind_of(raised)
    return Failure(
        kind,
        _storable(f"{kind}: {_text_of(raised)}"),
        raised,
        final=issubclass(its_class, FINAL),
        lost=_lost_by(raised),
    )


def _kind_of(error: BaseException) -> str:
    """Return the name of its class, although a metaclass may replace ``__name__``."""
    return _storable(_name_of_class.__get__(type(error)))


def _text_of(error: BaseException) -> str:
    try:
        return "".join((str(error),))  # a plain text, not one with methods of its own
    except BaseException as second:
        return f"(it has no text: str() of it raised {_kind_of(second)})"


def _storable(text: str) -> str:
    """Return the text without what databases refuse; halves of surrogate pairs become "?"."""
    plain = "".join((text,))[: _LONGEST + 1]
    return plain.encode("utf-8", "replace").decode()[:_LONGEST].replace("\0", "")


def _lost_by(error: BaseException) -> tuple[int, ...]:
    if not issubclass(type(error), (MessageNotFound, ReceiptExpired)):
        return ()
    try:
        return tuple(getattr(error, "ids", ()))
    except BaseException:
        return ()
