"""Tools for tests of concurrent code: step sessions by hand, count statements, private servers."""

from optilock.testing.interleave import OutOfStep, Side, Step, interleave

__all__ = ["OutOfStep", "Side", "Step", "interleave"]
