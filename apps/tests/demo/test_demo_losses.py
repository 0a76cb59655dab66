"""Lost edits are found, by mark, by tag and by counter; so are edits stored twice."""

from __future__ import annotations

from optilock_apps.demo.edits import Edit, Losses, Stored, compare, inserted

BODY = "First.\n\nSecond.\n\nThird."
ORIGINALS = {"with": BODY}


def edit(number: int, page: str = "with") -> Edit:
    place = (number % 3) / 3
    return Edit(editor=1, number=number, page=page, place=place, pause=0.0, remark="Checked.")


def page(*edits: Edit, views: int | None = None, tags: list[str] | None = None) -> Stored:
    body = BODY
    for each in edits:
        body = inserted(body, each)
    views = len(edits) if views is None else views
    return Stored("with", body, views, [e.tag for e in edits] if tags is None else tags)


def test_nothing_is_lost_when_every_edit_is_stored() -> None:
    assert compare(ORIGINALS, [page(edit(1), edit(2))], [edit(1), edit(2)]) == Losses(0, 0, ())


def test_an_overwritten_edit_is_lost() -> None:
    assert compare(ORIGINALS, [page(edit(2))], [edit(1), edit(2)]).lost == 1


def test_a_mark_without_its_tag_is_lost() -> None:
    stored = page(edit(1), edit(2), tags=["edit-1-2"])
    assert compare(ORIGINALS, [stored], [edit(1), edit(2)]).lost == 1


def test_a_counter_that_is_too_low_is_a_loss_though_all_marks_are_there() -> None:
    stored = page(edit(1), edit(2), edit(3), views=1)
    assert compare(ORIGINALS, [stored], [edit(1), edit(2), edit(3)]).lost == 2


def test_one_edit_lost_in_all_three_columns_is_one_loss() -> None:
    assert compare(ORIGINALS, [page()], [edit(1)]).lost == 1


def test_an_edit_that_was_not_committed_cannot_be_lost() -> None:
    assert compare(ORIGINALS, [page(edit(1))], [edit(1)]) == Losses(0, 0, ())


def test_a_mark_that_is_the_beginning_of_another_is_not_taken_for_it() -> None:
    assert compare(ORIGINALS, [page(edit(12))], [edit(1), edit(12)]).lost == 1


def test_losses_of_several_pages_are_added() -> None:
    originals = {"with": BODY, "try": BODY}
    stored = [page(), Stored("try", BODY, 0, [])]
    assert compare(originals, stored, [edit(1), edit(2, "try")]).lost == 2


def test_a_page_that_disappeared_took_its_edits_along() -> None:
    assert compare(ORIGINALS, [], [edit(1), edit(2)]) == Losses(2, 0, ("with",))


def test_an_edit_stored_twice_is_a_surplus() -> None:
    stored = page(edit(1), edit(1), views=2, tags=["edit-1-1"])
    assert compare(ORIGINALS, [stored], [edit(1)]).surplus == 1


def test_a_stored_edit_that_nobody_reported_is_a_surplus() -> None:
    assert compare(ORIGINALS, [page(edit(1), edit(2))], [edit(1)]).surplus == 1


def test_a_view_counted_twice_is_a_surplus() -> None:
    assert compare(ORIGINALS, [page(edit(1), views=2)], [edit(1)]).surplus == 1


def test_original_text_that_is_gone_is_damage() -> None:
    stored = Stored("with", "First.\n\nThird.", 0, [])
    assert compare(ORIGINALS, [stored], []).damaged == ("with",)
