"""Rows that the database makes itself: so many numbers, as a WITH clause in front of a SELECT."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NUMBERS"]

_RECURSIVE = (
    "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :most)"
)
# It stops a recursion after 1,000 rounds, and has tables of numbers.
_SEQUENCE = "WITH numbers AS (SELECT seq AS n FROM seq_1_to_10000000 WHERE seq <= :most)"

#: Name of SQLAlchemy's dialect -> the clause: ``numbers.n`` is 1 to ``:most``.
NUMBERS: Mapping[str, str] = {
    "postgresql": "WITH numbers AS (SELECT generate_series(1, :most) AS n)",
    "sqlite": _RECURSIVE,
    "mariadb": _SEQUENCE,
    "mysql": _SEQUENCE,
}
