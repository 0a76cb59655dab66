"""A version in a payload for an SQLModel is refused in each way in which it may be given."""

from __future__ import annotations

from typing import Any

import pytest
from sqlmodel import Field, SQLModel

from optilock import ConfigurationError, Versioned


class Named(SQLModel):
    name: str


class Payload(Named):
    version: int


class Hero(Versioned, Named, table=True):
    __tablename__ = "heroes_of_payloads"
    id: int | None = Field(default=None, primary_key=True)


SENT = Payload(name="Bob", version=1)
VALUES = SENT.model_dump()


@pytest.mark.parametrize(
    "give",
    [
        lambda hero: hero.sqlmodel_update(SENT),
        lambda hero: hero.sqlmodel_update(VALUES),
        lambda hero: hero.sqlmodel_update({}, update={"version": 1}),
        lambda hero: Hero(**VALUES),
        lambda hero: Hero.model_validate(VALUES),
        lambda hero: Hero.model_validate(SENT),
        lambda hero: Hero.model_validate({"name": "Bob"}, update={"version": 1}),
        lambda hero: setattr(hero, "version", 1),
    ],
    ids=["object", "dict", "update", "init", "validated", "of object", "of update", "set"],
)
def test_a_version_in_a_payload_is_refused(give: Any) -> None:
    hero = Hero(id=1, name="Ada")
    with pytest.raises(ConfigurationError, match=r"Hero\.version"):
        give(hero)


def test_payloads_without_a_version_are_taken() -> None:
    hero = Hero.model_validate(Named(name="Ada"))
    hero.sqlmodel_update({"name": "Eva"})
    assert (hero.name, Hero.model_validate(hero).name) == ("Eva", "Eva")
