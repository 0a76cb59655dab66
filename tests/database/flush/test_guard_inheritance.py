"""Several tables, several classes, several schemas: the version is checked wherever it is."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, String, delete, event, select, text, update
from sqlalchemy.orm import (
    Mapped,
    Session,
    make_transient_to_detached,
    mapped_column,
    relationship,
    sessionmaker,
)

from optilock import ConfigurationError, Versioned, client_wins, merge_fields, store_wins, watch
from optilock._watched.session.record import options
from optilock.statements import no_bump
from optilock.tokens import CompareValues, Counter, Timestamp
from tests.support.models import (
    Animal,
    Base,
    Car,
    Comment,
    Dog,
    Employee,
    Manager,
    Note,
    Post,
    Vehicle,
    key,
    own_base,
)


class Paper(Versioned, Base):
    """The database makes the version."""

    __tablename__ = "inherited_papers"
    __version_token__ = Timestamp()
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(20))
    title: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "paper"}


class Letter(Paper):
    __tablename__ = "inherited_letters"
    __version_ignore__ = ("views",)
    id: Mapped[int] = mapped_column(ForeignKey("inherited_papers.id"), primary_key=True)
    body: Mapped[str | None]
    views: Mapped[int | None]
    __mapper_args__ = {"polymorphic_identity": "letter"}


class Cupboard(Versioned, Base):
    __tablename__ = "inherited_cupboards"
    __version_ignore__ = ("views",)
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(20))
    views: Mapped[int | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "cupboard"}


class Wardrobe(Cupboard):
    __tablename__ = "inherited_wardrobes"
    id: Mapped[int] = mapped_column(ForeignKey("inherited_cupboards.id"), primary_key=True)
    body: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "wardrobe"}


class TramDepot(Versioned, Base):
    __tablename__ = "inherited_depots"
    id: Mapped[int] = key()
    trams: Mapped[list[DepotTram]] = relationship(cascade="all, delete-orphan")


class DepotCar(Base):
    __tablename__ = "inherited_cars"
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(20))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "car"}


class DepotTram(Versioned, DepotCar):
    """Its version is in the table that is deleted first."""

    __tablename__ = "inherited_trams"
    id: Mapped[int] = mapped_column(ForeignKey("inherited_cars.id"), primary_key=True)
    depot_id: Mapped[int | None] = mapped_column(ForeignKey("inherited_depots.id"))
    __mapper_args__ = {"polymorphic_identity": "tram"}


class Sheet(Versioned, Base):
    __tablename__ = "inherited_sheets"
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(20))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "sheet"}


class Chart(Sheet):
    __tablename__ = "inherited_charts"
    __version_ignore__ = ("views",)
    id: Mapped[int] = mapped_column(ForeignKey("inherited_sheets.id"), primary_key=True)
    body: Mapped[str | None]
    views: Mapped[int | None]
    __mapper_args__ = {"polymorphic_identity": "chart"}


counted = pytest.mark.parametrize("model", [Letter, Chart])
alive = pytest.mark.needs("resolves-in-place")
rows = pytest.mark.parametrize("count", [1, 3])


def dogs(store, count):
    store(*(Dog(id=n, name="a", tricks="sit") for n in range(count)))


# -- joined tables --------------------------------------------------------------------------------


@counted
def test_a_child_held_still_keeps_the_version_in_the_parents_table(store, watched, stored, model):
    store(model(id=1, body="a"))
    before = stored(model, 1)["version"]
    session = watched()
    obj = session.get_one(model, 1)
    with no_bump(session):
        obj.body = "b"
    session.commit()
    assert (stored(model, 1)["body"], stored(model, 1)["version"]) == ("b", before)
    obj.body = "c"
    session.commit()
    assert stored(model, 1)["version"] > before


@counted
def test_ignored_columns_of_a_child_do_not_move_it_beside_values_that_stay(
    store, watched, stored, model
):
    store(model(id=1, body="a"))
    before = stored(model, 1)["version"]
    session = watched()
    obj = session.get_one(model, 1)
    obj.views = 1
    session.commit()
    obj.views, obj.body = 2, obj.body
    session.commit()
    assert (stored(model, 1)["views"], stored(model, 1)["version"]) == (2, before)
    obj.views, obj.body = 3, "b"
    session.commit()
    assert stored(model, 1)["version"] > before


def test_an_orphan_with_the_version_in_the_childs_table_is_deleted(store, watched, stored):
    store(TramDepot(id=1, trams=[DepotTram(id=1), DepotTram(id=2)]))
    session = watched()
    depot = session.get_one(TramDepot, 1)
    depot.trams.pop(0)
    session.commit()
    assert (stored(DepotTram, 1), stored(DepotCar, 1)) == (None, None)
    assert stored(DepotTram, 2)["version"] == 1


@alive
@rows
def test_an_ignored_column_of_the_parent_does_not_hide_a_change_of_the_child(
    store, watched, refused, stored, engine, count
):
    store(*(Wardrobe(id=n, body="a") for n in range(count)))
    session = watched()
    for wardrobe in session.scalars(select(Wardrobe)):
        wardrobe.views, wardrobe.body = 1, "mine"
    session.commit()
    assert [stored(Wardrobe, n)["version"] for n in range(count)] == [2] * count

    wardrobes = session.scalars(select(Wardrobe)).all()
    with watch(sessionmaker(engine))() as other:
        other.get_one(Wardrobe, 0).body = "theirs"
        other.commit()
    for wardrobe in wardrobes:
        wardrobe.views, wardrobe.body = 2, "again"
    [entry] = refused(session).entries
    assert (entry.identity, entry.conflicting) == ((0,), {"body"})
    session.rollback()
    assert stored(Wardrobe, 0)["body"] == "theirs"


@rows
def test_a_change_of_the_child_table_alone_moves_the_version(store, watched, stored, count):
    """SA-31"""
    dogs(store, count)
    session = watched()
    for dog in session.scalars(select(Dog)):
        dog.tricks = "roll"
    session.commit()

    assert [stored(Dog, n)["tricks"] for n in range(count)] == ["roll"] * count
    assert [stored(Dog, n)["version"] for n in range(count)] == [2] * count


@rows
@pytest.mark.parametrize(("ours", "theirs"), [
    ("tricks", "tricks"), ("tricks", "name"), ("name", "tricks"), ("name", "name"),
])  # fmt: skip
def test_changes_of_either_table_conflict(
    store, watched, other, refused, stored, count, ours, theirs
):
    """EF-34"""
    dogs(store, count)
    session = watched()
    for dog in session.scalars(select(Dog)):
        setattr(dog, ours, "ours")
    other(Dog, 0, **{theirs: "theirs"})
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity) == (Dog, (0,))
    assert entry.conflicting == ({ours} if ours == theirs else frozenset())
    assert stored(Dog, 0)[theirs] == "theirs"


@alive
@rows
def test_the_child_table_of_a_stale_row_is_not_written(
    store, watched, other, refused, stored, count
):
    dogs(store, count)
    session = watched()
    found = session.scalars(select(Dog).order_by(Dog.id)).all()
    for dog in found:
        dog.tricks = "ours"
    other(Dog, 0, name="theirs")
    refused(session)
    session.expunge(found[0])
    session.commit()

    assert (stored(Dog, 0)["tricks"], stored(Dog, 0)["name"]) == ("sit", "theirs")
    assert [stored(Dog, n)["tricks"] for n in range(1, count)] == ["ours"] * (count - 1)


@alive
def test_a_refused_joined_row_can_be_written_later_in_both_tables(
    store, watched, other, refused, stored
):
    dogs(store, 2)
    session = watched()
    found = session.scalars(select(Dog).order_by(Dog.id)).all()
    for dog in found:
        dog.name = dog.tricks = "ours"
    other(Dog, 0, name="theirs")
    [entry] = refused(session).entries
    session.refresh(found[0], with_for_update=True)
    entry.apply_to(found[0])
    session.commit()

    assert (stored(Dog, 0)["name"], stored(Dog, 0)["tricks"]) == ("ours", "ours")


def test_the_base_class_and_the_subclass_go_together(store, watched, other, refused, stored):
    store(Animal(id=1, name="a"), Dog(id=2, name="a"), Animal(id=3, name="a"), Dog(id=4, name="a"))
    session = watched()
    for animal in session.scalars(select(Animal)):
        animal.name = "b"
    session.commit()
    assert [stored(Animal, n)["version"] for n in (1, 2, 3, 4)] == [2, 2, 2, 2]
    for animal in session.scalars(select(Animal)):
        animal.name = "c"
    other(Dog, 2, tricks="theirs")
    other(Animal, 3, name="theirs")

    assert {(e.model, e.identity) for e in refused(session).entries} == {
        (Dog, (2,)), (Animal, (3,)),
    }  # fmt: skip


@alive
def test_a_joined_row_that_is_gone_is_inserted_again_in_both_tables(store, watched, gone, stored):
    dogs(store, 2)
    session = watched(client_wins)
    for dog in session.scalars(select(Dog)):
        dog.tricks = "ours"
    gone(Dog, 1)
    session.commit()

    assert (stored(Dog, 1)["name"], stored(Dog, 1)["tricks"]) == ("a", "ours")


def test_a_polymorphic_query_of_the_base_loads_enough_to_tell_the_conflict(
    store, watched, other, refused
):
    """``tricks`` is not loaded by a query of Animal: the entry has it from the database."""
    dogs(store, 2)
    session = watched()
    for dog in session.scalars(select(Animal)):
        dog.name = "ours"
    other(Dog, 1, tricks="theirs")
    [entry] = refused(session).entries

    assert entry.database["tricks"] == "theirs"
    assert entry.changes == {"name": "ours"}


# -- one table for several classes ----------------------------------------------------------------


@rows
def test_rows_of_one_table_and_several_classes(store, watched, other, refused, stored, count):
    store(*(Manager(id=n, name="a", budget=1) for n in range(count)), Employee(id=9, name="a"))
    session = watched()
    for person in session.scalars(select(Employee)):
        person.name = "b"
        if isinstance(person, Manager):
            person.budget = 2
    other(Manager, 0, budget=3)
    other(Employee, 9, name="theirs")

    assert {(e.model, e.identity) for e in refused(session).entries} == {
        (Manager, (0,)), (Employee, (9,)),
    }  # fmt: skip


# -- the version is in another table than the base ------------------------------------------------


@rows
@pytest.mark.parametrize("ours", ["name", "doors"])
def test_a_version_in_the_child_table_guards_both(
    store, watched, other, refused, stored, count, ours
):
    """SA-32"""
    store(*(Car(id=n, name="a", doors=2) for n in range(count)))
    session = watched()
    value = 4 if ours == "doors" else "ours"
    found = session.scalars(select(Car).order_by(Car.id)).all()
    for car in found:
        setattr(car, ours, value)
    other(Car, 0, doors=5)
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity) == (Car, (0,))
    assert entry.conflicting == ({"doors"} if ours == "doors" else frozenset())
    assert (stored(Car, 0)["doors"], stored(Car, 0)["name"]) == (5, "a")


@rows
def test_a_version_in_the_child_table_moves_with_both(store, watched, stored, count):
    store(*(Car(id=n, name="a", doors=2) for n in range(count)))
    session = watched()
    for car in session.scalars(select(Car)):
        car.name, car.doors = "b", 4
    session.commit()

    assert [(stored(Car, n)["name"], stored(Car, n)["doors"]) for n in range(count)] == [
        ("b", 4)
    ] * count
    assert [stored(Car, n)["version"] for n in range(count)] == [2] * count


@alive
@rows
def test_a_version_in_the_child_table_is_merged(store, watched, other, stored, count):
    store(*(Car(id=n, name="a", doors=2) for n in range(count)))
    session = watched(merge_fields)
    found = session.scalars(select(Car).order_by(Car.id)).all()
    for car in found:
        car.name = "ours"
    other(Car, 0, doors=5)
    session.commit()

    assert (stored(Car, 0)["name"], stored(Car, 0)["doors"]) == ("ours", 5)
    assert found[0].version == stored(Car, 0)["version"]


@rows
def test_a_version_in_the_child_table_guards_deletes(store, watched, other, refused, stored, count):
    store(*(Car(id=n, name="a", doors=2) for n in range(count)))
    session = watched()
    for car in session.scalars(select(Car)):
        session.delete(car)
    other(Car, 0, doors=5)
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.action, entry.identity) == ("delete", (0,))
    assert stored(Car, 0)["doors"] == 5


def test_rows_of_the_base_that_have_no_version_are_not_guarded(store, watched, other, stored):
    store(Vehicle(id=1, name="a"), Vehicle(id=2, name="a"), Car(id=3))
    session = watched()
    for vehicle in session.scalars(select(Vehicle).where(Vehicle.id < 3)):
        vehicle.name = "ours"
    session.commit()

    assert stored(Vehicle, 2)["name"] == "ours"


class Rank1(Versioned, Base):
    """Three tables deep, and a class that shares the table of the second."""

    __tablename__ = "in_rank1"
    id: Mapped[int] = key()
    kind: Mapped[str]
    one: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "1"}


class Rank2(Rank1):
    __tablename__ = "in_rank2"
    id: Mapped[int] = mapped_column(ForeignKey("in_rank1.id"), primary_key=True)
    two: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "2"}


class Rank3(Rank2):
    __tablename__ = "in_rank3"
    id: Mapped[int] = mapped_column(ForeignKey("in_rank2.id"), primary_key=True)
    three: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "3"}


class Rank2Sharing(Rank2):
    three: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "2s"}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("model", [Rank3, Rank2Sharing])
@pytest.mark.parametrize("theirs", ["one", "two", "three", "gone"])
@pytest.mark.parametrize("ours", ["one", "two", "three", "delete"])
def test_tables_three_deep_are_one_row(
    store, watched, other, gone, refused, stored, model, ours, theirs, count
):
    store(*(model(id=n) for n in range(count)))
    session = watched()
    rows = session.scalars(select(model).order_by(model.id)).all()
    session.expunge_all()
    session.rollback()
    gone(model, 0) if theirs == "gone" else other(model, 0, **{theirs: "theirs"})
    session.add_all(rows)
    for row in rows:
        session.delete(row) if ours == "delete" else setattr(row, ours, "ours")
    [entry] = refused(session).entries
    assert (entry.model, entry.identity) == (model, (0,))
    session.rollback()
    row = stored(model, 0)
    assert row is None if theirs == "gone" else (row[theirs], row["version"]) == ("theirs", 2)


# -- order ----------------------------------------------------------------------------------------


def test_parents_come_before_children_and_updates_before_what_needs_them(
    store, watched, stored, engine
):
    """A new parent, children that move to it, and the old parent deleted: one flush."""
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys=ON"))
        engine.dispose()
    store(Post(id=1, title="a", comments=[Comment(id=n, text="a") for n in range(3)]))
    session = watched()
    old = session.get_one(Post, 1)
    new = Post(id=2, title="new", comments=list(old.comments))
    session.add(new)
    session.delete(old)
    session.commit()

    assert stored(Post, 1) is None
    assert [stored(Comment, n)["post_id"] for n in range(3)] == [2, 2, 2]


def test_swapped_parents_are_stored(store, watched, stored):
    store(Post(id=1, comments=[Comment(id=1), Comment(id=2)]), Post(id=2, comments=[Comment(id=3)]))
    session = watched()
    one, two = session.scalars(select(Post).order_by(Post.id)).all()
    one.comments, two.comments = list(two.comments), list(one.comments)
    session.commit()

    assert [stored(Comment, n)["post_id"] for n in (1, 2, 3)] == [2, 2, 1]


# -- schemas --------------------------------------------------------------------------------------


@pytest.fixture
def away(engine):
    """The engine with a second schema in the place of the first."""
    family = engine.dialect.name
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS away" + cascade(family)))
        connection.execute(text("CREATE SCHEMA away"))
        there = connection.execution_options(schema_translate_map={None: "away"})
        Base.metadata.create_all(there, tables=[Note.__table__, Animal.__table__, Dog.__table__])
    yield engine.execution_options(schema_translate_map={None: "away"})
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA away" + cascade(family)))


def cascade(name):
    return " CASCADE" if name == "postgresql" else ""


@rows
@alive
@pytest.mark.engines("postgresql", "mariadb")
def test_translated_schemas_are_written_and_checked(away, watched_on, count):
    with Session(away) as session, session.begin():
        session.add_all(Note(id=n, text="a") for n in range(count))
        session.add_all(Dog(id=n, name="a") for n in range(count))
    session = watched_on(away, client_wins, autoflush=False)
    for note in session.scalars(select(Note)):
        note.text = "ours"
    for dog in session.scalars(select(Dog)):
        dog.tricks = "ours"
    with Session(away) as theirs, theirs.begin():
        theirs.get_one(Note, 0).text = "theirs"
        theirs.get_one(Dog, 0).name = "theirs"
    session.commit()

    with Session(away) as reader:
        assert set(reader.scalars(select(Note.text))) == {"ours"}
        assert set(reader.scalars(select(Dog.tricks))) == {"ours"}
        assert reader.get_one(Dog, 0).name == "theirs"


@rows
@pytest.mark.engines("postgresql", "mariadb")
def test_a_conflict_in_a_translated_schema_is_told(away, watched_on, refused, count):
    with Session(away) as session, session.begin():
        session.add_all(Note(id=n, text="a") for n in range(count))
    session = watched_on(away)
    for note in session.scalars(select(Note)):
        note.text = "ours"
    with Session(away) as theirs, theirs.begin():
        theirs.get_one(Note, 0).text = "theirs"
    [entry] = refused(session).entries

    assert (entry.identity, entry.database["text"]) == ((0,), "theirs")


@pytest.mark.parametrize("change", ["criteria", "key", "delete"])
@pytest.mark.engines("postgresql", "mariadb")
def test_a_statement_for_another_schema_than_the_objects_is_refused(
    away, watched, store, stored, change
):
    """Its rows have the keys of the session's objects, and are others."""
    store(Dog(id=1, name="here"))
    with Session(away) as session, session.begin():
        session.add(Dog(id=1, name="away"))
    session = watched()
    dog = session.get_one(Dog, 1)
    there = {"schema_translate_map": {None: "away"}}
    statement, rows = {
        "criteria": (update(Dog).where(Dog.id == 1).values(name="theirs"), None),
        "key": (update(Dog), [{"id": 1, "version": 1, "name": "theirs"}]),
        "delete": (delete(Dog).where(Dog.id == 1), None),
    }[change]
    with pytest.raises(ConfigurationError, match="schema_translate_map of its own"):
        session.execute(statement, rows, execution_options=there)
    dog.name = "mine"
    session.commit()

    assert stored(Dog, 1)["name"] == "mine"
    with Session(away) as reader:
        assert reader.get_one(Dog, 1).name == "away"


