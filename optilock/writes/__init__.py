"""Guarded writes: what a statement of SQLAlchemy's unit of work means, and how rows are sent.

:mod:`shapes` reads the statement. :mod:`onupdate` fills in what Python computes. :mod:`send` writes
rows and says which of them missed. :mod:`look` locks rows and compares them before they are
written. :mod:`answers` is what SQLAlchemy gets as a result. Nothing here knows a flush.
"""
