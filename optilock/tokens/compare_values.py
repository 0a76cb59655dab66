"""No column: the values that were read are compared with the stored ones.

For tables whose schema may not change, and for columns that other programs write without
knowing of a version::

    class Invoice(Versioned, Base):
        __version_token__ = CompareValues("status", "amount")     # these two
        __version_token__ = CompareValues.all()                   # every column that was loaded
        __version_token__ = CompareValues.changed()               # the columns that we change
        __version_token__ = (Counter(), CompareValues("owner_id"))  # a version, and a value besides

A row is written only if the compared values are still the ones that were read; NULL equals NULL.
Values are compared as Python values, by the rule of their type, so JSON, floating point, large
values and text in a case-insensitive collation are compared exactly as well: the rows are locked
and read first. One row of plain columns needs no look: its UPDATE carries the values in its WHERE.

Two things it cannot see: a value that was changed and changed back (A, B, A), and with
``changed()`` two writers of different columns, whose rules both hold only apart.

The comparison is the work of watched sessions and units of work; a plain ``Session`` would not
compare anything, so writing through one is refused. Nothing moves, so there is no ETag and
``touch`` has nothing to bump.
"""

from __future__ import annotations

from typing import Any, Literal

from optilock.errors import ConfigurationError

Which = Literal["named", "all", "changed"]


class CompareValues:
    """Compare loaded values with stored ones: of the named attributes, of all, or of the changed.

    Args:
        names: attributes of columns that are loaded with the row, a foreign key among them.

    Raises:
        ConfigurationError: no name, or one that is no text; when the class is mapped: one that is
            no column attribute, is deferred, is ignored, or is the primary key or the version.
    """

    __slots__ = ("names", "which")

    names: tuple[str, ...]
    which: Which

    def __init__(self, *names: str) -> None:
        if not names:
            raise ConfigurationError(
                "CompareValues() names nothing to compare: name attributes,"
                " CompareValues('status', 'amount'), or write CompareValues.all() or"
                " CompareValues.changed()."
            )
        for name in names:
            if not isinstance(name, str) or not name:
                raise ConfigurationError(
                    f"CompareValues({name!r}): write the names of attributes as texts, for example"
                    " CompareValues('status', 'amount')."
                )
        self.names = tuple(dict.fromkeys(names))
        self.which = "named"

    @classmethod
    def all(cls) -> CompareValues:
        """Every column that was loaded with the row, except ignored ones and the key."""
        return cls._made("all")

    @classmethod
    def changed(cls) -> CompareValues:
        """The columns that the write changes; of a row to delete every loaded one."""
        return cls._made("changed")

    @classmethod
    def _made(cls, which: Which) -> CompareValues:
        made = cls.__new__(cls)
        made.names, made.which = (), which
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompareValues):
            return NotImplemented
        return (self.which, self.names) == (other.which, other.names)

    def __hash__(self) -> int:
        return hash((self.which, self.names))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.which == "named":
            return (CompareValues, self.names)
        return (getattr(CompareValues, self.which), ())

    def __repr__(self) -> str:
        if self.which == "named":
            return f"CompareValues({', '.join(map(repr, self.names))})"
        return f"CompareValues.{self.which}()"
