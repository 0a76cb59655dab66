"""Aggregates: a root whose version moves when anything that belongs to it changes.

::

    class Order(Versioned, Base):
        __version_root_of__ = ("lines",)          # names of its relationships
        lines: Mapped[list[Line]] = relationship(back_populates="order")

Whoever adds, changes, removes or re-parents a line moves the version of the order (of both orders),
once a flush, and checks it: two people who change different lines of one order conflict on the
order. Off by default: rows that do not depend on each other should not wait for each other.

Of a one-to-many relationship the rows of the children count, with all their columns that are not
ignored; of a many-to-many relationship the link rows, not the objects behind them. A child that is
itself a root passes it on. A new root has its first version anyway; one that is deleted is left
alone; one that is not in the session is read and locked, and one that is expired is checked in
the version that a watched session has seen, unless its parts are read: its row is read for that.
The root's entry in a conflict has no ``changes``, so ``merge_fields`` settles it.

:mod:`~optilock.aggregates.cover` says which relationships count and moves the versions, and
:mod:`~optilock.aggregates.roots` finds the roots of one object that changed. They work before each
flush (:mod:`optilock.session.order`), in plain sessions as well.
Statements that write children around the session (``update(Line)``, SQL) are not seen.
"""