@pytest.mark.parametrize("change", ["criteria", "key"])
@pytest.mark.engines("postgresql", "mariadb")
def test_one_for_the_schema_of_the_objects_may_say_so(away, watched_on, change):
    with Session(away) as session, session.begin():
        session.add(Note(id=1, text="away"))
    session = watched_on(away)
    note = session.get_one(Note, 1)
    there = {"schema_translate_map": {None: "away"}}
    if change == "key":
        rows = [{"id": 1, "version": note.version, "text": "first"}]
        session.execute(update(Note), rows, execution_options=there)
    else:
        session.execute(update(Note).values(text="first"), execution_options=there)
    note.text = "mine"
    session.commit()

    with Session(away) as reader:
        assert reader.get_one(Note, 1).text == "mine"


@pytest.fixture
def elsewhere(engine, tmp_path):
    """A schema that the table itself names."""
    family = engine.dialect.name
    if family == "sqlite":
        path = tmp_path / "far.db"
        event.listen(engine, "connect", lambda c, _: c.execute(f"ATTACH '{path}' AS \"far off\""))
        engine.dispose()
    quoted = engine.dialect.identifier_preparer.quote("far off")
    with engine.begin() as connection:
        if family != "sqlite":
            connection.execute(text(f"DROP SCHEMA IF EXISTS {quoted}{cascade(family)}"))
            connection.execute(text(f"CREATE SCHEMA {quoted}"))
        Far.__table__.create(connection)
    yield engine
    if family != "sqlite":
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {quoted}{cascade(family)}"))


