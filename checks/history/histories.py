"""A seed becomes a history: settings of the authors, and steps.

Steps are drawn one by one, with weights, and in short runs that lead into a corner: somebody else
changes the row between two steps, a transaction is left open and the object comes back later.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from checks.history.authors import Settings
from checks.history.mappings import MAPPINGS, POLICIES
from checks.history.operations import Step

__all__ = ["History", "history"]

_NAMES = "ABC"
#: Mappings that are met more often: the number of ways that lead through them.
_OFTEN = {
    "pages-counter": 6,
    "orders-counter": 6,
    "posts-counter": 2,
    "pages-rowversion": 2,
    "pages-timestamp": 3,
    "liked-counter": 3,
}
_COMMON = {
    "get": 6,
    "get_anew": 1,
    "get_locked": 3,
    "select_some": 3,
    "select_some_anew": 3,
    "select_anew": 2,
    "select_anew_unflushed": 2,
    "select_some_anew_unflushed": 2,
    "select_locked": 1,
    "read": 5,
    "refresh": 3,
    "refresh_one": 2,
    "refresh_locked": 1,
    "refresh_dropping": 2,
    "expire": 2,
    "expire_one": 2,
    "forget": 1,
    "set_": 16,
    "append": 5,
    "delete": 3,
    "insert": 1,
    "update_class": 2,
    "update_table": 2,
    "update_by_key": 2,
    "bulk": 1,
    "entity": 1,
    "touch_": 2,
    "verify_": 2,
    "take_tag": 1,
    "expect_tag": 2,
    "flush": 4,
    "commit": 12,
    "rollback": 2,
    "close": 3,
    "savepoint": 2,
    "release": 1,
    "back_to_savepoint": 2,
    "expunge": 1,
    "pickle_": 1,
    "add": 3,
    "merge": 3,
}
_COUNTING = {"like": 12, "like_by_statement": 1}
_FAMILY = {"load_children": 4, "add_child": 4, "remove_child": 3, "move_child": 3, "link": 0}
_THEIRS = (
    "set_@parent",
    "set_@parent",
    "set_@parent",
    "set_@child",
    "set_",
    "set_",
    "delete",
    "touch_@child",
    "update_table@parent",
)
_BY_KEY = ("update_by_key@parent", "update_by_key@child", "bulk@parent", "entity@parent")
_THEIRS_ADDING = ("like@parent",) * 8
#: Rows that belong together, by number: a parent and its children.
_TOGETHER = {"orders": ((0, 2, 3), (1, 4)), "posts": ((0, 2, 3), (1, 4)), "dogs": ((0,), (1,))}
_LOOK = (
    ("get",),
    ("get",),
    ("select_some",),
    ("get", "read"),
    ("take_tag",),
    ("verify_",),
    ("load_children",),
)
_DECIDE = (
    (),
    ("set_",),
    ("set_", "commit"),
    ("set_", "flush"),
    ("set_", "flush", "close"),
    ("update_table", "close"),
    ("set_", "flush", "pickle_", "rollback"),
    ("set_", "flush", "expunge", "rollback"),
    ("set_", "close"),
    ("savepoint", "set_", "flush", "back_to_savepoint"),
    ("commit",),
    ("close",),
    ("delete",),
    ("touch_",),
    ("verify_",),
    ("verify_", "set_"),
    ("move_child",),
    ("remove_child",),
)
_AGAIN = (
    (),
    ("get_locked",),
    ("select_some_anew",),
    ("select_some_anew_unflushed",),
    ("select_anew",),
    ("select_anew_unflushed",),
    ("refresh",),
    ("refresh_one",),
    ("expire",),
    ("expire_one",),
    ("read",),
    ("merge",),
    ("add",),
    ("add", "read"),
    ("expect_tag",),
    ("flush", "refresh_dropping"),
)
_EDIT = (
    ("set_",),
    ("set_",),
    ("append",),
    ("append",),
    ("delete",),
    ("touch_",),
    ("update_table",),
    ("update_by_key",),
    ("add_child",),
    ("move_child",),
    ("link",),
)
_EVERYDAY = (_LOOK, _DECIDE, None, _AGAIN, _EDIT)
_PROMISED = (
    (("verify_@parent",), ("take_tag@parent",)),
    ((), ("commit",), ("expect_tag@parent",)),
    None,
    (("refresh@parent",), ("select_anew@parent",), ("expire@parent",), ("expect_tag@parent",)),
    (("set_@child",), ("set_@child",), ("add_child@parent",), ("touch_@parent",)),
)
_LOCKED = (
    (("get",), ("select_some",)),
    None,
    (("get_locked@parent",), ("select_locked@parent",), ("refresh_locked@parent",)),
    (("append@parent",), ("read@parent", "set_@parent"), ("set_@child",)),
)
_ANEW = (
    (("get@parent",), ("get@parent", "read@parent")),
    ((), ("delete@parent",), ("set_@parent",), ("verify_@parent",)),
    None,
    (
        ("select_some_anew",),
        ("select_some_anew_unflushed@parent",),
        ("select_anew_unflushed@parent",),
        ("get_anew@parent",),
        ("refresh_one",),
        ("expire_one", "read"),
    ),
    (("append@parent",), ("set_@parent",), ("delete@parent",), ()),
)
_RETURNED = (
    (("get@parent",), ()),
    (
        ("set_@parent", "flush", "close"),
        ("set_@parent", "flush", "pickle_@parent", "rollback"),
        ("set_@parent", "flush", "expunge@parent", "rollback"),
        ("update_table@parent", "close"),
        ("set_@parent", "close"),
        ("set_@parent", "savepoint", "touch_@parent", "back_to_savepoint"),
    ),
    None,
    (("add",), ("merge",), ("add", "read@parent")),
    (("append@parent",), ("set_@parent",), ("touch_@parent",), ("delete@parent",)),
)
_EXPIRED = (
    (("get@parent",), ("set_@parent",), ("load_children@parent",)),
    (("commit",), ("rollback",), ("expire@parent",), ("flush", "commit")),
    None,
    ((), ("get@child",), ("read@child",)),
    (("set_@child",), ("touch_@child",), ("add_child@parent",), ("move_child@child",)),
)
#: Savepoints inside each other, each left open, released or undone.
_LAYERED = (
    (("get@parent",), ("get@parent", "set_", "flush")),
    (
        ("savepoint", "set_@parent"),
        ("savepoint", "set_@parent", "flush"),
        ("savepoint", "touch_@parent"),
    ),
    (("savepoint", "set_@parent", "flush"), ("savepoint", "touch_@parent", "flush")),
    ((), (), ("savepoint", "set_@parent", "flush"), ("back_to_savepoint", "set_@parent", "flush")),
    ((), ("back_to_savepoint",), ("release",), ("set_@parent", "flush", "back_to_savepoint")),
    (("rollback",), ("rollback",), ("rollback",), ("close",), ("release", "release", "commit")),
    None,
    (("set_@parent",), ("set_@parent",), ("add", "set_@parent"), ("delete@parent",)),
)
#: Two authors add to one counter, one of them beside another column.
_ADDING = (
    (("like@parent",), ("get@parent",), ("get@parent", "read@parent")),
    ((), ("flush",), ("savepoint", "like@parent", "flush")),
    None,
    (("like@parent",), ("like@parent", "flush", "like@parent"), ("like@parent", "touch_@parent")),
    (("set_@parent",), (), ("set_@parent", "flush", "like@parent"), ("flush", "set_@parent")),
    ((), ("back_to_savepoint",), ("release",), ("flush",)),
)
_STORIES = (_EVERYDAY, _PROMISED, _LOCKED, _ANEW, _RETURNED, _EXPIRED, _LAYERED)


class Focus(NamedTuple):
    """What a history is mostly about."""

    rows: tuple[int, ...]
    column: int


_WAYS = ("", "", "", "pipelined", "adaptive", "pessimistic")


@dataclass(frozen=True)
class History:
    """What one seed stands for, on whatever database."""

    seed: int
    mapping: str
    authors: tuple[Settings, ...]
    steps: tuple[Step, ...]

    def without(self, start: int, stop: int) -> History:
        return replace(self, steps=self.steps[:start] + self.steps[stop:])


def history(seed: int, mappings: tuple[str, ...] = MAPPINGS) -> History:
    chance = random.Random(seed)
    on = chance.choices(mappings, [_OFTEN.get(name, 1) for name in mappings])[0]
    count = 3 if chance.random() < 0.15 else 2
    authors = tuple(_settings(chance, on) for _ in range(count))
    steps = _steps(chance, on, count)
    if seed % 8 == 5:
        steps = _with_an_end(random.Random(f"end {seed}"), steps)
    return History(seed, on, authors, tuple(steps))


def _with_an_end(chance: random.Random, steps: list[Step]) -> list[Step]:
    """Let SQL text end the transaction of an author between two of the author's edits."""
    edits = [at for at, step in enumerate(steps) if step.operation == "set_"]
    for at in chance.sample(edits, min(2, len(edits))):
        step = steps[at]
        more = [step._replace(operation=name) for name in ("flush", "end_by_text")]
        steps = [*steps[: at + 1], *more, step._replace(column=step.column + 1), *steps[at + 1 :]]
    return steps


