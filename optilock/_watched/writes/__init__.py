"""Guarded writes: what a statement of SQLAlchemy's unit of work means, and how rows are sent.

:mod:`~optilock._watched.writes.shapes` reads the statement.
:mod:`~optilock._watched.writes.send` writes rows and returns those that missed; some it locks and
compares before they are written. :mod:`~optilock._watched.writes.answers` has the results that
SQLAlchemy gets, and the values that Python computes for a row. No module here uses a flush.
"""
