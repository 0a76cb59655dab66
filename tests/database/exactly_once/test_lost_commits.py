"""COMMITs whose answer is lost: stored, not stored for certain, or unknown with a token."""

from __future__ import annotations

import logging
import pickle
import time
from dataclasses import dataclass

import pytest
from sqlalchemy import ForeignKey, MetaData, String, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    composite,
    keyfunc_mapping,
    mapped_column,
    relationship,
    sessionmaker,
)

from checks.exactly_once.cut_commits import WAYS
from optilock import (
    ConfigurationError,
    UnitOfWork,
    Versioned,
    events,
    is_transient,
    retrying,
    unit_of_work,
)
from optilock.errors import CommitOutcomeUnknown
from optilock.exactly_once import NotCommitted, Once, committed, questions
from optilock.tables.names import commit_tokens
from tests.support.models import Account

pytestmark = pytest.mark.engines("postgresql", "mariadb")


def increase(session: Session) -> int:
    account = session.get_one(Account, 1)
    account.balance += 1
    return account.balance


@pytest.mark.parametrize("way", ["after", "between"])
def test_a_block_that_is_stored_ends_as_if_the_answer_had_come(cut_at, balance, tokens, way):
    engine = cut_at(way)
    with UnitOfWork(engine, exactly_once=True) as session:
        increase(session)
    with UnitOfWork(engine, exactly_once=True) as session:  # the pool has its one connection
        increase(session)
    assert (balance(), cut_at.line.cuts[way]) == (2, 1)
    assert {row.fingerprint for row in tokens().values()} == {None}


@pytest.mark.parametrize("key", [True, "k"])
def test_a_unit_that_is_certainly_not_stored_says_so(cut_at, balance, key):
    engine = cut_at("before")
    with (
        pytest.raises(NotCommitted, match="not stored") as lost,
        UnitOfWork(engine, exactly_once=key) as session,
    ):
        increase(session)
    assert is_transient(lost.value)
    assert isinstance(lost.value.__cause__, DBAPIError)
    assert balance() == 0


@pytest.mark.parametrize("key", [True, "k"])
@pytest.mark.parametrize("way", WAYS)
def test_a_decorated_function_is_stored_once_and_runs_as_often_as_it_must(
    cut_at, balance, way, key
):
    bodies = []

    @unit_of_work(cut_at(way, None, None), exactly_once=key, retry=retrying(wait_initial=0))
    def pay(session: Session) -> int:
        bodies.append(1)
        return increase(session)

    assert (pay(), balance(), cut_at.line.cuts[way]) == (1, 1, 1)
    if way in ("before", "after"):
        assert len(bodies) == (2 if way == "before" else 1)


@pytest.mark.parametrize("way", ["before", "after"])
def test_written_rows_are_published_once_if_they_are_stored(cut_at, way):
    found = []

    @unit_of_work(cut_at(way, None), exactly_once="k", retry=retrying(wait_initial=0))
    def pay(session: Session) -> int:
        return increase(session)

    with events.listening(found.append):
        assert pay() == 1
    written = [one for one in found if isinstance(one, events.Written)]
    assert [(one.model, one.identity, one.columns) for one in written] == [
        (Account, (1,), ("balance",))
    ]


def test_a_fence_whose_own_commit_is_cut_is_no_unit(cut_at, balance):
    """The COMMIT of the unit never arrives, and that of the question is carried out."""
    engine = cut_at("before", "after")
    with pytest.raises(NotCommitted), UnitOfWork(engine, exactly_once=True) as session:
        increase(session)
    assert (balance(), sum(cut_at.line.cuts.values())) == (0, 2)


def test_any_object_is_a_result_and_is_the_functions_own(cut_at):
    made = object()

    @unit_of_work(cut_at("after"), exactly_once=True)
    def pay(session: Session) -> object:
        increase(session)
        return made

    assert pay() is made


@pytest.mark.parametrize("way", ["before", "after"])
@pytest.mark.parametrize("key", [True, "k"])
def test_an_outcome_that_cannot_be_found_out_is_unknown_and_has_a_token(
    cut_at, counter, balance, monkeypatch, way, key
):
    monkeypatch.setattr(questions, "PATIENCE", 0.2)
    engine, runs = cut_at(way), []

    @unit_of_work(engine, exactly_once=key)
    def pay(session: Session) -> None:
        runs.append(increase(session))
        session.flush()
        cut_at.line.refuses = True

    with pytest.raises(CommitOutcomeUnknown, match="committed") as lost:
        pay()
    again = pickle.loads(pickle.dumps(lost.value))
    assert (runs, again.token) == ([1], lost.value.token)
    sessions = sessionmaker(counter)
    assert committed(sessions, again.token) is committed(counter, again.token) is (way == "after")
    assert balance() == (1 if way == "after" else 0)
    cut_at.line.refuses = False
    if key is not True:
        assert (pay(), balance()) == (None, 1)


