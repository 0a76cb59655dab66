"""Columns that MariaDB itself would change, and rows that a lax server would change silently."""

from __future__ import annotations

from datetime import datetime

import pytest
from sqlalchemy import String, create_engine, text

from optilock.rollout import dry_run, roll_out
from optilock.rollout.report import Silent
from optilock.tokens import Manual, Unique
from tests.support.migrating import each_token, migrate

pytestmark = pytest.mark.engines("mariadb")
THEN = datetime(2020, 2, 2, 2, 2, 2)


@pytest.fixture(autouse=True)
def parcels(engine):
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE parcels (id INTEGER PRIMARY KEY,"
                " changed DATETIME(6) NULL ON UPDATE CURRENT_TIMESTAMP(6),"
                " `at %s` TIMESTAMP NULL DEFAULT '2020-01-01' ON UPDATE CURRENT_TIMESTAMP)"
            )
        )
        connection.execute(
            text("INSERT INTO parcels VALUES (1, :then, :then), (2, :then, :then)"), {"then": THEN}
        )


def rows(engine):
    with engine.connect() as connection:
        return connection.execute(text("SELECT * FROM parcels ORDER BY id")).all()


@each_token
def test_times_that_an_update_moves_stay_in_a_roll_out(engine, token):
    assert roll_out(engine, "parcels", token=token).filled == 2
    assert [row[:3] for row in rows(engine)] == [(1, THEN, THEN), (2, THEN, THEN)]


def test_a_dry_run_shows_that(engine):
    [filling] = [line for line in dry_run(engine, "parcels") if line.startswith("UPDATE")]
    assert "changed=parcels.changed" in filling
    assert "`at %s`=parcels.`at %s`" in filling


def test_they_stay_in_a_migration_that_fills(engine):
    token = Manual(String(20))
    migrate(engine, lambda op: op.add_version_column("parcels", token, fill="'first'"))
    assert rows(engine) == [(1, THEN, THEN, "first"), (2, THEN, THEN, "first")]


@each_token
def test_a_row_without_a_version_is_filled_on_a_server_that_is_not_strict(engine, token):
    """It comes after the rows were filled, and before the column is NOT NULL."""
    setting = {"init_command": "SET SESSION sql_mode = ''"}
    lax = create_engine(engine.url.difference_update_query(["init_command"]), connect_args=setting)

    class Inserts(Silent):
        done = False

        def step(self, name: str, total: int | None = None) -> None:
            if name == "require it" and not self.done:
                self.done = True
                with lax.begin() as connection:
                    connection.execute(text("INSERT INTO parcels (id, version) VALUES (3, NULL)"))

    assert roll_out(lax, "parcels", token=token, progress=Inserts()).filled == 3
    with lax.connect() as connection:
        assert connection.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar() == ""
    lax.dispose()
    versions = [row[-1] for row in rows(engine)]
    assert all(versions)
    if isinstance(token, Unique):
        assert len(set(versions)) == 3
        assert not any(set(str(one)) <= set("0-") for one in versions)
