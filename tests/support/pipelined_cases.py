"""Units of work on PostgreSQL, as data: each is run with ``pipelined=True``, and without.

A case is a body that gets the session and the world around it, the options of the unit, and the
round trips that it takes: without ``pipelined``, and with it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Engine,
    ForeignKey,
    UniqueConstraint,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from optilock import Isolation, Versioned, client_wins, expect, merge_fields, verify
from optilock.statements import no_bump
from optilock.tokens import CompareValues, RowVersion
from optilock.unit import Part

__all__ = ["CASES", "Base", "Case", "World", "outcome_of"]


class Base(DeclarativeBase):
    pass


class Person(Versioned, Base):
    __tablename__ = "persons"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str | None]
    score: Mapped[int] = mapped_column(CheckConstraint("score >= 0"), default=0)
    changed: Mapped[int] = mapped_column(default=0, onupdate=lambda: 7)
    nick: Mapped[str | None] = mapped_column(unique=True)
    pages: Mapped[list[Page]] = relationship(back_populates="person")


class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None]
    person_id: Mapped[int | None] = mapped_column(ForeignKey("persons.id"))
    person: Mapped[Person | None] = relationship(back_populates="pages")


class Line(Base):
    """A table without a version."""

    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str | None]


class Slot(Versioned, Base):
    """Whether a number is taken is asked at COMMIT."""

    __tablename__ = "slots"
    __table_args__ = (UniqueConstraint("number", deferrable=True, initially="DEFERRED"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int]
    text: Mapped[str | None]


class Signed(Versioned, Base):
    """The database moves the version, and the UPDATE brings it back."""

    __tablename__ = "signed"
    __version_token__ = RowVersion()
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None]


class Compared(Versioned, Base):
    __tablename__ = "compared"
    __version_token__ = CompareValues("text")
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None]


class Tally(Versioned, Base):
    """Writers add to it."""

    __tablename__ = "tallies"
    __version_commutes__ = ("pieces",)
    __version_ignore__ = ("seen",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    pieces: Mapped[int] = mapped_column(CheckConstraint("pieces >= 0"), default=0)
    text: Mapped[str | None]
    seen: Mapped[int] = mapped_column(default=0)
    changed: Mapped[int] = mapped_column(default=0, onupdate=lambda: 7)


class Animal(Versioned, Base):
    """Rows in two tables."""

    __tablename__ = "animals"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str | None]
    kind: Mapped[str] = mapped_column(default="animal")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Dog(Animal):
    __tablename__ = "dogs"
    id: Mapped[int] = mapped_column(ForeignKey("animals.id"), primary_key=True)
    trick: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Noted(Versioned, Base):
    """A listener writes a line for each change."""

    __tablename__ = "noted"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None]


@event.listens_for(Noted, "after_update")
def after_update(mapper: Any, connection: Any, obj: Noted) -> None:
    connection.execute(insert(Line).values(text=f"changed {obj.id}"))


def store(engine: Engine) -> None:
    """The rows that are there at first."""
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY"))
    with Session(engine) as session, session.begin():
        session.add_all(Person(id=n, name=f"p{n}", nick=f"n{n}") for n in range(1, 41))
        session.flush()
        session.add_all(Page(id=n, text=f"t{n}", person_id=n) for n in range(1, 4))
        session.add_all(Slot(id=n, number=n) for n in (1, 2))
        session.add_all([Signed(id=1), Compared(id=1, text="c"), Noted(id=1)])
        session.add_all(Tally(id=n, pieces=5) for n in (1, 2))
        session.add_all([Dog(id=1, name="Rex", trick="sit")])


@dataclass
class World:
    """What goes on beside the unit."""

    engine: Engine

    def moves(self, model: type[Any] = Person, *keys: int, **values: Any) -> None:
        """Another program changes rows, and commits."""
        with Session(self.engine) as session, session.begin():
            for key in keys or (1,):
                row = session.get_one(model, key)
                for name, value in (values or {"score": 77}).items():
                    setattr(row, name, value)

    def deletes(self, model: type[Any], key: int) -> None:
        with Session(self.engine) as session, session.begin():
            session.delete(session.get_one(model, key))

    def rows(self) -> dict[str, list[Any]]:
        """All that is stored, with the versions."""
        with self.engine.connect() as connection:
            return {
                table.name: sorted(
                    (tuple(row) for row in connection.execute(select(table))), key=repr
                )
                for table in Base.metadata.sorted_tables
            }


Body = Callable[[Session, World], None]


@dataclass
class Case:
    name: str
    body: Body
    #: Without ``pipelined``, and with it.
    trips: tuple[int, int]
    options: dict[str, Any] = field(default_factory=dict)


CASES: list[Case] = []


def case(without: int, with_it: int, **options: Any) -> Callable[[Body], Body]:
    def known(body: Body) -> Body:
        name = body.__name__.replace("_", " ").strip()
        CASES.append(Case(name, body, (without, with_it), options))
        return body

    return known


def outcome_of(error: BaseException | None) -> Any:
    """What can be compared of an error: its class, its rows, and the database's code."""
    if error is None:
        return "stored"
    seen: Any = error
    original = getattr(seen, "orig", None)
    entries = [
        (one.identity, one.kind, dict(one.original), dict(one.current), one.database)
        for one in getattr(seen, "entries", ())
    ]
    return type(error).__name__, entries, getattr(original, "sqlstate", None)