FarBase = own_base()


class Far(Versioned, FarBase):
    """In a schema of its own, whose name needs quotes."""

    __tablename__ = "far"
    __table_args__ = {"schema": "far off"}
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str | None]


@rows
def test_named_schemas_are_written_and_checked(elsewhere, watched, other, refused, stored, count):
    with Session(elsewhere) as session, session.begin():
        session.add_all(Far(id=n, name="a") for n in range(count))
    session = watched()
    for row in session.scalars(select(Far)):
        row.name = "b"
    session.commit()
    assert [stored(Far, n)["name"] for n in range(count)] == ["b"] * count
    for row in session.scalars(select(Far)):
        row.name = "c"
    other(Far, 0, name="theirs")

    assert [e.identity for e in refused(session).entries] == [(0,)]


@pytest.mark.parametrize("doomed", [False, True], ids=["updated", "deleted"])
def test_a_joined_row_that_nobody_has_read_is_not_written_blindly(
    store, watched, other, stored, doomed
):
    """SQLAlchemy writes the child's table alone, and then looks at no version."""
    store(Dog(id=1, name="a", tricks="sit"))
    session = watched()
    dog = Dog(id=1)
    make_transient_to_detached(dog)
    session.add(dog)
    if doomed:
        session.delete(dog)
    else:
        dog.tricks = "blind"
    other(Dog, 1, tricks="theirs")
    with pytest.raises(ConfigurationError, match="without having been read"):
        session.flush()
    with pytest.raises(ConfigurationError, match="without having been read"):
        session.flush()
    assert session.is_active
    session.rollback()
    assert stored(Dog, 1)["tricks"] == "theirs"


