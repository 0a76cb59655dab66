"""The mapped classes behind what a user names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapper, registry

from optilock.errors import ConfigurationError

__all__ = ["mappers_of"]


def mappers_of(models: Any) -> list[Mapper[Any]]:
    """The mappers, configured, by the names of their classes.

    Raises:
        ConfigurationError: there is none, or they do not fit together.
    """
    found = dict.fromkeys(_mappers(models))
    if not found:
        raise ConfigurationError(
            f"{_name_of(models)} has no mapped classes: name the module or the declarative base"
            " that has the application's models."
        )
    _configure({mapper.registry for mapper in found})
    return sorted(found, key=lambda mapper: (mapper.class_.__module__, mapper.class_.__qualname__))


def _configure(registries: Iterable[registry]) -> None:
    """As the first query would: relationships that lead nowhere are found here."""
    try:
        for known in registries:
            known.configure(cascade=True)
    except SQLAlchemyError as error:
        raise ConfigurationError(
            f"The models cannot be used: {error}. Import all modules that have models, or name"
            " them all."
        ) from error


def _mappers(models: Any) -> Iterator[Mapper[Any]]:
    if isinstance(models, registry):
        yield from models.mappers
    elif isinstance(models, ModuleType):
        for value in vars(models).values():
            if isinstance(value, (registry, type)):
                yield from _mappers(value)
    elif isinstance(models, type):
        yield from _of_class(models)
    elif isinstance(models, Iterable) and not isinstance(models, (str, bytes)):
        for one in models:
            yield from _mappers(one)


def _of_class(cls: type[Any]) -> Iterator[Mapper[Any]]:
    mapper = inspect(cls, raiseerr=False)
    known = getattr(cls, "registry", None)
    if isinstance(mapper, Mapper):
        yield mapper
    elif isinstance(known, registry):
        yield from known.mappers


def _name_of(models: Any) -> str:
    return getattr(models, "__name__", None) or type(models).__name__
