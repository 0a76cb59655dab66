"""What a request demands, as the entity operations take it."""

from __future__ import annotations

import pytest

from optilock import PreconditionRequired
from optilock.web.conditions import Conditions


def test_a_tag_is_what_the_operation_has_to_find() -> None:
    conditions = Conditions.of("PUT", [("If-Match", '"a"'), ("if-match", '"b"')])
    assert conditions.demands["if_match"] == ('"a"', '"b"')
    with pytest.raises(PreconditionRequired):
        Conditions.of("PUT", [])
