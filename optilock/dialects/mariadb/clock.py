"""MariaDB's clock: see :mod:`optilock.conditions.clock`.

``UTC_TIMESTAMP`` and ``NOW`` are the begin of the statement, ``SYSDATE`` is now, in the time zone
of the session. So the time that the statement has taken is added to its begin in UTC.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.conditions.clock import Clock, Later

_NOW = "timestampadd(microsecond, timestampdiff(microsecond, now(6), sysdate(6)), utc_timestamp(6))"


@compiles(Clock, "mysql", "mariadb")
def _clock(element: Clock, compiler: Any, **options: Any) -> str:
    return _NOW


@compiles(Later, "mysql", "mariadb")
def _later(element: Later, compiler: Any, **options: Any) -> str:
    moment, length = (compiler.process(one, **options) for one in element.clauses)
    return f"timestampadd(microsecond, 1000 * {length}, {moment})"
