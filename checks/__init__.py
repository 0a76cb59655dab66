"""Programs that look for errors which one run of the tests seldom meets.

Each is a command, ``python -m checks.NAME``; docs/contributing/tests.md has the table of them. The
tests run a small part of each. Programs use the engines and models of :mod:`tests`.
"""