class Kennel(Versioned, Base):
    """Its rows are compared by values as well."""

    __tablename__ = "inherited_kennels"
    __version_token__ = (Counter(), CompareValues.changed())
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(20))
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "kennel"}


class Cage(Kennel):
    __tablename__ = "inherited_cages"
    id: Mapped[int] = mapped_column(ForeignKey("inherited_kennels.id"), primary_key=True)
    lock: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "cage"}


EXPRESSIONS = [
    (Dog, "tricks", "name"),
    (Dog, "name", "tricks"),
    (Car, "name", "doors"),
    (Car, "doors", "name"),
    (Cage, "lock", "name"),
]
computed = pytest.mark.parametrize(("model", "ours", "theirs"), EXPRESSIONS)


def of(model, number):
    text = {"doors": 1} if model is Car else {"tricks" if model is Dog else "lock": "a"}
    return model(id=number, name="a", **text)


def longer(model, name):
    """The value that is stored, and something more."""
    column = getattr(model, name)
    return (column + 1, 2) if name == "doors" else (column.concat("!"), "a!")


def changed(name):
    return 7 if name == "doors" else "theirs"


@alive
@rows
@computed
@pytest.mark.parametrize("resolver", [merge_fields, client_wins])
def test_an_expression_for_any_table_of_a_stale_row_is_merged(
    store, watched, other, stored, model, ours, theirs, resolver, count
):
    store(*(of(model, n) for n in range(count)))
    session = watched(resolver)
    found = [session.get(model, n) for n in range(count)]
    other(model, 0, **{theirs: changed(theirs)})
    expression, expected = longer(model, ours)
    for one in found:
        setattr(one, ours, expression)
    session.commit()
    now = stored(model, 0)
    assert (now[ours], now[theirs], now["version"]) == (expected, changed(theirs), 3)
    assert getattr(found[0], ours) == expected
    assert all(stored(model, n)[ours] == expected for n in range(count))


