"""What Retry-After asks for."""

from __future__ import annotations

import httpx2
import pytest
from optilock_client.waits import backoff, retry_after

NOW = "Sun, 06 Nov 1994 08:49:30 GMT"


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7),
        ("Sun Nov  6 08:49:37 1994", 7),
        ("Sun, 06 Nov 1994 08:49:20 GMT", 0),
        (None, 0),
        ("", 0),
        ("soon", 0),
        ("-5", 0),
        ("1.5", 0),
        ("\u0667", 0),
        ("9" * 400, float("inf")),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_servers_clock(
    asked: str | None, seconds: float
) -> None:
    headers = {"Date": NOW} if asked is None else {"Date": NOW, "Retry-After": asked.encode()}
    assert retry_after(httpx2.Response(503, headers=headers)) == seconds


def test_a_date_without_the_servers_clock_is_compared_with_ours() -> None:
    assert retry_after(httpx2.Response(503, headers={"Retry-After": NOW})) == 0
    late = httpx2.Response(503, headers={"Retry-After": "Sun, 06 Nov 2994 08:49:30 GMT"})
    assert retry_after(late) > 1e9


def test_waits_grow_to_a_limit_and_differ() -> None:
    assert all(0 <= backoff(attempt) <= 0.05 * 2**attempt for attempt in range(5))
    assert all(backoff(attempt) <= 2 for attempt in range(100))
    assert len({backoff(9) for _ in range(9)}) > 1
