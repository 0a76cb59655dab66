"""An option of a unit is one part, and what a part hears of is in the one order."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from optilock import ConfigurationError
from optilock.unit.isolation import ReadOnlyPart
from optilock.unit.options import Options
from optilock.unit.parts import Part


def test_two_parts_for_one_option_of_a_unit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two parts of this unit are for one option"):
        Options(read_only=True, parts=[ReadOnlyPart()])


def test_every_part_of_a_unit_is_named_by_its_option() -> None:
    options = Options(read_only=True)
    assert [part.option for part in options.all_parts] == ["read_only"]


def test_two_parts_that_want_one_option_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="an option of a unit has one part"):

        class Another(Part, option="read_only"):
            pass


def test_a_part_that_listens_by_itself_to_what_the_order_lists_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="registered once, for its sessionmaker"):

        class Listening(Part, option="listening"):
            def begin(self, session: Session) -> None:
                event.listen(session, "before_flush", print)


def test_a_decorated_listener_inside_of_a_part_is_refused_too() -> None:
    with pytest.raises(ConfigurationError, match=r"begin would hear of after_commit outside"):

        class Decorating(Part, option="decorating"):
            def begin(self, session: Session) -> None:
                @event.listens_for(session, "after_commit")
                def after_commit(session: Session) -> None: ...


def test_a_part_with_a_method_for_an_event_that_nobody_tells_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="would hear of after_flush outside"):

        class Waiting(Part, option="waiting"):
            def after_flush(self, session: Session) -> None: ...


def test_a_part_may_listen_to_what_the_order_does_not_list() -> None:
    class Own(Part, option="own"):
        def begin(self, session: Session) -> None:
            event.listen(session, "do_orm_execute", self.told)

        def told(self, *_: Any) -> None: ...

    assert Own.option == "own"