@alive
@computed
def test_a_refused_row_keeps_its_expression_for_any_table(
    store, watched, other, refused, stored, model, ours, theirs
):
    store(of(model, 0))
    session = watched()
    one = session.get(model, 0)
    other(model, 0, **{theirs: changed(theirs)})
    expression, expected = longer(model, ours)
    setattr(one, ours, expression)
    refused(session)
    options(session, on_conflict=merge_fields)
    session.commit()
    assert stored(model, 0)[ours] == expected
    assert stored(model, 0)[theirs] == changed(theirs)


# -- a row that changes its class ------------------------------------------------------------------


class Ticket(Versioned, Base):
    """One table for all kinds."""

    __tablename__ = "kinds_of_tickets"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(9))
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": kind, "polymorphic_identity": "ticket"}


class Bug(Ticket):
    __mapper_args__ = {"polymorphic_identity": "bug"}


class Wish(Ticket):
    __mapper_args__ = {"polymorphic_identity": "wish"}


@pytest.fixture
def turned(engine, store):
    """Another program makes a bug a wish."""
    store(Bug(id=1, name="old"))

    def turned():
        table = Ticket.__table__
        with engine.begin() as connection:
            connection.execute(update(table).values(kind="wish"))

    return turned


@pytest.mark.parametrize("read_as", [Ticket, Bug])
@pytest.mark.parametrize("resolver", [store_wins, client_wins, merge_fields])
@pytest.mark.needs("resolves-in-place")
def test_an_object_whose_row_has_changed_its_class_is_a_conflict(
    watched, stored, refused, turned, resolver, read_as
):
    """Resolved, it would be an object whose row no read finds again."""
    session = watched(resolver)
    bug = session.get_one(read_as, 1)
    turned()
    bug.name = "mine"
    error = refused(session)
    assert error.entries[0].database["kind"] == "wish"
    assert "of the class Wish" in error.__notes__[0]
    session.expunge(bug)
    session.rollback()
    wish = session.get_one(Ticket, 1)
    assert (type(wish), wish.name) == (Wish, "old")
    wish.name = "again"
    session.commit()

    assert stored(Ticket, 1)["name"] == "again"


@pytest.mark.needs("resolves-in-place")
def test_it_may_still_be_deleted(watched, stored, turned):
    session = watched(client_wins)
    bug = session.get_one(Bug, 1)
    turned()
    session.delete(bug)
    session.commit()

    assert stored(Ticket, 1) is None


@pytest.mark.needs("resolves-in-place")
def test_one_that_is_read_as_the_parent_of_its_new_class_is_merged(watched, stored, engine, store):
    store(Ticket(id=1, name="old"))
    session = watched(merge_fields)
    ticket = session.get_one(Ticket, 1)
    with engine.begin() as connection:
        connection.execute(update(Ticket.__table__).values(kind="wish"))
    ticket.name = "mine"
    session.commit()

    assert (stored(Ticket, 1)["kind"], stored(Ticket, 1)["name"]) == ("wish", "mine")
