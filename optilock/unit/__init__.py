"""Inside a unit of work: its options, its sessions, its transaction, and which unit is running.

:mod:`optilock.unit.unit_of_work` and :mod:`optilock.asyncio` are the ways to open one.
"""
