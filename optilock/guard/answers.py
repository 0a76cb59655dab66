"""What SQLAlchemy's unit of work is told about a write that is held, or that missed.

Of a result it reads the row count, the values that came back, and which columns it must expire
or fill in (``compiled.prefetch`` and ``compiled.postfetch``). The classes here answer that much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optilock.conditions.write import Params, Shape

__all__ = ["Accepted", "Counted", "Nothing", "Unmoved"]


class Accepted:
    """The answer for rows that are held: every one of them counts as written."""

    __slots__ = ("compiled_parameters", "postfetch", "prefetch", "rowcount")
    prefetch: Sequence[Any]
    postfetch: Sequence[Any]

    returned_defaults = None
    effective_returning = None
    isinsert = False
    executemany = False

    def __init__(self, shape: Shape, *params: Params) -> None:
        self.prefetch = shape.prefetch
        self.postfetch = shape.postfetch
        self.compiled_parameters = params
        self.rowcount = len(params)

    @property
    def context(self) -> Accepted:
        return self

    @property
    def compiled(self) -> Accepted:
        return self


class Counted:
    """A real result whose count includes the rows that were judged, or left out, before."""

    def __init__(self, result: Any, rowcount: int, params: Any = None) -> None:
        self._result = result
        self.rowcount = rowcount
        self._params = params

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    @property
    def context(self) -> Any:
        return self._result.context if self._params is None else self

    @property
    def compiled_parameters(self) -> Any:
        """One set of parameters for each row that SQLAlchemy handed over, in its order."""
        return self._params if self._params is not None else self._result.compiled_parameters

    @property
    def compiled(self) -> Any:
        return self._result.context.compiled

    @property
    def executemany(self) -> bool:
        return True

    @property
    def returned_defaults(self) -> Any:
        return None if self.rowcount else self._result.returned_defaults


class Unmoved:
    """The answer for a row whose version stays what was read.

    Nothing came back for it, and the version is not to be read again: that would be the one of
    another writer.
    """

    rowcount = 1
    returned_defaults = None
    effective_returning = ()
    isinsert = False
    executemany = False

    def __init__(self, result: Any, shape: Shape) -> None:
        compiled = result.context.compiled
        version = shape.token.column
        self.prefetch = list(compiled.prefetch)
        self.postfetch = [column for column in compiled.postfetch if column is not version]
        self.compiled_parameters = result.context.compiled_parameters

    @property
    def context(self) -> Unmoved:
        return self

    @property
    def compiled(self) -> Unmoved:
        return self


class Nothing(Accepted):
    """The answer where every row of a statement was left out."""

    __slots__ = ()
    executemany = True

    def __init__(self, params: list[Params]) -> None:
        self.prefetch, self.postfetch = [], []  # SQLAlchemy adds to them
        self.compiled_parameters = tuple(params)
        self.rowcount = len(params)

    def supports_sane_multi_rowcount(self) -> bool:
        """Asked for link rows."""
        return True
