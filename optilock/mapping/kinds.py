"""Which unusual kinds of classes the process has mapped: nothing is asked for a kind without one.

``shared``    a table with rows of two hierarchies (:mod:`optilock.mapping.one_class`)
``compared``  values of rows are compared (:mod:`optilock.mapping.compared`)
``kept``      originals of mutable values are kept (:mod:`optilock.mapping.originals`)
"""

from __future__ import annotations

__all__ = ["there_are"]


class _Kinds:
    shared = False
    compared = False
    kept = False


there_are = _Kinds()