def _settings(chance: random.Random, on: str) -> Settings:
    odds = (4, 1, 1, 3) if on.startswith("liked") else (12, 1, 1, 1)
    unit = chance.random() < (0.4 if on.startswith("liked") else 0.2)
    return Settings(
        policy=chance.choices(POLICIES, odds)[0],
        expire_on_commit=chance.random() < 0.6,
        early=chance.random() < 0.5,
        unit=unit,
        way=chance.choice(_WAYS) if unit else "",
        listener=chance.choices(("", "before_flush", "after_update"), (18, 1, 1))[0],
        autocommit=chance.random() < 0.03,
    )


def _steps(chance: random.Random, on: str, count: int) -> list[Step]:
    weights = dict(_COMMON)
    if on.startswith(("orders", "posts")):
        weights |= _FAMILY
    if on.startswith("posts"):
        weights["link"] = 5
    if on.startswith("liked"):
        weights |= _COUNTING
    names, shares = list(weights), list(weights.values())
    steps: list[Step] = []
    rows = chance.choice(_TOGETHER.get(on.split("-")[0], ((0,), (1,), (2,))))
    focus = Focus(rows, chance.choice((0, 1, 2, 2, 3, 4)))
    while len(steps) < 14:
        kind = chance.random()
        if kind < 0.5:
            steps += _story(chance, focus, chance.randrange(1, count), on)
        elif kind < 0.6:
            steps += _theirs(chance, focus, chance.randrange(1, count), on)
        else:
            author = 0 if chance.random() < 0.75 else chance.randrange(1, count)
            steps.append(_step(chance, author, chance.choices(names, shares)[0], focus))
    return [*steps, *(Step(author, "commit") for author in range(count))]