def test_a_server_that_never_answers_is_not_waited_for(cut_at, monkeypatch):
    monkeypatch.setattr(questions, "PATIENCE", 0.1)
    monkeypatch.setattr(questions, "_LAST", 0.1)
    with (
        pytest.raises(CommitOutcomeUnknown) as lost,
        UnitOfWork(cut_at("after", max_overflow=1), exactly_once=True) as session,
    ):
        increase(session)
        session.flush()
        cut_at.line.hangs = True
    assert lost.value.token.startswith("~")


def test_after_the_answer_no_a_late_commit_fails(counter, balance, tokens):
    """``committed`` is asked while the unit is still open."""
    sessions = sessionmaker(counter)
    with (
        pytest.raises(IntegrityError),
        UnitOfWork(sessions, exactly_once=True) as session,
    ):
        increase(session)
        session.flush()
        token = session._optilock_watched.owner.token.token
        assert committed(counter, token) is False
    assert (balance(), tokens()[token].fingerprint) == (0, "fence")


def test_a_question_for_a_key_leaves_no_fence_and_for_a_token_it_does(counter, tokens):
    token = f"~{time.time_ns() // 1_000_000:012x}{'0' * 20}"
    assert [committed(counter, one) for one in ("k", token)] == [False, False]
    assert {*tokens()} == {token}


def test_a_key_whose_fence_was_left_behind_is_free(counter, balance, tokens):
    with counter.begin() as connection:
        connection.execute(commit_tokens.insert().values(token="k", fingerprint="fence"))
    assert committed(counter, "k") is False
    for _ in range(2):
        unit_of_work(counter, exactly_once="k")(increase)()
    assert (balance(), tokens()["k"].result) == (1, "1")


def test_a_token_that_may_be_purged_is_not_taken_for_one_that_never_was(counter, tokens):
    def made(hours: float) -> str:
        return f"~{time.time_ns() // 1_000_000 - round(hours * 3_600_000):012x}{'0' * 20}"

    old, fenced, stored, young = made(23.1), made(24), made(25), made(22.9)
    with counter.begin() as connection:
        for token, fingerprint in ((fenced, "fence"), (stored, None)):
            row = {"token": token, "fingerprint": fingerprint}
            connection.execute(commit_tokens.insert().values(**row))
    for _ in range(2):  # the question leaves no row behind
        with pytest.raises(ConfigurationError, match="older than 23 hours"):
            committed(counter, old)
    assert [committed(counter, one) for one in (fenced, stored, young)] == [False, True, False]
    assert {*tokens()} == {fenced, stored, young}


def test_a_database_without_the_table_is_refused_at_once(engine, monkeypatch):
    monkeypatch.setattr(questions, "_sleep", None)  # so nothing is asked a second time
    for token in (f"~{time.time_ns() // 1_000_000:012x}{'0' * 20}", "k"):
        with pytest.raises(ConfigurationError, match="optilock_commit_tokens with"):
            committed(engine, token)


@pytest.mark.parametrize("token", ["", "x" * 201, None, 7, "~no time at all"])
def test_what_is_no_token_is_refused(engine, token):
    with pytest.raises(ConfigurationError, match="token"):
        committed(engine, token)


def test_an_answer_to_commit_is_passed_on_and_nothing_is_asked(counter, tokens, monkeypatch):
    monkeypatch.setattr(questions, "ask_for", None)

    def commit(connection) -> None:
        raise IntegrityError("COMMIT", {}, Exception("a rule"))

    event.listen(counter, "commit", commit)
    with (
        pytest.raises(IntegrityError, match="a rule"),
        UnitOfWork(counter, exactly_once=True) as session,
    ):
        increase(session)
    event.remove(counter, "commit", commit)
    assert tokens() == {}


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_deferred_constraint_is_as_without_the_option(counter, tokens, balance, pipelined):
    with counter.begin() as connection:
        rule = "UNIQUE DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE late_rules (id int {rule})"))
    with (
        pytest.raises(IntegrityError, match="late_rules"),
        UnitOfWork(counter, exactly_once=True, pipelined=pipelined) as session,
    ):
        session.execute(text("INSERT INTO late_rules VALUES (1), (1)"))
        increase(session)
    assert (balance(), tokens()) == (0, {})


