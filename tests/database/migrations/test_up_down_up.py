"""Each operation, taken back and done again, leaves the schema that it left the first time."""

from __future__ import annotations

from dataclasses import fields

import pytest
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ClauseElement,
    Column,
    Computed,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    func,
    inspect,
    text,
)

from optilock.alembic import (
    AddVersionColumn,
    ChangeVersionColumn,
    CreateGuardTrigger,
    CreateOptilockTables,
    CreateVersionTrigger,
    DropGuardTrigger,
    DropOptilockTables,
    DropVersionColumn,
    DropVersionTrigger,
)
from optilock.tables import table_sets
from optilock.tokens import Counter, Manual, RowVersion, Timestamp, Unique
from optilock.tokens.guard_trigger import GuardTrigger
from tests.support.migrating import migrate, triggers

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]


def parcels():
    """A table with what a table can have, among others that refer to it."""
    tables = MetaData()
    Table("towns", tables, Column("id", Integer, primary_key=True), Column("name", String(20)))
    parcel = Table(
        "parcels",
        tables,
        Column("id", Integer, primary_key=True, comment="the key"),
        Column("owner", String(20), nullable=False, server_default="nobody"),
        Column("weight", BigInteger, nullable=False, server_default=text("0")),
        Column("town", ForeignKey("towns.id", ondelete="CASCADE", name="lies_in"), index=True),
        Column("inside", ForeignKey("parcels.id", name="lies_inside")),
        Column("twice", BigInteger, Computed("weight * 2", persisted=True)),
        Column("rest", Integer, server_default=text("7")),
        UniqueConstraint("owner", "town", name="one_each"),
        CheckConstraint("weight >= 0", name="positive"),
        comment="with everything",
    )
    Index("heavy", parcel.c.weight, unique=False, postgresql_where=parcel.c.weight > 100)
    Index("by_both", parcel.c.owner, parcel.c.weight.desc())
    Index("lower", func.lower(parcel.c.owner)).ddl_if(dialect="postgresql")
    Table(
        "stamps",
        tables,
        Column("id", Integer, primary_key=True),
        Column("parcel", ForeignKey("parcels.id", ondelete="CASCADE", name="is_on")),
    )
    return tables


_SOMEBODYS = {
    "sqlite": (
        "CREATE TRIGGER mine AFTER DELETE ON parcels BEGIN DELETE FROM towns WHERE id = 99; END",
    ),
    "mysql": (
        "CREATE TRIGGER mine AFTER DELETE ON parcels FOR EACH ROW DELETE FROM towns WHERE id = 99",
    ),
    "postgresql": (
        "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$",
        "CREATE TRIGGER mine AFTER DELETE ON parcels FOR EACH ROW EXECUTE FUNCTION mine()",
    ),
}


@pytest.fixture
def town(engine):
    tables = parcels()
    tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(tables.tables["towns"].insert().values(id=1, name="Ulm"))
        connection.execute(
            tables.tables["parcels"].insert(),
            [{"id": n, "owner": f"o{n}", "weight": n, "town": 1} for n in range(1, 4)],
        )
        connection.execute(tables.tables["stamps"].insert().values(id=1, parcel=2))
        for statement in _SOMEBODYS[engine.dialect.name]:
            connection.execute(text(statement))
        connection.execute(text("CREATE VIEW heavy_ones AS SELECT id, weight FROM parcels"))
    yield
    with engine.begin() as connection:
        connection.execute(text("DROP VIEW heavy_ones"))


def schema(engine):
    """All that reflection says of all tables, and the catalogue of triggers."""
    found = {"triggers": triggers(engine)}
    with engine.connect() as connection:
        seen = inspect(connection)
        found["views"] = seen.get_view_names()
        for what, tables in (
            ("columns", seen.get_multi_columns()),
            ("key", seen.get_multi_pk_constraint()),
            ("foreign", seen.get_multi_foreign_keys()),
            ("unique", seen.get_multi_unique_constraints()),
            ("checks", seen.get_multi_check_constraints()),
            ("indexes", seen.get_multi_indexes()),
            ("comment", seen.get_multi_table_comment() if seen.dialect.supports_comments else {}),
        ):
            found |= {(name, what): _said(said) for (_, name), said in tables.items()}
    return found


def _said(said):
    """Columns in their order, anything else of which a table has several in any order."""
    if not isinstance(said, list):
        return said
    if all("type" in one and "nullable" in one for one in said):
        return [sorted((k, str(v)) for k, v in one.items()) for one in said]
    return sorted(str(_without_clauses(one)) for one in said)


def _without_clauses(said):
    """With the texts of SQL in it: a clause of SQLAlchemy's is equal to itself only."""
    if isinstance(said, dict):
        return {name: _without_clauses(one) for name, one in said.items()}
    return str(said) if isinstance(said, ClauseElement) else said


def rows(engine):
    with engine.connect() as connection:
        counted = "SELECT (SELECT count(*) FROM parcels), (SELECT count(*) FROM stamps)"
        kept = text("SELECT id, owner, weight, town, twice, rest FROM parcels ORDER BY id")
        return connection.execute(text(counted)).all() + connection.execute(kept).all()


