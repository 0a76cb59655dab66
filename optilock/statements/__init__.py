"""Rows that are written by statements and not by objects.

:mod:`~optilock.statements.bulk` writes many rows by key with an answer for each,
:mod:`~optilock.statements.unchanged` is the condition for an ``update()`` of one's own, and
:mod:`~optilock.statements.unguarded` finds what goes past the guard.
"""
