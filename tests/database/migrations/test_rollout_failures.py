"""What goes wrong in a roll-out leaves a table that works, and nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import pytest
from sqlalchemy import Engine, String, create_engine, event, inspect, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConfigurationError, OptilockError, Versioned
from optilock.check import check
from optilock.dialects.values import plain_ddl, quote_name
from optilock.rollout import claim, roll_out
from optilock.rollout.report import Silent
from optilock.tokens import Counter, RowVersion, Timestamp, Unique
from tests.support.migrating import migrate, once_free, revise, send, shape
from tests.support.waiting import until

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]
GUARDED: dict[str, Any] = {"token": Unique(), "guard": "bump"}
MOVED: dict[str, Any] = {"token": RowVersion()}
each_way = pytest.mark.parametrize("options", [GUARDED, MOVED], ids=["guarded", "row-version"])


@pytest.fixture
def table(engine):
    _create(engine)


def _create(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE parcels (id INTEGER PRIMARY KEY, owner VARCHAR(20) NOT NULL)")
        )
        connection.execute(text("INSERT INTO parcels VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Eve')"))


def rows(engine: Engine, what: str = "id, owner") -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(f"SELECT {what} FROM parcels"))]


def works(engine: Engine) -> None:
    """Programs that know of no version write as before."""
    send(engine, "UPDATE parcels SET owner = 'Zoe' WHERE id = 3")
    send(engine, "INSERT INTO parcels (id, owner) VALUES (9, 'new')")
    send(engine, "DELETE FROM parcels WHERE id = 9")
    send(engine, "UPDATE parcels SET owner = 'Eve' WHERE id = 3")
    assert sorted(rows(engine)) == [(1, "Ada"), (2, "Bob"), (3, "Eve")]


_KEPT = (
    "CREATE TABLE parcels (id INTEGER PRIMARY KEY, owner VARCHAR(20))",
    "INSERT INTO parcels VALUES (1, 'Ada'), (2, 'kept'), (3, 'Eve')",
)
#: Nobody holds a row, and one does not get its version.
_LEAVES_OUT = {
    "sqlite": (
        *_KEPT,
        "CREATE TRIGGER keeps BEFORE UPDATE ON parcels WHEN OLD.owner = 'kept'"
        " BEGIN SELECT RAISE(IGNORE); END",
    ),
    "postgresql": (
        *_KEPT,
        "CREATE FUNCTION keeps() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF OLD.owner = ''kept'' THEN RETURN NULL; END IF; RETURN NEW; END'",
        "CREATE TRIGGER keeps BEFORE UPDATE ON parcels FOR EACH ROW EXECUTE FUNCTION keeps()",
    ),
    "mysql": (
        "CREATE TABLE parcels (id FLOAT PRIMARY KEY, owner VARCHAR(20))",
        "INSERT INTO parcels VALUES (1, 'Ada'), (0.1, 'kept'), (3, 'Eve')",
    ),
}
_SWITCHED_OFF = {
    "sqlite": "DROP TRIGGER keeps",
    "postgresql": "ALTER TABLE parcels DISABLE TRIGGER keeps",
}


@pytest.mark.full
class TestKilled:
    """SIGKILL at each COMMIT in turn, and run again."""

    @each_way
    def test_it_goes_on_from_every_step(self, engine, options, monkeypatch):
        monkeypatch.setattr(claim, "TERM", 0.5)  # or every one had to be waited for
        _create(engine)
        roll_out(engine, "parcels", **options)
        wanted = shape(engine, "parcels")
        engine.dispose()
        for commits in range(1, 100):
            send(engine, "DROP TABLE parcels")
            _create(engine)
            engine.dispose()
            if not _killed(engine.url, options, commits):
                break
            works(engine)
            _again(engine, options)
            assert shape(engine, "parcels") == wanted, commits
            works(engine)
        assert commits > 5


def _killed(url: Any, options: dict[str, Any], commits: int) -> bool:
    """Was it killed at that COMMIT, or was it over before?"""
    process = multiprocessing.get_context("fork").Process(
        target=_roll_out_until, args=(url, options, commits)
    )
    process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _roll_out_until(url: Any, options: dict[str, Any], commits: int) -> None:
    engine, left = create_engine(url), [commits]

    @event.listens_for(engine, "commit")
    def count(connection: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    roll_out(engine, "parcels", **options)


def _again(engine: Engine, options: dict[str, Any]) -> None:
    """The claim of the first one ends by itself."""

    def is_over() -> bool:
        once_free(lambda: roll_out(engine, "parcels", **options))
        return not inspect(engine).has_table("optilock_rollout_of_parcels")

    until(is_over, every=0.05)


class TestHeld:
    """Somebody's transaction does not end."""

    @pytest.mark.parametrize(
        "at", ["add the column", "create the guard trigger", "fill", "require it"]
    )
    def test_the_step_gives_up_and_the_next_run_goes_on(self, engine, table, at, monkeypatch):
        monkeypatch.setattr(claim, "TERM", 0.5)  # on SQLite nobody can end it while that is held
        holder = engine.connect()

        class Holds(Silent):
            def step(self, name: str, total: int | None = None) -> None:
                if name == at:
                    holder.execute(text("UPDATE parcels SET owner = 'held'"))

        with pytest.raises(OptilockError, match=r"run\s+the\s+roll-out\s+again"):
            roll_out(engine, "parcels", **GUARDED, patience=0.3, progress=Holds())
        holder.rollback()
        holder.close()
        works(engine)
        _again(engine, GUARDED)
        works(engine)
        assert None not in [version for (version,) in rows(engine, "version")]