# -- one row -------------------------------------------------------------------------------------


@case(4, 2)
def one_row(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


@case(5, 5)
def one_row_that_moved(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"
    world.moves()


@case(6, 6, on_conflict=merge_fields)
def one_row_that_moved_is_merged(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"
    world.moves()


@case(7, 7)  # before a row is called gone it is looked for without a lock, and may be hidden
def one_row_that_is_gone(session: Session, world: World) -> None:
    session.get_one(Person, 9).name = "new"
    world.deletes(Person, 9)


@case(8, 8, on_conflict=client_wins)
def one_row_that_is_gone_is_written_again(session: Session, world: World) -> None:
    session.get_one(Person, 9).name = "new"
    world.deletes(Person, 9)


@case(4, 2)
def one_row_is_read_by_a_query(session: Session, world: World) -> None:
    query = select(Person).where(Person.id.in_([1]), (Person.score == 0) | (Person.id == 2))
    session.scalars(query).one().score += 1


@case(4, 3)
def the_write_violates_a_check(session: Session, world: World) -> None:
    session.get_one(Person, 1).score = -1


@case(4, 3)
def a_violated_check_after_a_lock(session: Session, world: World) -> None:
    session.get_one(Person, 1, with_for_update=True).score = -1
    session.get_one(Person, 2)


@case(3, 2)
def nothing_is_changed(session: Session, world: World) -> None:
    session.get_one(Person, 1)


@case(0, 0)
def nothing_is_sent(session: Session, world: World) -> None:
    pass


@case(4, 3)
def what_is_unique_changes(session: Session, world: World) -> None:
    session.get_one(Person, 1).nick = "another"


@case(4, 3)
def what_is_unique_is_taken(session: Session, world: World) -> None:
    session.get_one(Person, 1).nick = "n2"


@case(4, 2)
def a_deferred_rule_is_kept(session: Session, world: World) -> None:
    session.get_one(Slot, 1).text = "new"


@case(4, 3)
def a_deferred_rule_is_broken(session: Session, world: World) -> None:
    session.get_one(Slot, 1).number = 2


# -- the first statement ---------------------------------------------------------------------------


@case(3, 2)
def the_first_statement_is_wrong(session: Session, world: World) -> None:
    session.execute(text("SELECT nothing FROM nowhere"))


@case(3, 2)
def an_error_is_swallowed(session: Session, world: World) -> None:
    with suppress(DBAPIError):
        session.execute(text("SELECT nothing FROM nowhere"))
    session.get_one(Person, 1).name = "new"


@case(7, 5)
def an_error_is_swallowed_in_a_savepoint(session: Session, world: World) -> None:
    person = session.get_one(Person, 1)
    with suppress(DBAPIError), session.begin_nested():
        session.execute(text("SELECT nothing FROM nowhere"))
    person.name = "new"


@case(3, 2)
def the_body_fails(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"
    raise LookupError("on purpose")


# -- several rows ----------------------------------------------------------------------------------


@case(6, 3)
def two_tables(session: Session, world: World) -> None:
    page = session.get_one(Page, 1)
    session.get_one(Person, 1).name = page.text = "new"


@case(7, 7)
def two_tables_one_of_which_moved(session: Session, world: World) -> None:
    page = session.get_one(Page, 1)
    session.get_one(Person, 1).name = page.text = "new"
    world.moves(Page, 1, text="theirs")


@case(8, 8, on_conflict=client_wins)
def two_tables_one_of_which_moved_are_merged(session: Session, world: World) -> None:
    page = session.get_one(Page, 1)
    session.get_one(Person, 1).name = page.text = "new"
    world.moves(Person, 1, score=5)


@case(4, 2)
def forty_rows(session: Session, world: World) -> None:
    for person in session.scalars(select(Person)).all():
        person.score += 1


@case(4, 2)
def forty_rows_of_two_kinds(session: Session, world: World) -> None:
    for person in session.scalars(select(Person).order_by(Person.id)).all():
        if person.id % 2:
            person.name = "odd"
        else:
            person.score += 2


@case(5, 5)
def forty_rows_of_which_two_moved(session: Session, world: World) -> None:
    for person in session.scalars(select(Person)).all():
        person.score += 1
    world.moves(Person, 3, 4)


@case(6, 6, on_conflict=client_wins)
def forty_rows_of_which_two_moved_are_merged(session: Session, world: World) -> None:
    for person in session.scalars(select(Person)).all():
        person.score += 1
    world.moves(Person, 3, 4)


@case(4, 3)
def forty_rows_of_which_one_violates_a_check(session: Session, world: World) -> None:
    for person in session.scalars(select(Person)).all():
        person.score -= 1 if person.id == 9 else -1


# -- after other writes ----------------------------------------------------------------------------


@case(5, 3)
def a_row_is_inserted_before(session: Session, world: World) -> None:
    person = session.get_one(Person, 1)
    session.add(Line(text="x"))
    session.flush()
    person.name = "new"


@case(6, 6)
def a_row_is_inserted_before_and_the_other_moved(session: Session, world: World) -> None:
    person = session.get_one(Person, 1)
    session.add(Line(text="x"))
    session.flush()
    person.name = "new"
    world.moves()


@case(7, 7, on_conflict=client_wins)
def a_row_is_inserted_before_and_the_other_is_merged(session: Session, world: World) -> None:
    person = session.get_one(Person, 1)
    session.add(Line(text="x"))
    session.flush()
    person.name = "new"
    world.moves()


@case(5, 3)
def a_row_is_inserted_in_the_same_flush(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"
    session.add(Line(text="x"))


@case(5, 3)
def a_row_was_written_before(session: Session, world: World) -> None:
    person = session.get_one(Person, 1)
    person.name = "new"
    session.flush()
    person.name = "newer"


@case(5, 4)
def a_row_is_deleted(session: Session, world: World) -> None:
    session.delete(session.get_one(Page, 3))
    session.get_one(Person, 1)


@case(5, 4)
def the_last_flush_was_sent(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"
    session.flush()
    session.get_one(Person, 2)


# -- what must survive a miss ----------------------------------------------------------------------


@case(5, 3)
def a_setting_of_the_transaction(session: Session, world: World) -> None:
    session.execute(text("SET LOCAL application_name = 'kept'"))
    session.get_one(Person, 1).name = "new"


@case(9, 8, on_conflict=client_wins)
def a_setting_survives_a_miss(session: Session, world: World) -> None:
    session.execute(text("SET LOCAL application_name = 'kept'"))
    session.get_one(Person, 1).name = "new"
    world.moves()

    @event.listens_for(session, "after_flush")
    def after_flush(session: Session, uow: Any) -> None:
        name = session.execute(text("SHOW application_name")).scalar()
        session.execute(insert(Line).values(text=name))


@case(4, 2)
def a_lock(session: Session, world: World) -> None:
    session.get_one(Person, 1, with_for_update=True).name = "new"


@case(7, 7, on_conflict=client_wins)
def a_lock_survives_a_miss(session: Session, world: World) -> None:
    session.get_one(Person, 2, with_for_update=True)
    session.get_one(Person, 1).name = "new"
    world.moves()


@case(8, 6)
def a_savepoint(session: Session, world: World) -> None:
    with session.begin_nested():
        session.get_one(Person, 1).name = "inner"
    session.get_one(Person, 2).name = "outer"


@case(5, 3)
def a_function_is_called(session: Session, world: World) -> None:
    session.execute(select(func.nextval("numbers")))
    session.get_one(Person, 1).name = "new"


# -- levels ----------------------------------------------------------------------------------------

LEVELS = {"isolation": Isolation.REPEATABLE_READ}
HIGHEST = {"isolation": Isolation.SERIALIZABLE}


@case(7, 4, **LEVELS)
def repeatable_read(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


@case(10, 7, **LEVELS)
def repeatable_read_and_the_row_moved(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"
    world.moves()


@case(7, 4, **HIGHEST)
def serializable(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


@case(7, 4, isolation=Isolation.READ_COMMITTED)
def read_committed(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


@case(4, 2, strategy="pessimistic")
def locked_when_it_was_read(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


@case(4, 2, strategy="pessimistic")
def two_are_locked_and_one_is_written(session: Session, world: World) -> None:
    session.scalars(select(Person).where(Person.id < 3)).all()[0].name = "new"


@case(5, 5, strategy="pessimistic")
def another_is_locked_and_this_one_has_moved(session: Session, world: World) -> None:
    session.get_one(Person, 2)
    with Session(world.engine) as other:
        person = other.get_one(Person, 1)
    world.moves()
    session.add(person)
    person.name = "new"


@case(4, 2, strategy="adaptive")
def nobody_has_conflicted_on_it(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


@case(4, 3, read_only=True)
def read_only(session: Session, world: World) -> None:
    session.get_one(Person, 1)


# -- sums ------------------------------------------------------------------------------------------


@case(4, 2)
def one_is_added(session: Session, world: World) -> None:
    session.get_one(Tally, 1).pieces += 1


@case(4, 2)
def one_is_added_after_another(session: Session, world: World) -> None:
    tally = session.get_one(Tally, 1)
    world.moves(Tally, 1, pieces=50, text="theirs")
    tally.pieces += 1


@case(4, 2)
def one_is_added_beside_an_ignored_column(session: Session, world: World) -> None:
    tally = session.get_one(Tally, 1)
    world.moves(Tally, 1, pieces=50)
    tally.pieces += 1
    tally.seen = 3


@case(4, 2, strategy="adaptive")
def one_is_added_in_a_unit_that_adapts(session: Session, world: World) -> None:
    session.get_one(Tally, 1).pieces += 1


@case(7, 7)
def one_is_added_to_a_row_that_is_gone(session: Session, world: World) -> None:
    tally = session.get_one(Tally, 1)
    world.deletes(Tally, 1)
    tally.pieces += 1


@case(7, 5)
def less_is_left_than_may_be(session: Session, world: World) -> None:
    tally = session.get_one(Tally, 1)
    world.moves(Tally, 1, pieces=1)
    tally.pieces -= 3


@case(5, 3)
def one_is_added_after_an_insert(session: Session, world: World) -> None:
    session.add(Line(text="new"))
    session.flush()
    session.get_one(Tally, 1).pieces += 1


@case(4, 2)
def one_is_added_to_each_of_two(session: Session, world: World) -> None:
    for tally in session.scalars(select(Tally)):
        tally.pieces += 1


@case(4, 2)
def one_is_added_and_the_text_is_new(session: Session, world: World) -> None:
    tally = session.get_one(Tally, 1)
    tally.pieces += 1
    tally.text = "new"


# -- what runs between the last write and COMMIT ---------------------------------------------------


class After(Part):
    def before_commit(self, session: Session) -> None:
        session.execute(insert(Line).values(text="of a part"))


@case(5, 4, parts=[After()])
def a_part_writes_before_commit(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


def listened(name: str) -> Body:
    def body(session: Session, world: World) -> None:
        session.get_one(Person, 1).name = "new"

        @event.listens_for(session, name, once=True)
        def heard(session: Session, *_: Any) -> None:
            session.execute(insert(Line).values(text=name))

    body.__name__ = f"a_listener_of_{name}_writes"
    return body


for heard in ("before_commit", "after_flush", "after_flush_postexec", "before_flush"):
    case(5, 4 if heard != "before_flush" else 3)(listened(heard))


@case(5, 4)
def a_listener_of_rows_writes(session: Session, world: World) -> None:
    session.get_one(Noted, 1).text = "new"


@case(5, 4)
def a_listener_of_rows_does_not_hear_of_one_that_moved(session: Session, world: World) -> None:
    session.get_one(Noted, 1).text = "new"
    with world.engine.begin() as connection:
        connection.execute(update(Noted).values(version=5))


@case(6, 3)
def verified(session: Session, world: World) -> None:
    verify(session.get_one(Person, 2))
    session.get_one(Person, 1).name = "new"


@case(7, 7)
def verified_and_moved(session: Session, world: World) -> None:
    verify(session.get_one(Person, 2))
    session.get_one(Person, 1).name = "new"
    world.moves(Person, 2)


@case(4, 2)
def expected(session: Session, world: World) -> None:
    person = session.get_one(Person, 1)
    expect(person, 1)
    person.name = "new"


@case(4, 2, verify_reads=True)
def reads_are_verified(session: Session, world: World) -> None:
    session.get_one(Person, 1).name = "new"


def sends_first(session: Session, what: str, table: str = "") -> None:
    """Before each write, a listener sends a statement of its own, and reads the answer."""

    @event.listens_for(session.connection(), "before_cursor_execute")
    def before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("UPDATE", "WITH")) and table in statement:
            cursor.execute(what)
            if cursor.description:
                cursor.fetchall()


BESIDE = {
    "reads": "SELECT 1",
    "sets": "SELECT set_config('application_name', 'kept', true)",
    "writes": "INSERT INTO lines (text) VALUES ('beside')",
}


def beside(how: str, body: Body, *, moves: bool = False, table: str = "") -> Body:
    def beside(session: Session, world: World) -> None:
        body(session, world)
        sends_first(session, BESIDE[how], table)
        if moves:
            world.moves()

    also = f" {table}" * bool(table) + " that moved" * moves
    beside.__name__ = f"a listener {how} beside {body.__name__}{also}"
    return beside


for how in BESIDE:
    case(5, 4)(beside(how, one_row))
    case(6, 5)(beside(how, one_row, moves=True))
    case(5, 4)(beside(how, forty_rows))
    case(6, 5)(beside(how, forty_rows, moves=True))
    case(7, 6)(beside(how, two_tables, table="persons"))
    case(7, 7)(beside(how, two_tables, table="pages"))
    case(8, 8)(beside(how, two_tables, moves=True, table="pages"))


@case(6, 5)
def a_listener_of_new_rows_adds_another(session: Session, world: World) -> None:
    page = session.get_one(Page, 1)
    page.person = Person(id=60)

    @event.listens_for(session, "pending_to_persistent")
    def pending_to_persistent(session: Session, obj: Any) -> None:
        if isinstance(obj, Person):
            session.add(Line(text=f"new {obj.id}"))


def in_its_last_flush(moves: bool) -> Body:
    def body(session: Session, world: World) -> None:
        session.get_one(Person, 2)
        session.get_one(Person, 1).name = "new"

        @event.listens_for(session, "before_flush")
        def before_flush(session: Session, *_: Any) -> None:
            with session.no_autoflush:
                verify(session.get_one(Person, 2))
            if moves:
                world.moves(Person, 2)

    body.__name__ = f"verified_in_its_last_flush{'_and_moved' * moves}"
    return body


case(7, 4)(in_its_last_flush(moves=False))
case(8, 8)(in_its_last_flush(moves=True))


# -- other ways of writing -------------------------------------------------------------------------


@case(5, 4)
def rows_in_two_tables(session: Session, world: World) -> None:
    dog = session.get_one(Dog, 1)
    dog.name, dog.trick = "Max", "roll"


@case(4, 3)
def a_version_of_the_database(session: Session, world: World) -> None:
    session.get_one(Signed, 1).text = "new"


@case(5, 4)  # a look at the row, and the write
def compared_values(session: Session, world: World) -> None:
    session.get_one(Compared, 1).text = "new"


@case(4, 3)
def an_expression(session: Session, world: World) -> None:
    session.get_one(Person, 1).score = Person.score + 3


@case(4, 3)
def a_statement(session: Session, world: World) -> None:
    session.get_one(Person, 1)
    session.execute(update(Person).where(Person.id == 1).values(name="new"))


@case(4, 3)
def no_version_moves(session: Session, world: World) -> None:
    with no_bump(session):
        session.get_one(Person, 1).name = "new"
        session.flush()


@case(3, 2)
def a_row_that_was_not_read(session: Session, world: World) -> None:
    """It was read in another transaction."""
    with Session(world.engine) as before:
        person = before.get_one(Person, 1)
    session.add(person)
    person.name = "new"


@case(5, 4)
def a_row_and_a_line_last(session: Session, world: World) -> None:
    session.get_one(Page, 1).text = "new"
    session.add(Page(id=50, text="fresh"))


@case(5, 3)
def many_lines_are_inserted(session: Session, world: World) -> None:
    session.get_one(Page, 1).text = "new"
    session.connection().exec_driver_sql("INSERT INTO lines (text) VALUES ('a')")


@case(5, 4)
def the_driver_is_used_by_hand(session: Session, world: World) -> None:
    cursor = session.connection().connection.cursor()
    cursor.executemany("INSERT INTO lines (text) VALUES (%s)", [("a",), ("b",)])
    session.get_one(Person, 1).name = "new"
