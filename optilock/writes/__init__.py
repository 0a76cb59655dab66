"""Guarded writes: what a statement of SQLAlchemy's unit of work means, and how rows are sent.

:mod:`shapes` reads the statement. :mod:`send` writes rows and says which of them missed; some it
locks and compares before they are written. :mod:`answers` is what SQLAlchemy gets as a result, with
what Python computes for a row. :mod:`commuting` adds to rows in whatever version they are. Nothing
here knows a flush.
"""