class TestRefused:
    """The database has a reason of its own."""

    def test_a_trigger_that_refuses_every_update(self, engine, table):
        send(engine, *_REFUSES[engine.dialect.name])
        with pytest.raises(OptilockError, match="did not write the rows of parcels") as caught:
            roll_out(engine, "parcels", token=Unique())
        assert "not now" in str(caught.value.__cause__)
        assert "not now" not in str(caught.value)
        on = " ON parcels" if engine.dialect.name == "postgresql" else ""
        send(engine, f"DROP TRIGGER refuses{on}")
        works(engine)
        roll_out(engine, "parcels", token=Unique())
        works(engine)

    @pytest.mark.full
    def test_rows_that_stay_as_they_are_are_told_from_rows_that_are_held(self, engine):
        """At once, and not when the patience is over."""
        send(engine, *_LEAVES_OUT[engine.dialect.name])
        with pytest.raises(OptilockError, match=r"no\s+transaction\s+holds"):
            roll_out(engine, "parcels", token=Unique(), patience=600)
        if engine.dialect.name == "mysql":
            return
        send(engine, _SWITCHED_OFF[engine.dialect.name])
        assert roll_out(engine, "parcels", token=Unique()).filled == 1

    def test_a_program_that_takes_a_version_away_is_waited_for(self, engine, table):
        """A row without a version, after all were filled."""

        class Takes(Silent):
            left = 2

            def step(self, name: str, total: int | None = None) -> None:
                if name == "require it" and self.left:
                    self.left -= 1
                    send(engine, "UPDATE parcels SET version = NULL WHERE id = 2")

        report = roll_out(engine, "parcels", token=Unique(), progress=Takes())
        assert report.steps[-2:] == ("fill", "require it")
        assert None not in [version for (version,) in rows(engine, "version")]
        works(engine)

    @pytest.mark.engines("postgresql", "mariadb")
    def test_one_that_does_so_for_ever_ends_it_and_goes_on_writing(self, engine, table):
        class Takes(Silent):
            def step(self, name: str, total: int | None = None) -> None:
                if name == "require it":
                    send(engine, "UPDATE parcels SET version = NULL WHERE id = 3")

        with pytest.raises(OptilockError, match="did not change parcels"):
            roll_out(engine, "parcels", token=Unique(), progress=Takes())
        works(engine)
        roll_out(engine, "parcels", token=Unique())
        works(engine)

    @pytest.mark.engines("postgresql")
    @pytest.mark.parametrize("at", ["VALIDATE", "SET NOT NULL"])
    def test_nothing_is_left_of_a_last_step_that_fails(self, engine, table, at):
        fails = [True]

        @event.listens_for(engine, "before_cursor_execute", retval=True)
        def fail(connection: Any, cursor: Any, sql: str, *more: Any) -> Any:
            if at in sql and fails.pop():
                sql = "SELECT 1 / 0"
            return sql, more[0]

        with pytest.raises(OptilockError, match="did not change parcels"):
            roll_out(engine, "parcels", token=Unique())
        event.remove(engine, "before_cursor_execute", fail)
        assert inspect(engine).get_check_constraints("parcels") == []
        send(engine, "UPDATE parcels SET version = NULL WHERE id = 3")
        works(engine)
        roll_out(engine, "parcels", token=Unique())
        works(engine)

    @pytest.mark.engines("postgresql")
    @pytest.mark.parametrize("at", ["add the column", "fill", "require it"])
    def test_a_server_that_ends_all_connections(self, engine, database, table, at):
        administrator = database.engine()

        class Ends(Silent):
            def step(self, name: str, total: int | None = None) -> None:
                if name == at:
                    send(administrator, _END_ALL)

        with pytest.raises(OptilockError, match="run the roll-out again"):
            roll_out(engine, "parcels", **GUARDED, progress=Ends())
        administrator.dispose()
        works(engine)
        roll_out(engine, "parcels", **GUARDED)
        works(engine)

    @pytest.mark.engines("sqlite-wal")
    def test_a_strict_table_that_has_no_such_type(self, engine):
        send(engine, "CREATE TABLE parcels (id INTEGER PRIMARY KEY, owner TEXT) STRICT")
        send(engine, "INSERT INTO parcels VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Eve')")
        with pytest.raises(OptilockError, match="did not change parcels"):
            roll_out(engine, "parcels", **GUARDED)
        works(engine)

    @pytest.mark.engines("postgresql", "mariadb")
    def test_two_at_once_however_the_schema_is_named(self, engine, table):
        schema = engine.dialect.default_schema_name or engine.url.database
        refused: list[str] = []

        class Again(Silent):
            def step(self, name: str, total: int | None = None) -> None:
                with pytest.raises(OptilockError, match="Another roll-out") as caught:
                    roll_out(engine, "parcels", schema=schema)
                refused.append(str(caught.value))

        roll_out(engine, "parcels", progress=Again())
        assert len(refused) == 3
        works(engine)


