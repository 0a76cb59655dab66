"""No foreign UPDATE changes a row behind optilock's back: it moves the version, or is refused."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from sqlalchemy import String, Uuid, create_engine, event, func, inspect, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConfigurationError, OptilockError, Versioned, bulk_update, merge_fields, touch
from optilock.statements import no_bump
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique
from tests.support.migrating import migrate, shape, triggers
from tests.support.tens_token import Tens

TOKENS = {"counter": Counter(), "unique": Unique(), "timestamp": Timestamp(), "tens": Tens()}


class Base(DeclarativeBase):
    pass


def model(name: str, token, guard: str, *ignored: str):
    return type(
        name,
        (Versioned, Base),
        {
            "__tablename__": name.lower(),
            "__version_token__": token,
            "__version_guard__": guard,
            "__version_ignore__": ignored,
            "__annotations__": {"id": Mapped[int], "body": Mapped[str], "views": Mapped[int]},
            "id": mapped_column(primary_key=True, autoincrement=False),
            "body": mapped_column("the body", String(20)),
            "views": mapped_column(default=0),
        },
    )


BUMPED = {name: model(f"Bumped {name}", token, "bump") for name, token in TOKENS.items()}
REJECTED = {name: model(f"Rejected {name}", token, "reject") for name, token in TOKENS.items()}
VIEWED = {how: model(f"Viewed{how}", Counter(), how, "views") for how in ("bump", "reject")}
each_token = pytest.mark.parametrize("kind", TOKENS)
each_policy = pytest.mark.parametrize("how", VIEWED)


@pytest.fixture
def guarded(engine, store):
    """Rows of the class, behind its guard trigger."""

    def guarded(cls, rows: int = 3):
        store(*(cls(id=n, body=f"body {n}", views=0) for n in range(rows)))
        table, ignore = cls.__table__.name, [*cls.__version_ignore__]
        migrate(
            engine,
            lambda op: op.create_guard_trigger(
                table, cls.__version_token__, cls.__version_guard__, ignore=ignore
            ),
        )
        return cls

    return guarded


@pytest.fixture
def foreign(engine):
    """A program that knows of no version."""

    def foreign(cls, what: str, **values) -> None:
        quoted = engine.dialect.identifier_preparer.format_table(cls.__table__)
        body = engine.dialect.identifier_preparer.quote("the body").replace("%%", "%")
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE {quoted} SET {what.replace('BODY', body)}"), values)

    return foreign


def versions(engine, cls):
    with engine.connect() as connection:
        return list(
            connection.scalars(select(cls.__table__.c.version).order_by(cls.__table__.c.id))
        )


@each_token
def test_the_version_moves_when_a_foreign_update_leaves_it_alone(engine, guarded, foreign, kind):
    cls = guarded(BUMPED[kind])
    before = versions(engine, cls)
    foreign(cls, "BODY = 'theirs' WHERE id < 2")
    after = versions(engine, cls)
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]
    foreign(cls, "BODY = 'again' WHERE id < 2")
    # The rows of a statement have one version, or each its own; MariaDB inserts moments row by row.
    assert len({*before[:2], *after[:2], *versions(engine, cls)[:2]}) in (3, 4, 6)


@each_token
def test_a_foreign_update_is_refused_and_nothing_is_lost(engine, guarded, foreign, kind):
    cls = guarded(REJECTED[kind])
    before = versions(engine, cls)
    with pytest.raises(DBAPIError, match="leaves its version as it was"):
        foreign(cls, "BODY = 'theirs'")
    assert versions(engine, cls) == before


def test_a_foreign_update_that_moves_the_version_itself_is_let_through(engine, guarded, foreign):
    for cls in (guarded(BUMPED["counter"]), guarded(REJECTED["counter"])):
        foreign(cls, "BODY = 'theirs', version = version + 1")
        assert versions(engine, cls) == [2, 2, 2]


@each_policy
def test_an_update_of_ignored_columns_alone_is_let_alone(engine, guarded, foreign, how):
    cls = guarded(VIEWED[how])
    foreign(cls, "views = views + 1")
    assert versions(engine, cls) == [1, 1, 1]


def test_an_update_of_others_beside_ignored_columns_counts(engine, guarded, foreign):
    cls = guarded(VIEWED["bump"])
    foreign(cls, "views = 5, BODY = 'theirs' WHERE id = 1")
    assert versions(engine, cls) == [1, 2, 1]
    foreign(cls, "BODY = 'Theirs' WHERE id = 1")  # a collation would see no change
    assert versions(engine, cls) == [1, 3, 1]


@each_token
def test_what_a_foreign_program_changed_is_a_conflict_for_us(
    engine, guarded, foreign, watched, refused, kind
):
    cls = guarded(BUMPED[kind])
    session = watched()
    ours = session.get_one(cls, 1)
    assert ours.body == "body 1"
    foreign(cls, "BODY = 'theirs' WHERE id = 1")
    ours.body = "ours"
    [entry] = refused(session).entries
    assert entry.database["body"] == "theirs"


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("classes", [BUMPED, REJECTED], ids=["bump", "reject"])
@each_token
def test_our_own_writes_pass_untouched(engine, guarded, watched, classes, rows, kind):
    cls = guarded(classes[kind], rows)
    session = watched()
    for round_ in range(2):
        for one in session.scalars(select(cls)):
            one.body = f"round {round_}"
            if one.id % 2:
                one.views += 1
        session.flush()
    session.commit()
    stored = {one.id: one.version for one in session.scalars(select(cls))}
    if kind == "counter":
        assert set(stored.values()) == {3}
    session.delete(session.get_one(cls, 0))
    session.commit()


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("rows", [1, 4])
def test_corrections_pass_untouched(engine, guarded, watched, other, rows):
    cls = guarded(REJECTED["counter"], rows)
    session = watched(on_conflict=merge_fields)
    for one in session.scalars(select(cls)):
        one.body = "ours"
    other(cls, 0, views=9)
    session.commit()
    row = session.get_one(cls, 0)
    assert (row.body, row.views, row.version) == ("ours", 9, 3)


@each_token
def test_rows_in_bulk_pass_untouched(engine, guarded, watched, kind):
    cls = guarded(REJECTED[kind])
    session = watched()
    seen = {row.id: row.version for row in session.execute(select(cls.id, cls.version))}
    rows = [{"id": n, "version": seen[n], "body": "bulk"} for n in seen]
    assert len(bulk_update(session, cls, rows).updated) == 3
    session.commit()
    assert set(session.scalars(select(cls.body))) == {"bulk"}


@each_token
def test_an_update_statement_passes_untouched(engine, guarded, watched, kind):
    cls = guarded(REJECTED[kind])
    session = watched()
    before = versions(engine, cls)
    session.execute(update(cls).where(cls.id < 2).values(body="statement"))
    session.commit()
    after = versions(engine, cls)
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]


def test_touch_passes_untouched(engine, guarded, watched):
    cls = guarded(REJECTED["counter"])
    session = watched()
    touch(session.get_one(cls, 1))
    session.commit()
    assert versions(engine, cls) == [1, 2, 1]


@each_policy
@pytest.mark.engines("postgresql")
def test_no_bump_is_announced_for_its_flush_alone(engine, guarded, watched, how):
    cls = guarded({"bump": BUMPED, "reject": REJECTED}[how]["counter"])
    session = watched()
    with no_bump(session):
        session.get_one(cls, 1).views = 7
    setting = select(func.current_setting("optilock.no_bump", True))
    assert session.scalar(setting) == "off"
    session.commit()
    assert versions(engine, cls) == [1, 1, 1]
    assert session.scalar(setting) in (None, "")


@each_policy
@pytest.mark.engines("sqlite-wal", "mariadb")
def test_no_bump_is_refused_where_it_cannot_be_announced(engine, guarded, watched, how):
    cls = guarded({"bump": BUMPED, "reject": REJECTED}[how]["counter"])
    session = watched()
    row = session.get_one(cls, 1)
    with pytest.raises(ConfigurationError, match="no_bump"), no_bump(session):
        row.views = 7
    session.rollback()
    assert versions(engine, cls) == [1, 1, 1]


@each_policy
@each_token
def test_up_down_and_up_again_is_the_same_schema(engine, tables, how, kind):
    cls = {"bump": BUMPED, "reject": REJECTED}[how][kind]
    tables(cls)
    name, token = cls.__table__.name, TOKENS[kind]
    created = shape(engine, name)
    migrate(engine, lambda op: op.drop_guard_trigger(name, token, how, ignore=["views"]))
    before = shape(engine, name)
    for _ in range(2):  # made twice, it replaces itself
        migrate(engine, lambda op: op.create_guard_trigger(name, token, how, ignore=["views"]))
    after = shape(engine, name)
    migrate(engine, lambda op: op.drop_guard_trigger(name, token, how, ignore=["views"]))
    assert shape(engine, name) == before
    migrate(engine, lambda op: op.create_guard_trigger(name, token, how, ignore=["views"]))
    assert shape(engine, name) == after != before
    assert len(created["triggers"]) == 1  # create_all has made it


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.parametrize("how", ["bump", "reject"])
def test_b7_create_all_makes_the_guard_and_drop_all_takes_it(engine, how):
    """As a migration makes it; and it works at once."""
    cls = {"bump": BUMPED, "reject": REJECTED}[how]["counter"]
    table = cls.__table__
    table.metadata.drop_all(engine, tables=[table])
    table.metadata.create_all(engine, tables=[table])
    (made,) = shape(engine, table.name)["triggers"]
    with engine.begin() as connection:
        row = {cls.id: 1, cls.body: "old", cls.views: 0, cls.version: 1}
        connection.execute(table.insert().values(row))
    version = inspect(cls).version_id_col
    change = table.update().values({cls.body: "new", version: version})
    refused = pytest.raises(DBAPIError) if how == "reject" else nullcontext()
    with refused, engine.begin() as connection:
        connection.execute(change)
        assert connection.scalar(select(version)) == 2
    arguments = (table.name, Counter(), how)
    migrate(engine, lambda op: op.create_guard_trigger(*arguments))
    (migrated,) = shape(engine, table.name)["triggers"]
    assert migrated == made
    table.metadata.drop_all(engine, tables=[table])
    if engine.dialect.name == "postgresql":  # the trigger's function goes, too
        functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'optilock_guard%'"
        with engine.begin() as connection:
            assert connection.scalar(text(functions)) == 0
    table.metadata.create_all(engine, tables=[table])
    table.metadata.drop_all(engine, tables=[table])


@pytest.mark.engines("sqlite-wal")
def test_recursive_triggers_do_not_move_the_version_twice(engine, guarded):
    cls = guarded(BUMPED["counter"])
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA recursive_triggers = ON")
        connection.exec_driver_sql('UPDATE "bumped counter" SET views = 3')
    assert versions(engine, cls) == [2, 2, 2]


@pytest.mark.engines("sqlite-wal")
def test_a_table_without_rowid_is_guarded_by_its_key(engine):
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE pairs (a INTEGER, b TEXT, n INTEGER, version BIGINT NOT NULL DEFAULT 1,"
            " PRIMARY KEY (a, b)) WITHOUT ROWID"
        )
        connection.exec_driver_sql("INSERT INTO pairs (a, b) VALUES (1, 'x'), (1, 'y')")
    migrate(engine, lambda op: op.create_guard_trigger("pairs", Counter(), "bump"))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE pairs SET n = 1 WHERE b = 'x'")
        found = connection.exec_driver_sql("SELECT version FROM pairs ORDER BY b").scalars().all()
    assert found == [2, 1]


@pytest.mark.parametrize("name", ["t" * 60, 'it\'s 100% "odd" :x'], ids=["long", "odd"])
def test_names_of_any_length_and_with_any_sign_are_guarded(engine, name):
    table = engine.dialect.identifier_preparer.quote(name)
    columns = "id INTEGER PRIMARY KEY, version BIGINT NOT NULL DEFAULT 1"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} ({columns})")
    for how in ("bump", "reject"):
        migrate(engine, lambda op, how=how: op.create_guard_trigger(name, Counter(), how))
    assert len(triggers(engine)) == 1
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")


@pytest.mark.engines("postgresql")
def test_a_schema_of_its_own(engine):
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA "My Wiki"'))
        connection.execute(
            text('CREATE TABLE "My Wiki".pages (id int PRIMARY KEY, n int, version bigint)')
        )
        connection.execute(text('INSERT INTO "My Wiki".pages VALUES (1, 1, 1)'))
    migrate(
        engine,
        lambda op: op.create_guard_trigger("pages", Counter(), "bump", schema="My Wiki"),
    )
    with engine.begin() as connection:
        moved = text('UPDATE "My Wiki".pages SET n = 2 RETURNING version')
        assert connection.scalar(moved) == 2
    migrate(
        engine,
        lambda op: op.drop_guard_trigger("pages", Counter(), "bump", schema="My Wiki"),
    )
    assert triggers(engine) == []


class TestBadInput:
    @pytest.mark.parametrize(
        ("token", "guard", "words"),
        [
            (Counter(), "move", "'bump'"),
            (RowVersion(), "bump", "trigger of its own"),
            (Manual(Uuid()), "reject", "Manual"),
            (CompareValues.all(), "bump", "Counter"),
        ],
        ids=["policy", "row version", "manual", "compared"],
    )
    @pytest.mark.engines("sqlite-wal")
    def test_a_class_that_cannot_be_guarded(self, engine, token, guard, words):
        with pytest.raises(ConfigurationError, match=words):
            model(f"Wrong{type(token).__name__}{guard}", token, guard)

    @pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
    @pytest.mark.parametrize(
        ("table", "options", "words"),
        [
            ("nowhere", {}, "no table"),
            ("bumped counter", {"ignore": ["nothing"]}, "'nothing'"),
            ("bumped counter", {"ignore": "views"}, "is a text"),
            ("bumped unique", {}, "cannot use"),
        ],
    )
    def test_what_is_not_there(self, engine, guarded, table, options, words):
        for cls in (BUMPED["counter"], BUMPED["unique"]):
            cls.metadata.create_all(engine, tables=[cls.__table__])
        before = shape(engine, *inspect(engine).get_table_names())
        with pytest.raises(ConfigurationError, match=words):
            migrate(
                engine,
                lambda op: op.create_guard_trigger(table, Counter(), "bump", **options),
            )
        assert shape(engine, *inspect(engine).get_table_names()) == before

    @each_policy
    @pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
    def test_a_version_that_is_guarded_is_not_dropped(self, engine, guarded, foreign, how):
        cls = guarded(VIEWED[how])
        name = cls.__table__.name
        before = shape(engine, name)
        for work in (
            lambda op: op.drop_version_column(name, Counter()),
            lambda op: op.change_version_column(name, Counter(), Unique()),
        ):
            with pytest.raises(ConfigurationError, match="drop_guard_trigger"):
                migrate(engine, work)
        assert shape(engine, name) == before
        foreign(cls, "views = 1")


class TestWithoutTheRight:
    """Somebody who may read and write the rows, and no more."""

    @pytest.fixture
    def weak(self, engine, database):
        """An engine of that somebody."""
        family = engine.dialect.name
        if family == "sqlite":
            path = engine.url.database
            made = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
        elif family == "postgresql":
            with engine.begin() as connection:
                connection.execute(text("DROP ROLE IF EXISTS optilock_weak"))
                connection.execute(text("CREATE ROLE optilock_weak"))
                rights = "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public"
                connection.execute(text(f"{rights} TO optilock_weak"))
                connection.execute(text("GRANT USAGE ON SCHEMA public TO optilock_weak"))
            made = create_engine(engine.url)

            @event.listens_for(made, "connect")
            def become(connection, record):
                connection.execute("SET ROLE optilock_weak")
                connection.commit()

        else:
            with engine.begin() as connection:
                connection.execute(text("CREATE OR REPLACE USER optilock_weak IDENTIFIED BY 'w'"))
                schema = engine.url.database
                rights = f"GRANT SELECT, INSERT, UPDATE ON `{schema}`.*"
                connection.execute(text(f"{rights} TO optilock_weak"))
            made = create_engine(engine.url.set(username="optilock_weak", password="w"))
        yield made
        made.dispose()
        with engine.begin() as connection:
            if family == "postgresql":
                connection.execute(text("DROP OWNED BY optilock_weak"))
                connection.execute(text("DROP ROLE optilock_weak"))
            elif family == "mysql":
                connection.execute(text("DROP USER optilock_weak"))

    @pytest.fixture
    def table(self, engine, store):
        cls = BUMPED["counter"]
        store(cls(id=1, body="body", views=0))
        name = cls.__table__.name
        migrate(engine, lambda op: op.drop_guard_trigger(name, Counter(), "bump"))
        return name

    @pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
    @pytest.mark.parametrize("what", ["guard", "version", "column", "drop"])
    def test_the_error_says_so_and_nothing_is_changed(self, engine, table, weak, what):
        works = {
            "guard": lambda op: op.create_guard_trigger(table, Counter(), "bump"),
            "version": lambda op: op.create_version_trigger(table, RowVersion()),
            "column": lambda op: op.add_version_column(table, Counter(name="other")),
            "drop": lambda op: op.drop_version_column(table, Counter()),
        }
        before = shape(engine, table)
        with pytest.raises(OptilockError, match="may not") as caught:
            migrate(weak, works[what])
        assert table in str(caught.value)
        assert shape(engine, table) == before
        with engine.begin() as connection:
            quoted = engine.dialect.identifier_preparer.quote(table)
            connection.execute(text(f"UPDATE {quoted} SET views = 1"))
