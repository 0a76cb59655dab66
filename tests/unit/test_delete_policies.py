"""What each policy for deletes decides, and what is no policy."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Mapped, Session, mapped_column, registry, sessionmaker

from optilock import ConfigurationError, Entry, Versioned, watch
from optilock.resolvers import OnDelete, Resolution
from optilock.resolvers.resolution import decide_by_policy


class Thing:
    pass


class Child(Thing):
    __on_delete__ = OnDelete.IGNORE_GONE


def entry(model=Thing, *, action="delete", gone=False):
    return Entry(
        model=model,
        identity=(1,),
        kind="deleted" if gone else "updated",
        action=action,
        original={},
        current={},
        database=None if gone else {},
        changes={},
    )


@pytest.mark.parametrize(
    ("policy", "changed", "gone"),
    [
        (None, None, None),
        (OnDelete.STRICT, None, None),
        (OnDelete.IGNORE_GONE, None, Resolution.keep_database()),
        (OnDelete.IGNORE_VERSION, Resolution.overwrite(), Resolution.keep_database()),
    ],
)
def test_a_policy_decides_about_changed_rows_and_about_rows_that_are_gone(policy, changed, gone):
    assert decide_by_policy(entry(), policy) == changed
    assert decide_by_policy(entry(gone=True), policy) == gone


@pytest.mark.parametrize("action", ["update", "verify"])
@pytest.mark.parametrize("policy", OnDelete)
def test_a_policy_decides_about_deletes_only(policy, action):
    assert decide_by_policy(entry(action=action, gone=True), policy) is None


@pytest.mark.parametrize(
    ("on_delete", "settled"),
    [
        (None, True),
        (OnDelete.STRICT, False),
        ({Child: OnDelete.STRICT}, False),
        ({Thing: OnDelete.STRICT}, False),
        ({Thing: OnDelete.STRICT, Child: OnDelete.IGNORE_GONE}, True),
        ({int: OnDelete.STRICT}, True),
    ],
)
def test_what_was_said_goes_before_the_class(on_delete, settled):
    assert (decide_by_policy(entry(Child, gone=True), on_delete) is not None) is settled


@pytest.mark.parametrize("value", ["strict", True, OnDelete, {Thing: None}, {"Thing": None}])
def test_what_is_no_policy_is_refused(value):
    with pytest.raises(ConfigurationError, match=r"on_delete"):
        watch(sessionmaker(class_=type("Own", (Session,), {})), on_delete=value)


def test_a_class_with_something_else_is_refused_when_it_is_mapped():
    with pytest.raises(ConfigurationError, match=r"Doc.__on_delete__ is 'gone'.*OnDelete.STRICT"):

        @registry().mapped
        class Doc(Versioned):
            __tablename__ = "docs"
            __on_delete__ = "gone"
            id: Mapped[int] = mapped_column(primary_key=True)
