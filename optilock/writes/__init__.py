"""Guarded writes: what a statement of the unit of work is, and how it is sent.

:mod:`shapes` reads the statement, :mod:`onupdate` fills in what Python computes, :mod:`send` writes
rows and says which of them missed, :mod:`look` locks rows and compares them before they are
written, and :mod:`answers` is what SQLAlchemy is told. Nothing here knows of a flush.
"""
