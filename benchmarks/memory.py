"""How much memory does a dirty row take?

Rows are loaded, changed and flushed, and Python's allocations are followed (``tracemalloc``): what
the loaded rows hold, and what comes on top at the highest point of the flush, in bytes for each
row. What a driver allocates outside of Python is not seen.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

from benchmarks.plan import Plan
from benchmarks.servers import USUAL, Place
from benchmarks.subjects import ByOrm, Shape, build
from benchmarks.table import CountLine, Line

__all__ = ["DATABASES", "run"]

DATABASES = (USUAL[0], "sqlite", "mariadb")

_ORMS = ("native", "unversioned", "optilock")


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    rows = plan.many if plan.quick else 10 * plan.many
    with place.engine() as engine:
        for shape in (Shape.SAME, Shape.ALTERNATING):
            for name, subject in build(engine, rows, shape, only=_ORMS).items():
                assert isinstance(subject, ByOrm)
                subject()  # what is made once
                held, more = _followed(subject)
                for question, count in (("loaded", held), ("more in its flush", more)):
                    asked = f"{shape.value}: bytes of a row, {question}"
                    yield CountLine(asked, place.label, rows, count // rows, subject=name)


def _followed(subject: ByOrm) -> tuple[int, int]:
    """What the loaded rows hold, and what the flush takes at its highest point beyond them."""
    with subject.sessions() as session:
        gc.collect()
        tracemalloc.start()
        try:
            loaded = subject.load(session)
            held, _ = tracemalloc.get_traced_memory()
            subject.change(loaded)
            changed, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            session.flush()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        session.commit()
    return held, peak - changed
