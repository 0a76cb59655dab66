"""A class that says what differs between databases stays small enough to be read at once.

A question is a method or an attribute that another class of ``optilock.dialects`` overrides.
:class:`~optilock.dialects.Database` has none of its own but its ``names``: it lists the features.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path

from optilock import dialects
from optilock.dialects import Database, base

#: The most questions of one class, and lines of the file that lists the features.
_QUESTIONS, _LINES = 12, 200
#: Features of which an engine names a class that is made where it is used.
_MADE_ELSEWHERE = {
    "catalogue",
    "change_notices",
    "guard_triggers",
    "messages",
    "rollout",
    "scope_triggers",
}


def _classes() -> Iterator[type]:
    for found in pkgutil.walk_packages(dialects.__path__, f"{dialects.__name__}."):
        module = import_module(found.name)
        for one in vars(module).values():
            if isinstance(one, type) and one.__module__ == module.__name__:
                yield one


def _questions(kind: type, classes: list[type]) -> set[str]:
    below = [one for one in classes if kind in one.__mro__[1:]]
    return {
        name
        for name in vars(kind)
        if not name.startswith("__") and any(name in vars(one) for one in below)
    }


def test_no_class_has_more_questions_than_can_be_read_at_once() -> None:
    classes = list(_classes())
    many = {kind.__qualname__: _questions(kind, classes) for kind in classes}
    features = many.pop(Database.__qualname__)
    assert {name: found for name, found in many.items() if len(found) > _QUESTIONS} == {}
    made = {name for name in features if isinstance(vars(Database)[name], cached_property)}
    assert features - made == {"names"} | _MADE_ELSEWHERE, "a question belongs to a feature"


def test_the_file_that_lists_the_features_is_short() -> None:
    source = Path(inspect.getfile(base)).read_text(encoding="utf-8")
    assert len(source.splitlines()) < _LINES


def test_an_engine_has_a_file_for_each_feature_that_it_answers_differently() -> None:
    """Of the same name as the feature's, so that one is found from the other."""
    for engine in ("postgresql", "mariadb", "sqlite"):
        database = import_module(f"optilock.dialects.{engine}.database")
        [kind] = [one for one in vars(database).values() if _is_engine(one, database.__name__)]
        for name, value in vars(kind).items():
            if isinstance(value, cached_property):
                assert value.func.__module__ == f"optilock.dialects.{engine}.{name}"  # type: ignore[attr-defined]
                assert import_module(f"optilock.dialects.{name}")


def _is_engine(one: object, module: str) -> bool:
    return isinstance(one, type) and issubclass(one, Database) and one.__module__ == module
