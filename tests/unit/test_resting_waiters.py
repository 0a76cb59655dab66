"""The waiters that a queue keeps between two calls."""

from __future__ import annotations

import threading

from optilock._coroutines import run_to_end
from optilock.queue.connections import FEW
from optilock.queue.waiters import RestingWaiters
from tests.support.waiting import LIMIT


def test_threads_that_end_together_leave_few_waiters():
    resting, together = RestingWaiters(), threading.Barrier(3)

    class Slow:
        reset = staticmethod(together.wait)
        closed: list[object] = []

        def close(self) -> None:
            self.closed.append(self)

    def put() -> None:
        run_to_end(resting.put("here", Slow()))

    threads = [threading.Thread(target=put) for _ in range(3 * FEW)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(resting._waiters) == FEW
    assert len({*Slow.closed}) == 2 * FEW
