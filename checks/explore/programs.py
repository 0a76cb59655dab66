"""Small units as texts, for searches with and without pruning.

Words: ``r1`` reads row 1, ``w1`` writes the sum of what was read and one into it, ``a1`` adds one
in the database, ``l1`` reads with a lock, ``d1`` deletes it, ``c`` counts all rows, ``i`` adds a
row, ``t`` adds one by a statement that is text, ``e`` commits and goes on in another transaction,
``s1`` writes row 1 in a savepoint that is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.orm import Session

from checks.explore.rows import Counter, Rows, Slot

ROWS: Rows = {Counter: [{"id": 1, "n": 1}, {"id": 2, "n": 10}], Slot: []}
PAIRS = [
    ("r1 w1", "r1 w1"),
    ("r1 w1", "r1 w2"),
    ("r1 w2", "r2 w1"),
    ("a1", "a1"),
    ("a1 a2", "a2 a1"),
    ("a1 a2", "r1 r2"),
    ("a1 r2", "a2 r1"),
    ("l1 w1", "l1 w1"),
    ("l1 w2", "l2 w1"),
    ("l1 w1", "r1 w1"),
    ("c i", "c i"),
    ("c", "i a1"),
    ("i", "i"),
    ("i c", "d1"),
    ("d1", "r1 w1"),
    ("d1", "a1 r1"),
    ("d1 i", "c"),
    ("t", "r1 w1"),
    ("t", "r2"),
    ("r1 e a1", "a1"),
    ("a1 e r1", "r1 w1"),
    ("a1 e a2", "r2 r1"),
    ("s1 r1", "r1 w1"),
    ("s1 a2", "a1"),
    ("s1", "l1 w1"),
    ("r1", "r2"),
    ("a1", "a2"),
    ("r1 w1", "c"),
    ("r2 a1", "r1 a2"),
    ("a1 r1", "a1"),
]


def program(sessions: Any, words: str, name: str) -> Callable[[], list[int]]:
    """Return the unit; it returns what it has read."""

    def unit() -> list[int]:
        seen: list[int] = []
        for part in words.split(" e "):
            with sessions.begin() as session:
                for word in part.split():
                    _do(session, word[0], int(word[1:] or 1), seen)
        return seen

    unit.__name__ = name
    return unit


def _do(session: Session, word: str, number: int, seen: list[int]) -> None:
    row = Counter.id == number
    if word == "s":
        nested = session.begin_nested()
        session.execute(update(Counter).where(row).values(n=99))
        nested.rollback()
    elif word in "rl":
        query = select(Counter.n).where(row)
        seen.append(session.scalar(query.with_for_update() if word == "l" else query) or 0)
    elif word == "c":
        seen.append(session.scalar(select(func.count()).select_from(Slot)) or 0)
    else:
        session.execute(_WRITES[word](row, sum(seen) + 1))


_WRITES: dict[str, Callable[[Any, int], Any]] = {
    "w": lambda row, value: update(Counter).where(row).values(n=value),
    "a": lambda row, value: update(Counter).where(row).values(n=Counter.n + 1),
    "d": lambda row, value: delete(Counter).where(row),
    "i": lambda row, value: insert(Slot).values(room=1, hour=value),
    "t": lambda row, value: text("UPDATE x_counters SET n = n + 1 WHERE id = 1"),
}


def programs(sessions: Any, pair: tuple[str, str]) -> tuple[Any, Any]:
    return tuple(program(sessions, words, name) for words, name in zip(pair, "ab", strict=True))