def _step(chance: random.Random, author: int, name: str, focus: Focus) -> Step:
    """``set_@parent`` and ``set_@child`` say which row; else it is mostly one of the focus."""
    name, _, which = name.partition("@")
    row = chance.choice(focus.rows) if chance.random() < 0.75 else chance.randrange(6)
    column = focus.column if chance.random() < 0.5 else chance.randrange(6)
    if which:
        row, column = focus.rows[0 if which == "parent" else -1], focus.column
    return Step(author, name, row, column, chance.randrange(6))


def _theirs(chance: random.Random, focus: Focus, author: int, on: str) -> list[Step]:
    """Somebody else changes a row, and commits."""
    some = _THEIRS
    if on.startswith(("pages", "liked")):
        some = (*some, *_BY_KEY)
    if on.startswith("liked"):
        some = (*some, *_THEIRS_ADDING)
    return [
        Step(author, "close"),
        _step(chance, author, chance.choice(some), focus),
        Step(author, "commit"),
    ]


def _story(chance: random.Random, focus: Focus, other: int, on: str) -> list[Step]:
    """An author looks, decides, and looks again; somebody else was there between."""
    steps: list[Step] = []
    stories, odds = _STORIES, (4, 3, 2, 3, 2, 2, 7)
    if on.startswith("liked"):
        stories, odds = (*_STORIES, _ADDING), (*odds, 10)
    for part in chance.choices(stories, odds)[0]:
        if part is None:
            steps += _theirs(chance, focus, other, on)
        elif chance.random() < 0.9:
            steps += [_step(chance, 0, name, focus) for name in chance.choice(part)]
    return [*steps, Step(0, "commit")]
