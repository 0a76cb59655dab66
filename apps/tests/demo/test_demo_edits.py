"""The plan of edits, and what one edit changes."""

from __future__ import annotations

from types import SimpleNamespace

from optilock_apps.demo.edits import MOST, Edit, apply, hot_pages, inserted, plan

PAGES = ("with", "try", "class")


def edit(number: int = 1, *, place: float = 0.0) -> Edit:
    return Edit(editor=1, number=number, page="with", place=place, pause=0.0, remark="Checked.")


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_one() -> None:
    one, again, other = (plan(editors=3, edits=5, pages=PAGES, seed=s) for s in (1, 1, 2))
    assert one == again != other


def test_every_edit_has_a_mark_that_is_no_part_of_another() -> None:
    marks = [e.mark for own in plan(editors=12, edits=30, pages=PAGES, seed=1) for e in own]
    assert len(marks) == 360
    assert not any(a in b for a in marks for b in marks if a is not b)


def test_every_pause_is_a_few_milliseconds_and_every_place_is_on_the_page() -> None:
    edits = [e for own in plan(editors=4, edits=50, pages=PAGES, seed=3) for e in own]
    assert all(0.004 <= e.pause <= 0.024 and 0 <= e.place < 1 for e in edits)


def test_an_edit_changes_the_text_the_counter_and_the_tags() -> None:
    page = SimpleNamespace(body="First.\n\nSecond.", views=4, tags=["old"])
    apply(edit(7), page)
    assert page.body == "First.\n[edit 1-7] Checked.\n\nSecond."
    assert (page.views, page.tags) == (5, ["old", "edit-1-7"])


def test_an_edit_assigns_a_new_list_so_that_the_change_is_seen() -> None:
    tags: list[str] = []
    page = SimpleNamespace(body="", views=0, tags=tags)
    apply(edit(), page)
    assert tags == []


def test_the_place_chooses_the_paragraph() -> None:
    assert inserted("a\n\nb\n\nc", edit(place=0.99)).endswith("c\n[edit 1-1] Checked.")


def test_earlier_edits_do_not_move_later_ones_to_another_paragraph() -> None:
    once = inserted("a\n\nb", edit(1, place=0.6))
    assert inserted(once, edit(2, place=0.6)).split("\n\n")[0] == "a"


def test_the_pages_are_those_of_python_and_as_many_as_asked() -> None:
    assert [len(hot_pages(count)) for count in (1, 3, MOST)] == [1, 3, MOST]
    assert "context manager" in hot_pages(1)["with"]
