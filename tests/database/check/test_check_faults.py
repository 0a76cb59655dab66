"""``optilock check`` finds each fault that is planted in a sound database, and nothing in that."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import create_engine

from optilock import tokens
from optilock.check import check
from optilock.dialects import database_of
from tests.database.check.faults import (
    CLASSES,
    PLANTED,
    Fault,
    Items,
    Pages,
    Timed,
    Totals,
    create,
    done,
    run,
)
from tests.support.migrating import migrate

#: What a server's own settings say.
OF_SERVERS = {"no-snapshot-isolation"}
GUARDED = [cls for cls in CLASSES if cls.__version_guard__]


def found(engine):
    engine.dispose()  # settings of a role count from the next connection on
    return {(f.code, f.subject): f for f in check(CLASSES, engine) if f.code not in OF_SERVERS}


@pytest.fixture
def sound(engine):
    create(engine)
    return engine


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_a_database_with_all_tokens_and_guards_is_sound(sound):
    assert found(sound) == {}


def faults_of(engine: str):
    return pytest.mark.parametrize("fault", [f for f in PLANTED if f.engine == engine], ids=str)


def is_found_until_it_is_undone(engine, fault: Fault) -> None:
    done(engine, fault.plant)
    try:
        told = found(engine)
        assert (fault.code, fault.subject) in told
        finding = told[fault.code, fault.subject]
        assert fault.says in finding.message
        assert finding.advice
    finally:
        done(engine, fault.undo)
    assert found(engine) == {}


@pytest.mark.engines("postgresql")
@faults_of("postgresql")
@pytest.mark.tenth
def test_a_fault_on_postgresql(sound, fault):
    is_found_until_it_is_undone(sound, fault)


@pytest.mark.engines("mariadb")
@faults_of("mariadb")
def test_a_fault_on_mariadb(sound, fault):
    is_found_until_it_is_undone(sound, fault)


@pytest.mark.engines("sqlite-wal")
@faults_of("sqlite")
@pytest.mark.tenth
def test_a_fault_on_sqlite(sound, fault):
    is_found_until_it_is_undone(sound, fault)


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.parametrize("cls", [Pages, Items, Timed, Totals], ids=lambda cls: cls.__tablename__)
def test_the_operation_that_is_advised_settles_it(sound, cls):
    name, on = cls.__tablename__, sound.dialect.name == "postgresql"
    trigger = f"{name}_version_moves" if cls is Items else f"optilock_guard_{name}"
    run(sound, f"DROP TRIGGER {trigger}" + f" ON {name}" * on)
    advice = found(sound)["no-trigger", name].advice
    [call] = re.findall(r"op\.\w+\(.*\)(?=, which)", advice)
    migrate(sound, lambda op: eval(call, {**vars(tokens), "op": op}))
    assert found(sound) == {}


def test_the_planted_faults_are_of_many_kinds():
    assert len({fault.code for fault in PLANTED}) >= 18
    assert len(PLANTED) >= 60


@pytest.mark.engines("postgresql")
def test_triggers_that_the_url_switches_off(sound):
    told = sound.url.update_query_dict({"options": "-c session_replication_role=replica"})
    made = create_engine(told)
    finding = found(made)["replica-role", "connection"]
    assert "client" in finding.message
    made.dispose()
    assert found(sound) == {}


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize(
    ("setting", "code"),
    [("session_replication_role = replica", "replica-role"), ("optilock.no_bump = on", "no-bump")],
)
def test_a_setting_of_a_role_in_all_databases(sound, setting, code):
    """It is never committed: nobody else who uses the server has it."""
    with sound.connect() as connection:
        connection.exec_driver_sql(f"ALTER ROLE CURRENT_USER SET {setting}")
        [weakness] = database_of(sound.dialect).servers.weak_settings(connection)
        connection.rollback()
    assert weakness.code == code
    assert " for ROLE " in weakness.message
    assert " DATABASE " not in weakness.message
    assert found(sound) == {}


@pytest.mark.engines("postgresql")
def test_rows_that_are_hidden_from_the_user_who_checks(sound):
    run(
        sound,
        "DROP ROLE IF EXISTS ck_reader",
        "CREATE ROLE ck_reader",
        "GRANT USAGE ON SCHEMA public TO ck_reader",
        "GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA public TO ck_reader",
        "ALTER TABLE ck_pages ENABLE ROW LEVEL SECURITY",
    )
    made = create_engine(sound.url.update_query_dict({"options": "-c role=ck_reader"}))
    try:
        assert "this user" in found(made)["row-security", "ck_pages"].message
        run(sound, "ALTER TABLE ck_pages DISABLE ROW LEVEL SECURITY")
        assert found(made) == {}
    finally:
        made.dispose()
        run(sound, "DROP OWNED BY ck_reader", "DROP ROLE ck_reader")


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize(
    "body",
    [
        "IF NEW.version = OLD.version THEN RAISE NOTICE 'same'; END IF; RETURN NEW;",
        "NEW.title := 'version'; -- NEW.version := 1;\n RETURN NEW;",
        "UPDATE ck_plain SET views = 0, version = 1 WHERE id = NEW.id; RETURN NEW;",
        "NEW.version := OLD.version + 1; RETURN NEW;",
    ],
)
def test_a_foreign_trigger_that_leaves_the_version_alone_is_sound(sound, body):
    run(
        sound,
        "CREATE OR REPLACE FUNCTION ck_foreign() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {body} END $$",
        "CREATE TRIGGER ck_z BEFORE UPDATE ON ck_pages FOR EACH ROW EXECUTE FUNCTION ck_foreign()",
    )
    try:
        assert found(sound) == {}
    finally:
        run(sound, "DROP FUNCTION ck_foreign() CASCADE")


@pytest.mark.engines("postgresql")
def test_a_foreign_trigger_for_other_events_may_set_the_version(sound):
    run(
        sound,
        "CREATE OR REPLACE FUNCTION ck_foreign() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.version := 1; RETURN NEW; END $$",
        "CREATE TRIGGER ck_z BEFORE INSERT ON ck_pages FOR EACH ROW EXECUTE FUNCTION ck_foreign()",
    )
    try:
        assert found(sound) == {}
    finally:
        run(sound, "DROP FUNCTION ck_foreign() CASCADE")


@pytest.mark.engines("mariadb")
def test_triggers_that_may_not_be_read_are_told_and_no_others(sound):
    event = "UPDATE ON ck_plain FOR EACH ROW SET @x = 1"
    run(
        sound,
        f"CREATE TRIGGER ck_z BEFORE {event}",
        "CREATE TRIGGER ck_y BEFORE INSERT ON ck_plain FOR EACH ROW SET @x = 1",
        "CREATE OR REPLACE USER ck_w IDENTIFIED BY 'w'",
        f"GRANT SELECT, UPDATE ON `{sound.url.database}`.* TO ck_w",
    )
    weak = create_engine(sound.url.set(username="ck_w", password="w"))
    try:
        guards = {f"{c.__tablename__}.optilock_guard_{c.__tablename__}" for c in GUARDED}
        wanted = {*guards, "ck_items.ck_items_version_moves", "ck_plain.ck_z"}
        assert set(found(weak)) == {("unreadable", subject) for subject in wanted}
    finally:
        weak.dispose()
        run(sound, "DROP USER ck_w")
