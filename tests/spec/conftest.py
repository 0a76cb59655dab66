"""What several files of scenarios begin with."""

from __future__ import annotations

import pytest

from tests.spec.models import Label, Line, Order, Part


@pytest.fixture
def orders(tables, store):
    """Two orders with lines, a part, and two labels that nobody has."""
    tables(Order, Line, Part, Label)
    lines = [Line(id=1, parts=[Part(id=1, name="a")]), Line(id=2)]
    store(Order(id=1, name="a", lines=lines), Order(id=2, lines=[Line(id=9)]))
    store(Label(id=1), Label(id=2))