_END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_type = 'client backend'"
    " AND pid <> pg_backend_pid()"
)
_REFUSES = {
    "sqlite": (
        "CREATE TRIGGER refuses BEFORE UPDATE ON parcels BEGIN SELECT RAISE(ABORT, 'not now'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not now'; END $$",
        "CREATE TRIGGER refuses BEFORE UPDATE ON parcels FOR EACH ROW EXECUTE FUNCTION refuses()",
    ),
    "mysql": (
        "CREATE TRIGGER refuses BEFORE UPDATE ON parcels FOR EACH ROW"
        " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'",
    ),
}


class TestRights:
    """A user who may do some of it."""

    @pytest.fixture
    def weak(self, engine):
        """Makes an engine of a user with these rights on the table; the table's owner if so."""
        made: list[Engine] = []
        family = engine.dialect.name
        if family == "sqlite":
            pytest.skip("SQLite has no users")

        def weak(rights: str, *, owner: bool = False) -> Engine:
            noted = claim.claim_of("parcels", None)
            with engine.begin() as connection:
                noted.make(connection)
            if family == "postgresql":
                send(engine, "DROP ROLE IF EXISTS optilock_roller", "CREATE ROLE optilock_roller")
                send(engine, "GRANT USAGE ON SCHEMA public TO optilock_roller")
                send(engine, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
                if owner:
                    send(engine, "ALTER TABLE parcels OWNER TO optilock_roller")
                    send(engine, "REVOKE ALL ON parcels FROM optilock_roller")
                send(engine, f"GRANT {rights} ON parcels TO optilock_roller")
                send(engine, f"ALTER TABLE {noted.row.name} OWNER TO optilock_roller")
                user = create_engine(engine.url)
                event.listen(user, "connect", _become)
            else:
                send(engine, "CREATE OR REPLACE USER optilock_roller IDENTIFIED BY 'w'")
                if owner:
                    rights = f"{rights}, ALTER"
                send(engine, f"GRANT {rights} ON `{engine.url.database}`.* TO optilock_roller")
                both = f"`{engine.url.database}`.{noted.row.name} TO optilock_roller"
                send(engine, f"GRANT SELECT, INSERT, UPDATE, DROP ON {both}")
                user = create_engine(engine.url.set(username="optilock_roller", password="w"))
            made.append(user)
            return user

        yield weak
        for user in made:
            user.dispose()
        if family == "postgresql":
            send(engine, "REASSIGN OWNED BY optilock_roller TO CURRENT_USER")
            send(engine, "DROP OWNED BY optilock_roller", "DROP ROLE optilock_roller")
        else:
            send(engine, "DROP USER optilock_roller")

    def test_who_may_not_create_tables_is_told_of_which(self, engine, table, weak):
        user = weak("SELECT, INSERT, UPDATE", owner=True)
        send(engine, "DROP TABLE optilock_rollout_of_parcels")
        before = shape(engine, "parcels")
        with pytest.raises(OptilockError, match="not create the table optilock_rollout_of_parcels"):
            roll_out(user, "parcels", token=Unique())
        assert shape(engine, "parcels") == before
        _as_before(engine)

    def test_who_may_not_alter_the_table_changes_nothing(self, engine, table, weak):
        before = shape(engine, "parcels")
        user = weak("SELECT, INSERT, UPDATE")
        with pytest.raises(OptilockError, match="may not change parcels") as caught:
            roll_out(user, "parcels", **GUARDED)
        assert "owner" in str(caught.value)
        assert shape(engine, "parcels") == before

    @pytest.mark.engines("postgresql")
    def test_who_may_not_see_every_row_is_told_so(self, engine, table, weak):
        """The rows that are hidden would get no version, and nobody could write them any more."""
        user = weak("SELECT, INSERT, UPDATE", owner=True)
        send(
            engine,
            "ALTER TABLE parcels ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE parcels FORCE ROW LEVEL SECURITY",
            "CREATE POLICY low ON parcels USING (id < 3)",
        )
        before = shape(engine, "parcels")
        with pytest.raises(ConfigurationError, match="Row-level security may hide rows of parcels"):
            roll_out(user, "parcels", token=Unique())
        assert shape(engine, "parcels") == before
        works(engine)
        send(engine, "ALTER TABLE parcels NO FORCE ROW LEVEL SECURITY")
        send(engine, "GRANT UPDATE, SELECT ON parcels TO optilock_roller")
        roll_out(user, "parcels", token=Unique())
        _as_before(engine)
        works(engine)

    @pytest.mark.engines("mariadb")
    @each_way
    @pytest.mark.parametrize("rights", ["SELECT, INSERT, UPDATE, ALTER", "SELECT"])
    def test_who_may_not_see_a_trigger_is_told_so(self, engine, table, weak, options, rights):
        """MariaDB shows that it is there and not what it does, or, to a reader, nothing at all."""
        roll_out(engine, "parcels", **options)
        user = weak(rights)
        mapped = _parcels(options)
        [seen] = [one for one in check(mapped, user) if one.subject.startswith("parcels")]
        assert (seen.code, "TRIGGER" in seen.advice) == ("unreadable", True)
        with pytest.raises(OptilockError, match="may not see what the trigger"):
            revise(user, mapped.metadata)
        if rights != "SELECT":
            with pytest.raises(OptilockError, match=r"may not see|moves parcels.version"):
                migrate(user, lambda op: op.drop_version_column("parcels", options["token"]))
        works(engine)

    @pytest.mark.engines("mariadb")
    def test_a_trigger_that_is_missing_is_missed_by_a_reader(self, engine, table, weak):
        roll_out(engine, "parcels", token=Unique())
        mapped = _parcels(GUARDED)
        [seen] = [one for one in check(mapped, weak("SELECT")) if one.subject == "parcels"]
        assert seen.code == "no-trigger"

    @each_way
    def test_who_may_not_create_triggers_is_told_so(self, engine, table, weak, options):
        user = weak("SELECT, INSERT, UPDATE", owner=True)
        with pytest.raises(OptilockError, match="may not create triggers on parcels"):
            roll_out(user, "parcels", **options)
        works(engine)
        assert shape(engine, "parcels")["triggers"] == []
        _as_before(engine)
        roll_out(engine, "parcels", **options)
        works(engine)

    def test_who_may_not_write_the_rows_is_told_so(self, engine, table, weak):
        user = weak("SELECT", owner=True)
        with pytest.raises(OptilockError, match="may not write the rows of parcels"):
            roll_out(user, "parcels", token=Unique())
        _as_before(engine)
        works(engine)
        roll_out(engine, "parcels", token=Unique())
        works(engine)


def _parcels(options: dict[str, Any]) -> Any:
    """The class of the table."""

    class Base(DeclarativeBase):
        pass

    class Parcel(Versioned, Base):
        __tablename__ = "parcels"
        __version_token__ = options["token"]
        __version_guard__ = options.get("guard")
        id: Mapped[int] = mapped_column(primary_key=True)
        owner: Mapped[str] = mapped_column(String(20))

    return Parcel


def _become(connection: Any, record: Any) -> None:
    connection.execute("SET ROLE optilock_roller")
    connection.commit()


def _as_before(engine: Engine) -> None:
    """The table belongs to whom it belonged."""
    if engine.dialect.name == "postgresql":
        send(engine, "ALTER TABLE parcels OWNER TO CURRENT_USER")


class TestKinds:
    """Tables that are not just columns and a key."""

    def test_a_schema_before_the_name_is_told_from_it(self, engine, table):
        schema = {"sqlite": "main", "postgresql": "public"}.get(engine.dialect.name)
        with pytest.raises(ConfigurationError, match="by themselves"):
            roll_out(engine, f"{schema or engine.url.database}.parcels")

    def test_a_view_is_refused_by_that_word(self, engine, table):
        send(engine, "CREATE VIEW boxes AS SELECT * FROM parcels")
        try:
            with pytest.raises(ConfigurationError, match="boxes is a view"):
                roll_out(engine, "boxes")
        finally:
            send(engine, "DROP VIEW boxes")

    @pytest.mark.engines("postgresql", "mariadb")
    @pytest.mark.parametrize(
        "options",
        [GUARDED, MOVED, {"token": Timestamp()}, {"token": Counter(), "guard": "reject"}],
        ids=["unique", "row-version", "timestamp", "counter"],
    )
    def test_a_partitioned_table_gets_it_in_every_partition(self, engine, options):
        if engine.dialect.name == "postgresql":
            partitions = "PARTITION BY RANGE (id)"
        else:
            partitions = "PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (10),"
            partitions += " PARTITION high VALUES LESS THAN MAXVALUE)"
        send(
            engine,
            "CREATE TABLE parcels (id INTEGER NOT NULL, owner VARCHAR(20) NOT NULL,"
            f" PRIMARY KEY (id)) {partitions}",
        )
        if engine.dialect.name == "postgresql":
            send(
                engine,
                "CREATE TABLE low PARTITION OF parcels FOR VALUES FROM (0) TO (10)",
                "CREATE TABLE high PARTITION OF parcels FOR VALUES FROM (10) TO (99)",
            )
        send(engine, "INSERT INTO parcels VALUES (1, 'Ada'), (20, 'Bob')")
        roll_out(engine, "parcels", **options)

        send(engine, "INSERT INTO parcels (id, owner) VALUES (30, 'new')")
        assert None not in [version for (version,) in rows(engine, "version")]
        if options.get("guard") != "reject" and not isinstance(options["token"], Timestamp):
            before = dict(rows(engine, "id, version"))
            send(engine, "UPDATE parcels SET owner = 'foreign' WHERE id = 20")
            after = dict(rows(engine, "id, version"))
            assert [id for id in before if before[id] != after[id]] == [20]
        assert roll_out(engine, "parcels", **options).steps == ()

    @each_way
    def test_nothing_else_of_a_table_changes(self, engine, options):
        """Also on SQLite, where the table is made anew."""
        _foreign_keys_on(engine)
        send(engine, "DROP VIEW IF EXISTS heavy")
        send(engine, *_RICH[engine.dialect.name])
        before = shape(engine, "parcels", "stamps")
        roll_out(engine, "parcels", **options)
        after = shape(engine, "parcels", "stamps")

        assert after["stamps"] == before["stamps"]
        columns = after["parcels"].pop("columns")
        assert [c for c in columns if c[0] != "version"] == before["parcels"].pop("columns")
        assert str(_texts(after["parcels"])) == str(_texts(before["parcels"]))
        assert set(map(str, before["triggers"])) <= set(map(str, after["triggers"]))
        self._is_what_it_was(engine)
        send(engine, "DROP VIEW heavy")

    def _is_what_it_was(self, engine: Engine) -> None:
        assert rows(engine, "id, owner, weight, doubled") == [(1, "Ada", 2, 4), (2, "Bob", 3, 6)]
        with engine.connect() as connection:
            stamps = connection.execute(text("SELECT id, parcel FROM stamps ORDER BY id")).all()
            assert [tuple(row) for row in stamps] == [(1, 1), (2, 1), (3, 2)]
            assert connection.scalar(text("SELECT count(*) FROM heavy")) == 1
        for wrong in (
            "UPDATE parcels SET weight = -1",
            "UPDATE parcels SET owner = 'Ada'",
            "INSERT INTO stamps VALUES (9, 99)",
        ):
            with pytest.raises(Exception, match=r"(?i)constraint|duplicate"):
                send(engine, wrong)
        send(engine, "UPDATE parcels SET weight = 5 WHERE id = 2")
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT max(weight) FROM weighed")) == 5
        send(engine, "DELETE FROM parcels WHERE id = 1")
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM stamps")) == 1

    @pytest.mark.engines("mariadb")
    @pytest.mark.parametrize(
        "part",
        ["doubled INTEGER GENERATED ALWAYS AS (id * 2) STORED", "note TEXT, FULLTEXT (note)"],
    )
    def test_what_the_server_cannot_do_online_is_left_to_a_quiet_moment(self, engine, part):
        send(engine, f"CREATE TABLE parcels (id INTEGER PRIMARY KEY, owner VARCHAR(20), {part})")
        send(engine, "INSERT INTO parcels (id, owner) VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Eve')")
        for again in (False, True):
            with pytest.raises(OptilockError, match="without stopping writers") as caught:
                roll_out(engine, "parcels", token=Counter())
            works(engine)
            assert rows(engine, "version") == [(1,)] * 3, again
        said = str(caught.value)
        send(engine, said[said.index("ALTER TABLE") : said.index("; then")])
        assert roll_out(engine, "parcels", token=Counter()).steps == ()

    @pytest.mark.engines("mariadb")
    def test_a_column_that_is_there_keeps_its_type_and_its_comment(self, engine, table):
        """Another type would not be online."""
        send(
            engine, r"ALTER TABLE parcels ADD version INT UNSIGNED NULL COMMENT '5 % o''clock \\ '"
        )
        roll_out(engine, "parcels", token=Counter())
        [version] = [c for c in inspect(engine).get_columns("parcels") if c["name"] == "version"]
        kind = version["type"].compile(engine.dialect)
        assert (kind, version["nullable"]) == ("INTEGER(10) UNSIGNED", False)
        assert version["comment"] == "5 % o'clock \\ "

    @pytest.mark.engines("postgresql", "mariadb")
    def test_a_column_without_a_default_gets_one_before_it_is_filled(self, engine, table):
        """Or rows without a version come for as long as others insert."""
        kind = Unique().type().compile(engine.dialect)
        send(engine, f"ALTER TABLE parcels ADD COLUMN version {kind}")

        class Inserts(Silent):
            def step(self, name: str, total: int | None = None) -> None:
                if name == "fill":
                    send(engine, "INSERT INTO parcels (id, owner) VALUES (4, 'new')")

        report = roll_out(engine, "parcels", token=Unique(), progress=Inserts())
        assert report.steps == ("set the default", "fill", "require it")
        assert report.filled == 3

    @pytest.mark.engines("sqlite-wal")
    def test_a_database_that_is_attached_is_not_made_anew(self, engine, table, tmp_path):
        """Its indexes and triggers would be made in the main one."""
        path = tmp_path / "attached.db"
        event.listen(engine, "connect", lambda raw, _: raw.execute(f"ATTACH '{path}' AS more"))
        engine.dispose()
        send(engine, "CREATE TABLE more.boxes (id INTEGER PRIMARY KEY)")
        with pytest.raises(ConfigurationError, match="attached"):
            roll_out(engine, "boxes", token=Unique(), schema="more")
        with pytest.raises(ConfigurationError, match="attached"):
            migrate(engine, lambda op: op.add_version_column("boxes", Unique(), schema="more"))
        assert [c["name"] for c in inspect(engine).get_columns("boxes", schema="more")] == ["id"]
        roll_out(engine, "boxes", token=Counter(), schema="more")
        roll_out(engine, "parcels", token=Unique(), schema="main")
        works(engine)

    @pytest.mark.engines("sqlite-wal")
    def test_a_database_that_may_not_be_written(self, engine, table):
        """Nobody who is root is kept from a file, so the connection says it."""
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA query_only = ON"))
        engine.dispose()
        before = shape(engine, "parcels")
        with pytest.raises(OptilockError, match="create the table optilock_rollout_of_parcels"):
            roll_out(engine, "parcels", token=Unique())
        assert shape(engine, "parcels") == before

    @pytest.mark.parametrize("name", ["5% off", 'a "b"', "Order", "a:b"])
    def test_names_that_need_quotes(self, engine, name):
        named = quote_name(engine.dialect, name)
        with engine.begin() as connection:
            connection.execute(plain_ddl(f"CREATE TABLE {named} (id INTEGER PRIMARY KEY)"))
            connection.execute(plain_ddl(f"INSERT INTO {named} VALUES (1)"))
        token = Unique(column=name)
        assert roll_out(engine, name, token=token, guard="bump").filled == 1
        assert roll_out(engine, name, token=token, guard="bump").steps == ()
        with engine.begin() as connection:
            connection.execute(plain_ddl(f"DROP TABLE {named}"))

    @pytest.mark.engines("sqlite-wal")
    def test_a_number_that_was_given_is_not_given_again(self, engine):
        send(
            engine,
            "CREATE TABLE parcels (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT)",
            "INSERT INTO parcels (owner) VALUES ('Ada'), ('Bob')",
            "DELETE FROM parcels WHERE id = 2",
        )
        roll_out(engine, "parcels", token=Unique())
        send(engine, "INSERT INTO parcels (owner) VALUES ('new')")
        assert rows(engine) == [(1, "Ada"), (3, "new")]

    @pytest.mark.engines("sqlite-wal")
    def test_the_connection_goes_back_as_it_was(self, engine, table):
        _foreign_keys_on(engine)
        asked = ["foreign_keys", "busy_timeout", "legacy_alter_table"]

        def settings() -> list[Any]:
            with engine.connect() as connection:
                return [connection.scalar(text(f"PRAGMA {name}")) for name in asked]

        before = settings()
        roll_out(engine, "parcels", **GUARDED)
        assert settings() == before

    @pytest.mark.parametrize(
        ("declared", "token"),
        [
            ("TEXT", Counter()),
            ("VARCHAR(9)", Unique()),
            ("BIGINT", Unique()),
            ("DATE", Timestamp()),
            ("VARCHAR(9)", RowVersion()),
        ],
    )
    def test_a_column_of_another_type_is_refused(self, engine, table, declared, token):
        send(engine, f"ALTER TABLE parcels ADD COLUMN version {declared}")
        before = shape(engine, "parcels")
        with pytest.raises(ConfigurationError, match="cannot use"):
            roll_out(engine, "parcels", token=token)
        assert shape(engine, "parcels") == before
        works(engine)


def _texts(found: Any) -> Any:
    """SQL expressions have no equality of their own."""
    if isinstance(found, dict):
        return {name: _texts(value) for name, value in found.items()}
    return [_texts(one) for one in found] if isinstance(found, list) else str(found)


def _foreign_keys_on(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        engine.dispose()

        @event.listens_for(engine, "connect")
        def on(connection: Any, record: Any) -> None:
            connection.execute("PRAGMA foreign_keys = ON")


_PARCELS = (
    "CREATE TABLE parcels (id INTEGER NOT NULL, owner VARCHAR(20) NOT NULL,"
    " weight INTEGER NOT NULL DEFAULT 0 CHECK (weight >= 0),"
    " doubled INTEGER GENERATED ALWAYS AS (weight * 2) {kept}, next_one INTEGER,"
    " PRIMARY KEY (id), CONSTRAINT one_each UNIQUE (owner),"
    " CONSTRAINT chained FOREIGN KEY (next_one) REFERENCES parcels (id),"
    " CONSTRAINT not_itself CHECK (next_one <> 77))"
)
_BESIDE = (
    "CREATE INDEX parcels_weight ON parcels (weight, owner)",
    "CREATE TABLE weighed (weight INTEGER)",
    "CREATE TABLE stamps (id INTEGER NOT NULL PRIMARY KEY, parcel INTEGER NOT NULL,"
    " CONSTRAINT on_parcel FOREIGN KEY (parcel) REFERENCES parcels (id) ON DELETE CASCADE)",
    "CREATE VIEW heavy AS SELECT id FROM parcels WHERE weight > 2",
)
_ROWS = (
    "INSERT INTO parcels (id, owner, weight) VALUES (1, 'Ada', 2)",
    "INSERT INTO parcels (id, owner, weight, next_one) VALUES (2, 'Bob', 3, 2)",
    "INSERT INTO stamps VALUES (1, 1), (2, 1), (3, 2)",
)
_RICH = {
    "sqlite": (
        _PARCELS.format(kept="STORED"),
        *_BESIDE,
        "CREATE INDEX light ON parcels (owner COLLATE NOCASE) WHERE weight < 2",
        "CREATE TRIGGER weighs AFTER UPDATE OF weight ON parcels"
        " BEGIN INSERT INTO weighed VALUES (NEW.weight); END",
        "CREATE TRIGGER stamped AFTER INSERT ON stamps"
        " BEGIN UPDATE parcels SET weight = weight WHERE id = NEW.parcel; END",
        *_ROWS,
    ),
    "postgresql": (
        _PARCELS.format(kept="STORED"),
        *_BESIDE,
        "CREATE INDEX light ON parcels (lower(owner)) WHERE weight < 2",
        "CREATE FUNCTION weighs() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO weighed VALUES (NEW.weight); RETURN NULL; END'",
        "CREATE TRIGGER weighs AFTER UPDATE OF weight ON parcels FOR EACH ROW"
        " EXECUTE FUNCTION weighs()",
        *_ROWS,
    ),
    "mysql": (
        _PARCELS.format(kept="VIRTUAL"),
        *_BESIDE,
        "CREATE TRIGGER weighs AFTER UPDATE ON parcels FOR EACH ROW"
        " INSERT INTO weighed VALUES (NEW.weight)",
        *_ROWS,
    ),
}
