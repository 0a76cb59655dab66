"""Scopes that are verified on one node and moved on another, in transactions that overlap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from checks.deployments.galera.cluster import Cluster
from optilock import is_transient, verify, watch
from optilock._watched.scopes.transaction import end_scopes
from optilock.tables.names import scopes
from optilock.testing import count_statements
from tests.support.rooms import Seat

Store = Callable[..., None]
SEVEN, EIGHT = Seat.scope(room=7), Seat.scope(room=8)


@pytest.fixture
def seats(cluster: Cluster, engines: list[Engine], store: Store) -> list[Engine]:
    scopes.create(engines[0])
    store(Seat(id=1, room=7), Seat(id=2, room=8))
    return engines


def one_is_refused(engines: list[Engine]) -> bool:
    """Two nodes verify a scope each, and write into the other's; both have checked by COMMIT."""
    first, second = (watch(sessionmaker(engine))() for engine in engines[:2])
    with first, second:
        verify(first, SEVEN)
        verify(second, EIGHT)
        first.add(Seat(id=18, room=8))
        second.add(Seat(id=17, room=7))

        end_scopes(first)  # COMMIT comes next
        second.commit()
        try:
            first.commit()
        except Exception as error:
            return is_transient(error)
        return False


def test_a_verified_scope_is_compared_with_what_another_node_commits(
    cluster: Cluster, seats: list[Engine]
) -> None:
    for _ in range(2):  # without, and with, rows of these scopes
        assert one_is_refused(seats)
        cluster.agree("SELECT 1")
        with Session(seats[0]) as session, session.begin():
            for seat in session.query(Seat).where(Seat.id > 2):
                session.delete(seat)
        cluster.agree("SELECT 1")


def test_what_is_checked_is_written_on_a_node(seats: list[Engine]) -> None:
    """A lock of one node is no answer to COMMITs that two nodes send at the same moment."""
    with count_statements(seats[0]) as sent, watch(sessionmaker(seats[0])).begin() as session:
        verify(session, SEVEN)
    assert [one.text.split()[0] for one in sent.statements][-2:] == ["UPDATE", "UPDATE"]


def test_a_verified_scope_keeps_its_version(seats: list[Engine]) -> None:
    with watch(sessionmaker(seats[0])).begin() as session:
        before = session.query(scopes).all()
        verify(session, SEVEN)
    with Session(seats[0]) as session:
        assert {*before} <= {*session.query(scopes).all()}