def goes_both_ways(engine, operation, *, differs=True):
    """Up, down, up; then the reverse of the reverse, which is the operation itself."""
    before, kept = schema(engine), rows(engine)
    migrate(engine, lambda op: op.invoke(operation))
    after = schema(engine)
    assert (after != before) is differs
    migrate(engine, lambda op: op.invoke(operation.reverse()))
    assert schema(engine) == before
    migrate(engine, lambda op: op.invoke(operation.reverse().reverse()))
    assert schema(engine) == after
    assert rows(engine) == kept


TOKENS = {
    "counter": Counter(),
    "unique": Unique(),
    "timestamp": Timestamp(),
    "row version": RowVersion(),
    "manual": Manual(String(20)),
    "renamed": Counter(name="revision", column="rev no"),
}
FILL = {"manual": "'first'"}
each_token = pytest.mark.parametrize("name", TOKENS)
guarded = pytest.mark.parametrize("name", ["counter", "unique", "timestamp", "renamed"])


def there(engine, name, table="parcels"):
    """The version is on the table, as a migration puts it there."""
    migrate(engine, lambda op: op.add_version_column(table, TOKENS[name], fill=FILL.get(name)))


@each_token
def test_add_version_column(engine, town, name):
    goes_both_ways(engine, AddVersionColumn("parcels", TOKENS[name], fill=FILL.get(name)))


@each_token
def test_drop_version_column(engine, town, name):
    there(engine, name)
    goes_both_ways(engine, DropVersionColumn("parcels", TOKENS[name], fill=FILL.get(name)))


MOVING = [name for name in TOKENS if name != "manual"]


@pytest.mark.parametrize("old", MOVING)
@pytest.mark.tenth
def test_change_version_column_to_every_other_token(engine, town, old):
    there(engine, old)
    for new in MOVING:
        if new == old:
            continue
        changed = ChangeVersionColumn("parcels", TOKENS[old], TOKENS[new])
        # A number of ours and one of the database's are the same column.
        goes_both_ways(engine, changed, differs={old, new} != {"counter", "row version"})
        migrate(engine, lambda op, changed=changed: op.invoke(changed.reverse()))


@pytest.mark.parametrize("other", ["counter", "unique", "timestamp", "row version"])
def test_change_version_column_to_the_applications_own_and_back(engine, town, other):
    there(engine, other)
    before = schema(engine)
    manual, token = TOKENS["manual"], TOKENS[other]
    up = ChangeVersionColumn("parcels", token, manual, fill="'first'")
    migrate(engine, lambda op: op.invoke(up))
    after = schema(engine)
    migrate(engine, lambda op: op.invoke(up.reverse()))
    assert schema(engine) == before
    migrate(engine, lambda op: op.invoke(up))
    assert schema(engine) == after


@guarded
@pytest.mark.parametrize("policy", ["bump", "reject"])
@pytest.mark.parametrize("ignore", [(), ("rest", "owner")], ids=["all", "some"])
def test_create_and_drop_guard_trigger(engine, town, name, policy, ignore):
    there(engine, name)
    guard = GuardTrigger("parcels", TOKENS[name], policy, ignore)
    goes_both_ways(engine, CreateGuardTrigger(guard))
    goes_both_ways(engine, DropGuardTrigger(guard))


def test_create_and_drop_version_trigger(engine, town):
    there(engine, "row version")
    goes_both_ways(engine, CreateVersionTrigger("parcels", RowVersion()))
    goes_both_ways(engine, DropVersionTrigger("parcels", RowVersion()))


@pytest.mark.parametrize("name", table_sets())
def test_create_and_drop_optilock_tables(engine, town, name):
    newest = table_sets()[name].revision
    goes_both_ways(engine, CreateOptilockTables(name, newest))
    goes_both_ways(engine, DropOptilockTables(name, newest))


def test_the_guard_stays_while_another_version_comes_and_goes(engine, town):
    there(engine, "counter")
    migrate(engine, lambda op: op.create_guard_trigger("parcels", Counter(), "bump"))
    goes_both_ways(engine, AddVersionColumn("parcels", Unique(name="stamp")))


def test_every_kind_of_token_is_here():
    from optilock import tokens

    kinds = {getattr(tokens, name) for name in tokens.__all__}
    kinds = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, tokens.Token)}
    assert kinds - {tokens.Token} == {type(token) for token in TOKENS.values()}
    assert all(fields(kind) for kind in kinds)


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("table", ["boxes", "b" * 60])
@pytest.mark.parametrize("name", ["version", "v" * 60, "ü" * 30])
def test_constraints_are_named_as_if_nothing_had_been_changed(engine, table, name):
    """Also NOT NULL, which is one since PostgreSQL 18."""
    old, new = Counter(column=name), Unique(column=name)

    def names():
        with engine.connect() as connection:
            asked = text("SELECT conname FROM pg_constraint WHERE conrelid = CAST(:t AS regclass)")
            return sorted(connection.scalars(asked, {"t": table}))

    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)"))
        connection.execute(text(f"INSERT INTO {table} VALUES (1)"))
    migrate(engine, lambda op: op.add_version_column(table, old))
    before = names()
    for _ in range(2):
        migrate(engine, lambda op: op.change_version_column(table, old, new))
        assert names() == before
        migrate(engine, lambda op: op.change_version_column(table, new, old))
        assert names() == before
    renamed = Counter(column="ver")
    migrate(engine, lambda op: op.change_version_column(table, old, renamed))
    migrate(engine, lambda op: op.change_version_column(table, renamed, old))
    assert names() == before
