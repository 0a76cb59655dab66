"""A table without a schema is the one that statements find, wherever in the ``search_path``."""

from __future__ import annotations

import pytest
from sqlalchemy import String, create_engine, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import OptilockError, Versioned
from optilock.check import check
from optilock.rollout import abort, claim, roll_out
from optilock.rollout.report import Silent
from optilock.tokens import Counter, RowVersion, Unique
from tests.support.migrating import migrate, revise, run, send

pytestmark = pytest.mark.engines("postgresql")


def models():
    class Base(DeclarativeBase):
        pass

    def model(name, token, guard):
        body = {
            "__tablename__": name,
            "__version_token__": token,
            "__version_guard__": guard,
            "__annotations__": {"id": Mapped[int], "title": Mapped[str]},
            "id": mapped_column(primary_key=True),
            "title": mapped_column(String(20)),
        }
        return type(name.title(), (Versioned, Base), body)

    Base.pages = model("sp_pages", Counter(), "bump")
    Base.texts = model("sp_texts", Counter(), "reject")
    Base.items = model("sp_items", RowVersion(), None)
    return Base


@pytest.fixture
def schemas(engine):
    """Two schemas, and a way to an engine that looks through them in an order."""
    made = []

    def through(*path):
        options = f"-c search_path={','.join(path)}"
        made.append(create_engine(engine.url.update_query_dict({"options": options})))
        return made[-1]

    drop = [f"DROP SCHEMA IF EXISTS {name} CASCADE" for name in ("sp_tenant", "sp_shared")]
    send(engine, *drop, "CREATE SCHEMA sp_tenant", "CREATE SCHEMA sp_shared")
    yield through
    for one in made:
        one.dispose()
    send(engine, *drop)


def guard(engine, base, *classes):
    def work(op):
        for cls in classes:
            op.create_guard_trigger(cls.__tablename__, Counter(), cls.__version_guard__)

    migrate(engine, work)


@pytest.fixture
def shared(schemas):
    """The models, their tables in the second schema, and the engine that finds them there."""
    base = models()
    owner = schemas("sp_shared")
    base.metadata.create_all(owner)
    guard(owner, base, base.pages, base.texts)
    return base, schemas("sp_tenant", "sp_shared")


def test_the_check_finds_tables_and_triggers_in_the_second_schema(shared):
    base, engine = shared
    assert check(base, engine) == []
    send(engine, "ALTER TABLE sp_pages DISABLE TRIGGER optilock_guard_sp_pages")
    assert [(f.code, f.subject) for f in check(base, engine)] == [("trigger-off", "sp_pages")]


def test_the_check_takes_the_table_that_comes_first(shared):
    base, engine = shared
    body = "id INTEGER PRIMARY KEY, title VARCHAR(20), version BIGINT NOT NULL"
    send(engine, f"CREATE TABLE sp_tenant.sp_pages ({body})")
    assert [(f.code, f.subject) for f in check(base, engine)] == [("no-trigger", "sp_pages")]


def test_autogenerate_finds_the_guards_of_the_second_schema(shared):
    base, engine = shared
    assert revise(engine, base.metadata).empty
    send(engine, "DROP TRIGGER optilock_guard_sp_pages ON sp_pages")
    revision = revise(engine, base.metadata)
    assert revision.lines == [
        "op.create_guard_trigger('sp_pages', optilock.tokens.Counter(), 'bump')"
    ]
    run(engine, revision, revision.upgrade)
    assert check(base, engine) == []
    run(engine, revision, revision.downgrade)
    run(engine, revision, revision.upgrade)
    assert revise(engine, base.metadata).empty


def test_a_roll_out_makes_nothing_anew_there(shared):
    _, engine = shared
    assert roll_out(engine, "sp_pages", guard="bump").steps == ()
    assert roll_out(engine, "sp_items", token=RowVersion()).steps == ()


@pytest.mark.parametrize("token", [Counter(), RowVersion()], ids=["guard", "version"])
def test_what_is_made_stands_beside_the_table_and_not_in_the_tenants_schema(schemas, token):
    """Or the table would lose its trigger with the schema of one tenant."""
    engine = schemas("sp_tenant", "sp_shared")
    send(engine, "CREATE TABLE sp_shared.sp_boxes (id INTEGER PRIMARY KEY, owner TEXT)")
    policy = None if token == RowVersion() else "bump"
    roll_out(engine, "sp_boxes", token=token, guard=policy)
    send(engine, "DROP SCHEMA sp_tenant CASCADE", "INSERT INTO sp_boxes (id) VALUES (1)")
    send(engine, "UPDATE sp_boxes SET owner = 'Ada'")
    assert send(engine, "SELECT version FROM sp_boxes")[0].scalar() == 2


def test_an_operation_makes_its_function_beside_the_table(schemas):
    base, engine = models(), schemas("sp_tenant", "sp_shared")
    base.metadata.create_all(schemas("sp_shared"))
    guard(engine, base, base.pages)
    found = "SELECT count(*) FROM pg_proc WHERE pronamespace = CAST('sp_tenant' AS regnamespace)"
    assert send(engine, found)[0].scalar() == 0


def test_a_revision_that_sets_the_path_rolls_out_where_the_table_is(schemas):
    owner = schemas("public")
    send(owner, "CREATE TABLE sp_shared.sp_boxes (id INTEGER PRIMARY KEY, owner TEXT)")

    def work(op):
        op.execute("SET search_path = sp_tenant, sp_shared")
        op.roll_out_version_column("sp_boxes", Counter(), guard="bump")

    migrate(owner, work)
    assert roll_out(owner, "sp_boxes", schema="sp_shared", guard="bump").steps == ()


def test_a_roll_out_that_runs_there_is_not_taken_back(schemas):
    engine = schemas("sp_tenant", "sp_shared")
    send(engine, "CREATE TABLE sp_shared.sp_boxes (id INTEGER PRIMARY KEY)")
    send(engine, "INSERT INTO sp_boxes VALUES (1)")

    class Aborts(Silent):
        def step(self, name, total=None):
            for options in ({}, {"schema": "sp_shared"}):
                with pytest.raises(OptilockError, match="Another roll-out"):
                    abort(engine, "sp_boxes", token=Unique(), **options)

    assert roll_out(engine, "sp_boxes", token=Unique(), progress=Aborts()).filled == 1


def test_one_that_failed_there_is_taken_back(schemas):
    engine = schemas("sp_tenant", "sp_shared")
    send(engine, "CREATE TABLE sp_shared.sp_boxes (id INTEGER PRIMARY KEY)")
    claimed = claim.claim_of("sp_boxes", "sp_shared")
    with engine.begin() as connection:
        claimed.make(connection)
    assert abort(engine, "sp_boxes") == ("drop the owner's note",)
    assert inspect(engine).get_table_names(schema="sp_shared") == ["sp_boxes"]
