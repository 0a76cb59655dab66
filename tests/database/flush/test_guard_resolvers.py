"""What each resolver does with each kind of conflict, in the transaction that met it."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.exc import InvalidRequestError, OperationalError, PendingRollbackError
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    client_wins,
    events,
    is_transient,
    merge_fields,
    reject,
    store_wins,
)
from optilock.errors import CannotMerge
from optilock.resolvers import Resolution, add_delta, merge_json, merge_set, per_field
from tests.support.ids import told
from tests.support.models import (
    Account,
    Animal,
    Clocked,
    Comment,
    Decided,
    Dog,
    Eager,
    Manager,
    Native,
    Note,
    Page,
    Post,
    Seat,
    Settings,
    Stamped,
)

pytestmark = pytest.mark.needs("resolves-in-place")
rows = pytest.mark.parametrize("count", [1, 3])

ROW = {"id": 0, "owner": "a", "balance": 1, "note": "n", "version": 1}
sum_of_both = per_field(balance=add_delta)


def write_ours(entry):
    return Resolution.write({"balance": 77})


def prepared(store, watched, resolver, count):
    """``count`` accounts like ROW; the first of them is the one that conflicts."""
    store(*(Account(id=n, owner="a", balance=1, note="n") for n in range(count)))
    session = watched(resolver)
    found = session.scalars(select(Account).order_by(Account.id)).all()
    for row in found[1:]:
        row.balance = 10
    return session, found[0]


def settled(session, obj, stored, key=0):
    """Flush and commit; what the object holds after the flush is what is stored."""
    session.flush()
    assert obj not in session.dirty
    assert obj not in session.deleted
    names = inspect(type(obj)).column_attrs.keys()
    held = {name: obj.__dict__.get(name) for name in names}
    session.commit()
    found = stored(type(obj), key)
    assert held == found
    return found


# -- both updated ---------------------------------------------------------------------------------


@rows
@pytest.mark.parametrize(
    ("resolver", "expected"),
    [
        (client_wins, {"owner": "ours", "balance": 10, "note": "theirs", "version": 3}),
        (store_wins, {"owner": "a", "balance": 5, "note": "theirs", "version": 2}),
        (sum_of_both, {"owner": "ours", "balance": 14, "note": "theirs", "version": 3}),
        (write_ours, {"owner": "ours", "balance": 77, "note": "theirs", "version": 3}),
    ],
)
def test_both_updated(store, watched, other, stored, count, resolver, expected):
    """EF-52"""
    session, account = prepared(store, watched, resolver, count)
    account.owner, account.balance = "ours", 10
    other(Account, 0, balance=5, note="theirs")

    assert settled(session, account, stored) == {"id": 0, **expected}
    assert [stored(Account, n)["balance"] for n in range(1, count)] == [10] * (count - 1)


@rows
@pytest.mark.parametrize("resolver", [merge_fields, per_field(note=add_delta), reject])
def test_both_updated_the_same_column_and_it_is_refused(
    store, watched, other, refused, count, resolver
):
    """EX-10"""
    session, account = prepared(store, watched, resolver, count)
    account.owner, account.balance = "ours", 10
    other(Account, 0, balance=5, note="theirs")
    [entry] = refused(session).entries

    assert entry.conflicting == {"balance"}
    assert session.is_active
    assert (account.balance, account.version) == (10, 1)


@rows
@pytest.mark.parametrize("resolver", [merge_fields, client_wins, sum_of_both])
def test_both_updated_other_columns(store, watched, other, stored, count, resolver):
    """EX-10"""
    session, account = prepared(store, watched, resolver, count)
    account.owner = "ours"
    other(Account, 0, note="theirs")

    assert settled(session, account, stored) == {
        **ROW, "owner": "ours", "note": "theirs", "version": 3,
    }  # fmt: skip


@rows
def test_both_updated_to_equal_values_and_nothing_is_left_to_write(
    store, watched, other, stored, count
):
    session, account = prepared(store, watched, merge_fields, count)
    account.owner = "same"
    other(Account, 0, owner="same", note="theirs")

    assert settled(session, account, stored) == {
        **ROW, "owner": "same", "note": "theirs", "version": 2,
    }  # fmt: skip


# -- we update, they deleted ----------------------------------------------------------------------


@rows
@pytest.mark.parametrize(
    ("resolver", "balance"), [(client_wins, 10), (write_ours, 77)], ids=["client_wins", "write"]
)
def test_they_deleted_and_the_row_is_inserted_again(
    store, watched, gone, stored, count, resolver, balance
):
    session, account = prepared(store, watched, resolver, count)
    account.balance = 10
    gone(Account, 0)
    found = settled(session, account, stored)

    assert {**found, "version": None} == {**ROW, "balance": balance, "version": None}
    assert found["version"] > 1
    account.balance = 11
    session.commit()
    assert stored(Account, 0)["balance"] == 11


@rows
def test_they_deleted_and_our_object_leaves_the_session(store, watched, gone, stored, count):
    session, account = prepared(store, watched, store_wins, count)
    account.balance = 10
    gone(Account, 0)
    session.flush()

    assert account not in session
    assert inspect(account).detached
    session.commit()
    assert stored(Account, 0) is None
    assert [stored(Account, n)["balance"] for n in range(1, count)] == [10] * (count - 1)


@rows
@pytest.mark.parametrize("resolver", [merge_fields, sum_of_both, reject])
def test_they_deleted_and_it_is_refused(store, watched, gone, refused, stored, count, resolver):
    session, account = prepared(store, watched, resolver, count)
    account.balance = 10
    gone(Account, 0)
    [entry] = refused(session).entries

    assert (entry.kind, entry.identity) == ("deleted", (0,))
    assert account in session.dirty
    assert len(refused(session).entries) == 1
    session.expunge(account)
    session.commit()
    assert stored(Account, 0) is None


# -- we delete, they updated ----------------------------------------------------------------------


def prepared_to_delete(store, watched, resolver, count):
    store(*(Account(id=n, owner="a", balance=1, note="n") for n in range(count)))
    session = watched(resolver)
    found = session.scalars(select(Account).order_by(Account.id)).all()
    for row in found:
        session.delete(row)
    return session, found[0]


@rows
def test_we_delete_and_the_row_is_deleted(store, watched, other, stored, count):
    session, account = prepared_to_delete(store, watched, client_wins, count)
    other(Account, 0, owner="theirs")
    session.flush()

    assert inspect(account).deleted
    session.commit()
    assert [stored(Account, n) for n in range(count)] == [None] * count


@rows
def test_we_delete_and_the_row_is_kept(store, watched, other, stored, count):
    session, account = prepared_to_delete(store, watched, store_wins, count)
    other(Account, 0, owner="theirs")

    assert settled(session, account, stored) == {**ROW, "owner": "theirs", "version": 2}
    assert inspect(account).persistent
    assert [stored(Account, n) for n in range(1, count)] == [None] * (count - 1)
    account.balance = 3
    session.commit()
    assert stored(Account, 0)["balance"] == 3


@rows
def test_we_delete_and_the_row_is_kept_and_written(store, watched, other, stored, count):
    session, account = prepared_to_delete(store, watched, write_ours, count)
    other(Account, 0, owner="theirs")

    assert settled(session, account, stored) == {
        **ROW, "owner": "theirs", "balance": 77, "version": 3,
    }  # fmt: skip


@rows
@pytest.mark.parametrize("resolver", [merge_fields, sum_of_both, reject])
def test_we_delete_and_it_is_refused(store, watched, other, refused, stored, count, resolver):
    session, account = prepared_to_delete(store, watched, resolver, count)
    other(Account, 0, owner="theirs")
    [entry] = refused(session).entries

    assert (entry.action, entry.kind) == ("delete", "updated")
    assert list(session.deleted) == [account]
    session.rollback()
    assert stored(Account, 0)["owner"] == "theirs"


# -- both deleted ---------------------------------------------------------------------------------


@rows
@pytest.mark.parametrize("resolver", [client_wins, store_wins, merge_fields, sum_of_both])
def test_both_deleted_and_nothing_is_left_to_do(store, watched, gone, stored, count, resolver):
    """EF-16"""
    session, account = prepared_to_delete(store, watched, resolver, count)
    gone(Account, 0)
    session.flush()

    assert inspect(account).deleted
    session.commit()
    assert inspect(account).detached
    assert [stored(Account, n) for n in range(count)] == [None] * count


@rows
def test_both_deleted_and_it_is_refused(store, watched, gone, refused, count):
    """EF-16"""
    session, _ = prepared_to_delete(store, watched, reject, count)
    gone(Account, 0)
    [entry] = refused(session).entries

    assert (entry.action, entry.kind, entry.identity) == ("delete", "deleted", (0,))


@rows
def test_both_deleted_and_the_row_is_inserted(store, watched, gone, stored, count):
    session, account = prepared_to_delete(store, watched, write_ours, count)
    gone(Account, 0)
    found = settled(session, account, stored)

    assert (found["balance"], found["owner"]) == (77, "a")
    assert inspect(account).persistent


# -- many rows ------------------------------------------------------------------------------------


def test_many_conflicts_of_several_kinds_are_settled_at_once(store, watched, other, gone, stored):
    store(*(Account(id=n, owner="a", balance=1) for n in range(20)))
    session = watched(sum_of_both)
    found = session.scalars(select(Account)).all()
    for row in found:
        row.balance += 10
        if row.id % 3 == 0:
            row.note = "ours"
    for n in range(0, 20, 2):
        other(Account, n, balance=100, **({"owner": "theirs"} if n % 4 else {}))
    session.flush()
    held = {row.id: (row.owner, row.balance, row.note, row.version) for row in found}
    session.commit()

    for n in range(20):
        row = stored(Account, n)
        assert row["balance"] == (110 if n % 2 == 0 else 11)
        assert row["note"] == ("ours" if n % 3 == 0 else None)
        assert row["owner"] == ("theirs" if n % 4 == 2 else "a")
        assert held[n] == (row["owner"], row["balance"], row["note"], row["version"])


def test_if_one_row_is_refused_no_correction_is_written(store, watched, other, refused, stored):
    store(*(Account(id=n, owner="a", balance=1) for n in range(4)))
    session = watched(merge_fields)
    found = session.scalars(select(Account).order_by(Account.id)).all()
    for row in found:
        row.balance = 10
    other(Account, 1, owner="theirs")  # could be merged
    other(Account, 2, balance=5)  # cannot
    error = refused(session)
    with session.no_autoflush:
        kept = session.scalars(select(Account.balance).where(Account.id == 3)).one()

    assert [entry.identity for entry in error.entries] == [(1,), (2,)]
    assert {row.id for row in session.dirty} == {1, 2}
    assert kept == 10
    session.expunge(found[1])
    session.expunge(found[2])
    session.commit()
    assert (stored(Account, 1)["balance"], stored(Account, 2)["balance"]) == (1, 5)


def test_what_is_gone_is_not_inserted_again_when_another_row_is_refused(
    store, watched, gone, other, refused, stored
):
    store(*(Account(id=n, owner="a", balance=1) for n in range(3)), Note(id=1, text="a"))
    session = watched({Account: client_wins, Note: reject}, autoflush=False)
    for row in session.scalars(select(Account)):
        row.balance = 10
    session.get_one(Note, 1).text = "ours"
    gone(Account, 1)
    other(Note, 1, text="theirs")
    error = refused(session)

    assert {(e.model, e.identity) for e in error.entries} == {(Account, (1,)), (Note, (1,))}
    with session.no_autoflush:
        row = select(Account.id).where(Account.id == 1).with_for_update()
        assert session.scalar(row) is None


def test_the_same_rows_can_be_written_again_afterwards(store, watched, other, stored):
    session, account = prepared(store, watched, client_wins, 3)
    for turn in range(1, 4):
        account.balance = turn * 10
        other(Account, 0, owner=f"theirs {turn}")
        session.commit()
        assert stored(Account, 0)["version"] == account.version == 1 + 2 * turn


def test_a_parent_that_is_gone_is_there_again_before_its_new_children(store, watched, gone, stored):
    store(Post(id=1, title="a"), Post(id=2, title="a"))
    session = watched(client_wins)
    first, second = session.scalars(select(Post).order_by(Post.id)).all()
    assert (first.comments, second.comments) == ([], [])
    first.title = second.title = "ours"
    first.comments.append(Comment(id=7, text="new"))
    gone(Post, 1)
    session.commit()

    assert stored(Post, 1)["title"] == "ours"
    assert stored(Comment, 7)["post_id"] == 1


def test_a_parent_that_is_gone_comes_back_only_with_the_whole_flush(
    store, watched, gone, other, stored
):
    store(Post(id=1, title="a"), Post(id=2, title="a"), Note(id=1, text="a"))
    session = watched({Post: client_wins}, autoflush=False)
    first, second, note = (session.get_one(*key) for key in [(Post, 1), (Post, 2), (Note, 1)])
    assert (first.comments, second.comments) == ([], [])
    first.title = second.title = note.text = "ours"
    first.comments.append(Comment(id=7, text="new"))
    gone(Post, 1)
    other(Note, 1, text="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    session.rollback()

    assert {(e.model, e.identity) for e in caught.value.entries} == {(Post, (1,)), (Note, (1,))}
    assert (stored(Post, 1), stored(Comment, 7)) == (None, None)


def test_a_resolver_that_was_never_needed_is_never_called(store, watched, stored):
    def broken(entry):
        raise AssertionError("called without a conflict")

    session, account = prepared(store, watched, broken, 3)
    account.balance = 2
    session.commit()

    assert stored(Account, 0)["balance"] == 2


def test_a_resolver_is_asked_once_for_each_row(store, watched, other):
    asked = []

    def resolver(entry):
        asked.append(entry.identity)
        return Resolution.keep_database()

    session, account = prepared(store, watched, resolver, 4)
    account.balance = 2
    for n in (0, 2, 3):
        other(Account, n, owner="theirs")
    session.commit()

    assert sorted(asked) == [(0,), (2,), (3,)]


# -- resolvers that fail --------------------------------------------------------------------------


@rows
@pytest.mark.parametrize(
    "mine",
    [
        KeyError("mine"),
        OperationalError("SELECT", {}, OSError("of the resolver's own session")),
        ObjectDeletedError(None, "of an object that the resolver has looked at"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_resolver_raises_comes_out(store, watched, other, stored, count, mine):
    """C9: it is an error of the program, and the flush fails as by any other."""

    def broken(entry):
        raise mine

    session, account = prepared(store, watched, broken, count)
    account.balance = 10
    other(Account, 0, owner="theirs")
    with pytest.raises(type(mine)) as caught:
        session.flush()

    assert caught.value is mine
    assert not is_transient(mine)
    with pytest.raises(PendingRollbackError):
        session.get_one(Account, 0)
    session.rollback()
    session.refresh(account)
    account.balance = 11
    session.commit()
    assert (stored(Account, 0)["owner"], stored(Account, 0)["balance"]) == ("theirs", 11)


def test_a_resolver_may_say_that_it_cannot_merge(store, watched, other, refused):
    """C9: that is a refusal, and no error of the resolver."""

    def merged(entry):
        raise CannotMerge("not these two")

    session, account = prepared(store, watched, merged, 1)
    account.balance = 10
    other(Account, 0, balance=5)
    error = refused(session)

    assert isinstance(error.__cause__, CannotMerge)
    assert "not these two" in error.__notes__[0]
    assert (account.balance, account.version) == (10, 1)


@rows
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "client_wins",
        client_wins,
        {"balance": 1},
        Resolution.write({"balance": 1, "nonsense": 2}),
        Resolution.write({"balance": 1, "version": 9}),
        Resolution.write({"owner": "x"}),
    ],
    ids=lambda answer: told(answer)[:40],
)
def test_an_answer_that_cannot_be_carried_out_is_refused_and_the_edits_stay(
    store, watched, other, count, answer
):
    session, account = prepared(store, watched, lambda entry: answer, count)
    account.balance = 10
    other(Account, 0, balance=5)
    with pytest.raises(ConfigurationError) as caught:
        session.flush()

    assert isinstance(caught.value.__cause__, ConcurrencyError)
    assert (account.balance, account.version, account in session.dirty) == (10, 1, True)
    assert session.is_active


def test_an_async_resolver_in_a_sync_session_is_refused(store, watched, other):
    async def later(entry):
        return Resolution.keep_database()

    session, account = prepared(store, watched, later, 1)
    account.balance = 10
    other(Account, 0, owner="theirs")
    with pytest.raises(ConfigurationError, match="async"):
        session.flush()

    assert account in session.dirty


@pytest.mark.parametrize("value", ["client_wins", 3, per_field, {"Account": reject}, [reject]])
def test_what_is_no_resolver_is_refused_at_once(watched, value):
    with pytest.raises(ConfigurationError):
        watched(value)


# -- which resolver -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (None, "ours"),
        (store_wins, "theirs"),
        ({Account: store_wins}, "ours"),
        ({Decided: store_wins}, "theirs"),
    ],
    ids=["class", "unit", "another class", "mapping"],
)
def test_the_unit_goes_before_the_class(store, watched, other, stored, unit, expected):
    store(Decided(id=1, text="a"))
    session = watched(unit)
    row = session.get_one(Decided, 1)
    row.text = "ours"
    other(Decided, 1, text="theirs")

    assert settled(session, row, stored, 1)["text"] == expected


def test_the_unit_can_refuse_what_the_class_would_settle(store, watched, other, refused):
    store(Decided(id=1, text="a"))
    session = watched(reject)
    row = session.get_one(Decided, 1)
    row.text = "ours"
    other(Decided, 1, text="theirs")

    assert len(refused(session).entries) == 1


def test_each_class_has_its_own_resolver(store, watched, other, stored):
    store(Account(id=0, owner="a"), Note(id=0, text="a"))
    session = watched({Account: client_wins, Note: store_wins})
    account, note = session.get_one(Account, 0), session.get_one(Note, 0)
    account.owner = note.text = "ours"
    other(Account, 0, owner="theirs")
    other(Note, 0, text="theirs")
    session.flush()

    assert (account.owner, note.text) == ("ours", "theirs")
    session.commit()
    assert (stored(Account, 0)["owner"], stored(Note, 0)["text"]) == ("ours", "theirs")


def test_a_resolver_for_a_base_class_is_for_its_subclasses_too(store, watched, other, stored):
    store(Dog(id=1, name="rex"))
    session = watched({Animal: client_wins})
    dog = session.get_one(Dog, 1)
    dog.name = "ours"
    other(Dog, 1, name="theirs")

    assert settled(session, dog, stored, 1)["name"] == "ours"


# -- kinds of models ------------------------------------------------------------------------------


@rows
@pytest.mark.parametrize("model", [Dog, Manager])
def test_rows_of_a_hierarchy_are_merged(store, watched, other, stored, count, model):
    own = "tricks" if model is Dog else "budget"
    store(*(model(id=n, name="a") for n in range(count)))
    session = watched(merge_fields)
    found = session.scalars(select(model).order_by(model.id)).all()
    for row in found:
        setattr(row, own, 7)
    other(model, 0, name="theirs")
    row = settled(session, found[0], stored) if model is Manager else None
    session.commit()
    row = row or stored(model, 0)

    assert (str(row[own]), row["name"], row["version"]) == ("7", "theirs", 3)


@rows
def test_both_tables_of_a_joined_row_are_corrected(store, watched, other, stored, count):
    store(*(Dog(id=n, name="a", tricks="sit") for n in range(count)))
    session = watched(client_wins)
    found = session.scalars(select(Dog).order_by(Dog.id)).all()
    for row in found:
        row.name, row.tricks = "ours", "roll"
    other(Dog, 0, name="theirs", tricks="theirs")

    row = settled(session, found[0], stored)
    assert (row["name"], row["tricks"], row["version"]) == ("ours", "roll", 3)


@rows
@pytest.mark.parametrize("model", [Note, Native, Seat])
def test_other_tokens_and_keys_are_corrected_too(store, watched, other, stored, count, model):
    def made(n):
        return Seat(show="x", number=n, guest="a") if model is Seat else model(id=n, text="a")

    name = "guest" if model is Seat else "text"
    key = ("x", 0) if model is Seat else 0
    store(*(made(n) for n in range(count)))
    session = watched(client_wins)
    found = session.scalars(select(model)).all()
    for row in found:
        setattr(row, name, "ours")
    other(model, key, **{name: "theirs"})
    first = next(row for row in found if inspect(row).identity[-1] == 0)

    assert settled(session, first, stored, key)[name] == "ours"


@rows
@pytest.mark.parametrize("model", [Stamped, Clocked, Eager])
def test_onupdate_runs_again_for_the_correction(store, watched, other, stored, count, model):
    store(*(model(id=n, name="a") for n in range(count)))
    session = watched(client_wins)
    found = session.scalars(select(model).order_by(model.id)).all()
    for row in found:
        row.name = "ours"
    other(model, 0, name="theirs")
    session.flush()
    names = inspect(model).column_attrs.keys()
    held = {name: getattr(found[0], name) for name in names}
    session.commit()

    assert held == stored(model, 0)
    assert held["name"] == "ours"
    if model is Stamped:
        assert held["derived"] == "ours!"


@rows
def test_onupdate_runs_for_a_row_that_is_inserted_again(store, watched, gone, stored, count):
    """Our UPDATE would have filled its values in."""
    store(*(Stamped(id=n, name="a") for n in range(count)))
    session = watched(client_wins)
    found = session.scalars(select(Stamped).order_by(Stamped.id)).all()
    for row in found:
        row.name = "ours"
    gone(Stamped, 0)
    session.flush()
    held = {name: getattr(found[0], name) for name in inspect(Stamped).column_attrs.keys()}  # noqa: SIM118
    session.commit()

    assert held == stored(Stamped, 0)
    assert (held["name"], held["scalar"], held["derived"]) == ("ours", 7, "ours!")
    assert held["called"] is not None


def test_a_value_that_only_an_update_computes_is_named_as_the_reason(
    store, watched, gone, refused, stored
):
    store(Clocked(id=0, name="a", lower="a"))
    session = watched(client_wins)
    row = session.get_one(Clocked, 0)
    session.expire(row, ["lower"])
    row.name = "ours"
    gone(Clocked, 0)

    [note] = refused(session).__notes__
    assert "the database computes lower in each UPDATE" in note
    session.rollback()

    def write_all(entry):
        return Resolution.write({"lower": "b"})

    store(Clocked(id=1, name="a"))
    session = watched(write_all)
    row = session.get_one(Clocked, 1)
    session.expire(row, ["lower"])
    row.name = "ours"
    gone(Clocked, 1)
    session.commit()
    assert (stored(Clocked, 1)["name"], stored(Clocked, 1)["lower"]) == ("ours", "b")


@rows
def test_an_sql_expression_is_computed_on_the_stored_value(store, watched, other, stored, count):
    session, account = prepared(store, watched, client_wins, count)
    account.balance = Account.balance + 10
    other(Account, 0, balance=5, owner="theirs")
    session.flush()
    held = (account.balance, account.owner, account.version)
    session.commit()

    assert held == (15, "theirs", 3)
    assert stored(Account, 0)["balance"] == 15


def test_an_sql_expression_that_conflicts_is_refused_by_a_merge(store, watched, other, refused):
    session, account = prepared(store, watched, sum_of_both, 1)
    account.balance = Account.balance + 10
    other(Account, 0, balance=5)

    assert refused(session).entries[0].conflicting == {"balance"}


@rows
def test_values_changed_in_place_are_merged_and_still_tracked(store, watched, other, stored, count):
    """trap 31"""
    store(*(Settings(id=n, data={"a": 1}, name="x") for n in range(count)))
    session = watched(per_field(data=merge_json), expire_on_commit=False)
    found = session.scalars(select(Settings).order_by(Settings.id)).all()
    for row in found:
        row.data["b"] = 2
    other(Settings, 0, data={"a": 1, "c": 3})

    assert settled(session, found[0], stored)["data"] == {"a": 1, "b": 2, "c": 3}
    found[0].data["d"] = 4
    assert found[0] in session.dirty
    session.commit()
    assert stored(Settings, 0)["data"] == {"a": 1, "b": 2, "c": 3, "d": 4}


@rows
def test_values_taken_from_the_database_are_tracked_too(store, watched, other, stored, count):
    store(*(Settings(id=n, data={"a": 1}, name="x") for n in range(count)))
    session = watched(store_wins, expire_on_commit=False)
    found = session.scalars(select(Settings).order_by(Settings.id)).all()
    for row in found:
        row.data["b"] = 2
    other(Settings, 0, data={"c": 3})

    assert settled(session, found[0], stored)["data"] == {"c": 3}
    found[0].data["d"] = 4
    session.commit()
    assert stored(Settings, 0)["data"] == {"c": 3, "d": 4}


def test_sets_are_merged(store, watched, other, stored):
    store(Settings(id=1, plain=["a", "b"]))
    session = watched(per_field(plain=merge_set))
    row = session.get_one(Settings, 1)
    row.plain = ["a", "b", "ours"]
    other(Settings, 1, plain=["b", "theirs"])

    assert set(settled(session, row, stored, 1)["plain"]) == {"b", "ours", "theirs"}


def test_ignored_columns_keep_what_is_stored_or_ours(store, watched, other, stored):
    store(Page(id=1, body="a", views=0))
    session = watched(merge_fields)
    page = session.get_one(Page, 1)
    page.body = "ours"
    other(Page, 1, views=7)
    found = settled(session, page, stored, 1)

    assert (found["body"], found["views"]) == ("ours", 7)


@rows
def test_a_relationship_shows_the_parent_that_is_stored(store, watched, other, stored, count):
    store(Post(id=1), Post(id=2), Post(id=3), *(Comment(id=n, post_id=1) for n in range(count)))
    session = watched(store_wins)
    two = session.get_one(Post, 2)
    found = session.scalars(select(Comment).order_by(Comment.id)).all()
    for row in found:
        assert row.post.id == 1
    for row in found:
        row.post = two
    other(Comment, 0, post_id=3)
    session.flush()

    assert (found[0].post_id, found[0].post.id) == (3, 3)


def test_a_refused_resolution_can_be_told_another_resolver(store, watched, other, refused, stored):
    from optilock._watched.session.record import options

    session, account = prepared(store, watched, merge_fields, 2)
    account.balance = 10
    other(Account, 0, balance=5)
    refused(session)
    options(session, on_conflict=client_wins)

    assert settled(session, account, stored)["balance"] == 10


# -- in savepoints, autoflush, nested ------------------------------------------------------------


def test_autoflush_resolves_and_the_query_sees_it(store, watched, other):
    session, account = prepared(store, watched, sum_of_both, 2)
    account.balance = 11
    other(Account, 0, balance=101)

    assert session.scalars(select(Account.balance).order_by(Account.id)).all() == [111, 10]


def test_what_was_resolved_in_a_savepoint_goes_with_it(store, watched, other, stored):
    session, account = prepared(store, watched, client_wins, 1)
    other(Account, 0, owner="theirs")
    nested = session.begin_nested()
    account.balance = 10
    session.flush()
    assert (account.balance, account.owner) == (10, "theirs")
    nested.rollback()
    session.commit()

    assert stored(Account, 0) == {**ROW, "owner": "theirs", "version": 2}


@rows
def test_a_resolution_is_told_to_listeners(store, watched, other, count):
    session, account = prepared(store, watched, client_wins, count)
    account.balance = 10
    other(Account, 0, owner="theirs")
    seen = []
    listener = events.listen(seen.append, written=False)
    try:
        session.flush()
    finally:
        events.unlisten(listener)

    assert [type(event).__name__ for event in seen] == ["Conflict", "Resolved"]
    assert [e.identity for e in seen[0].entries] == [e.identity for e in seen[1].entries] == [(0,)]


@pytest.mark.parametrize("deleting", [False, True])
def test_a_resolution_of_a_row_that_is_gone_is_told_to_listeners(store, watched, gone, deleting):
    session, account = prepared(store, watched, client_wins, 3)
    if deleting:
        session.delete(account)
    else:
        account.balance = 10
    gone(Account, 0)
    seen = []
    listener = events.listen(seen.append, written=False)
    try:
        session.flush()
    finally:
        events.unlisten(listener)

    assert [type(event).__name__ for event in seen] == ["Conflict", "Resolved"]


def test_an_object_that_left_the_session_is_not_written_by_it(store, watched, gone, stored):
    session, account = prepared(store, watched, store_wins, 1)
    account.balance = 10
    gone(Account, 0)
    session.commit()

    with pytest.raises(InvalidRequestError):
        session.refresh(account)