def test_an_interrupt_inside_commit_names_the_token(counter, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    if counter.dialect.name == "postgresql":
        from optilock.dialects.postgresql import commit_tokens as own
    else:
        from optilock.dialects.mariadb import commit_tokens as own
    monkeypatch.setattr(own, "_commit", interrupted)
    with (
        pytest.raises(KeyboardInterrupt) as lost,
        UnitOfWork(counter, exactly_once=True) as session,
    ):
        increase(session)
    [note] = [note for note in lost.value.__notes__ if "committed(sessions, '~" in note]
    assert committed(counter, note.split("'")[1]) is False


def test_a_listener_that_fails_before_commit_stores_nothing(counter, balance, tokens):
    sessions = sessionmaker(counter)

    @event.listens_for(sessions, "before_commit")
    def before_commit(session: Session) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), UnitOfWork(sessions, exactly_once=True) as session:
        increase(session)
    with counter.connect() as connection:
        driver = connection.connection.driver_connection
        assert "commit" not in vars(driver)  # it has its own again
    assert (balance(), tokens()) == (0, {})


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("way", [None, "after"])
def test_objects_of_a_unit_that_is_found_stored_are_as_after_any_commit(
    cut_at, counter, way, pipelined
):
    """The sessions of an Engine keep their objects (``expire_on_commit=False``)."""
    if pipelined and counter.dialect.name != "postgresql":
        pytest.skip("COMMIT goes with the last writes on psycopg only")

    @unit_of_work(cut_at(way), exactly_once=True, pipelined=pipelined, attempts=1)
    def pay(session: Session) -> tuple[Account, Account]:
        account, new = session.get_one(Account, 1), Account(id=2, owner="Bob")
        account.balance += 1
        if not pipelined:
            session.add(new)
        return account, new

    account, new = pay()
    assert (account.balance, account.owner) == (1, "Ada")
    if pipelined:
        return  # its version moved in the flush that goes with COMMIT, and is not known
    assert (account.version, new.owner, new.version) == (2, "Bob", 1)
    with UnitOfWork(counter) as session:  # the version is that of the row
        session.add(account)
        account.balance += 1
    with Session(counter) as session:
        assert session.get_one(Account, 1).balance == 2


class _Base(DeclarativeBase): ...


class Book(Versioned, _Base):
    __tablename__ = "books_by_name"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))
    shelf_id: Mapped[int] = mapped_column(ForeignKey("shelves_by_name.id"))


#: Not empty: a dict of books cannot be made.
_unnamed: list[int] = []


def _name_of(book: Book) -> str:
    if _unnamed:
        raise LookupError("no name")
    return book.name


@dataclass
class Place:
    row: int
    column: int


class Shelf(Versioned, _Base):
    __tablename__ = "shelves_by_name"
    id: Mapped[int] = mapped_column(primary_key=True)
    place: Mapped[Place] = composite(mapped_column("row_at"), mapped_column("column_at"))
    books: Mapped[dict[str, Book]] = relationship(collection_class=keyfunc_mapping(_name_of))


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("fails", [False, True])
def test_a_unit_that_is_found_stored_never_fails_for_its_objects(
    cut_at, counter, tables, caplog, fails
):
    tables(Shelf, Book)
    with Session(counter) as session, session.begin():
        session.add(Shelf(id=1, place=Place(1, 1), books={"SQL": Book(id=1, name="SQL")}))
    runs = []

    @unit_of_work(cut_at("after"), exactly_once=True, retry=retrying(on=Exception, wait_initial=0))
    def move(session: Session) -> Shelf:
        runs.append(1)
        shelf = session.get_one(Shelf, 1)
        shelf.place = Place(shelf.place.row + 1, 1)
        assert [*shelf.books] == ["SQL"]
        _unnamed[:] = [1] if fails else []
        return shelf

    with caplog.at_level(logging.WARNING, "optilock"):
        shelf = move()
    _unnamed.clear()
    assert (len(runs), sum("Shelf" in record.message for record in caplog.records)) == (1, fails)
    if not fails:
        assert (shelf.place, shelf.books["SQL"].name) == (Place(2, 1), "SQL")
    with Session(counter) as session:
        assert session.get_one(Shelf, 1).place.row == 2


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("key", [True, "k"])
def test_the_question_looks_into_the_table_of_the_unit_whatever_the_search_path_is(
    cut_at, counter, balance, tokens, key
):
    with counter.begin() as connection:
        connection.execute(text("CREATE SCHEMA elsewhere"))
        commit_tokens.to_metadata(MetaData(), schema="elsewhere").create(connection)
    sessions = sessionmaker(cut_at("after"))

    @event.listens_for(sessions, "after_begin")
    def look_elsewhere(session, transaction, connection):
        connection.execute(text("SET LOCAL search_path TO elsewhere, public"))

    @unit_of_work(sessions, exactly_once=key, retry=retrying(wait_initial=0))
    def pay(session: Session) -> int:
        return increase(session)

    assert (pay(), balance(), len(tokens())) == (1, 1, 1)


@pytest.mark.parametrize("key", [True, "k", Once("k", wait=1)])
@pytest.mark.parametrize("of", ["engine", "connection"])
def test_a_map_that_leads_to_another_table_is_refused(counter, balance, tokens, key, of):
    options = {"schema_translate_map": {None: "elsewhere"}}
    sessions = sessionmaker(counter.execution_options(**options) if of == "engine" else counter)
    if of == "connection":

        @event.listens_for(sessions, "after_begin")
        def translate(session, transaction, connection):
            connection.execution_options(**options)

    with (
        pytest.raises(ConfigurationError, match="schema_translate_map"),
        UnitOfWork(sessions, exactly_once=key) as session,
    ):
        session.execute(text("UPDATE accounts SET balance = 1"))
    assert (balance(), tokens()) == (0, {})
