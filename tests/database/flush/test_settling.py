"""Rows that missed are settled in linear work: no row costs more because there are others.

Lines are counted, not seconds. Each way to miss is a class of its own below: what is stored, what
we do, and what the other program does meanwhile.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from sqlalchemy import inspect, select, update
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConcurrencyError, client_wins, merge_fields, store_wins, watch
from tests.support.models import Account, Comment, Dog, Native, Player, Post, Ranked, Tag, Team
from tests.support.work import Counting, lines_of

pytestmark = [pytest.mark.needs("resolves-in-place"), pytest.mark.usually("sqlite-wal")]

N = 50


def theirs(session, model, **values):
    """Another program changes all rows of a class."""
    token = model.__mapper__.version_id_col
    session.execute(update(model.__table__).values({**values, token: token + 1}))


class Edited:
    tables = (Account,)

    def rows(self, n):
        return [Account(id=n, owner="old")]

    def ours(self, session):
        for row in session.scalars(select(Account)):
            row.balance = 7

    def theirs(self, session):
        theirs(session, Account, owner="theirs")


class EditedGone(Edited):
    def theirs(self, session):
        session.execute(Account.__table__.delete())


class Deleted(Edited):
    def ours(self, session):
        for row in session.scalars(select(Account)):
            session.delete(row)


class EditedOneByOne:
    """The rank is unique, so each row is a statement of its own."""

    tables = (Ranked,)

    def rows(self, n):
        return [Ranked(id=n, rank=n)]

    def ours(self, session):
        for row in session.scalars(select(Ranked)):
            row.rank += 10_000

    def theirs(self, session):
        theirs(session, Ranked, name="theirs")


class EditedWithoutTheMixin:
    tables = (Native,)

    def rows(self, n):
        return [Native(id=n)]

    def ours(self, session):
        for row in session.scalars(select(Native)):
            row.text = "ours"

    def theirs(self, session):
        theirs(session, Native)


class Joined:
    """The joined table's rows are sent after the versions were judged, no two of them together."""

    tables = (Dog,)

    def rows(self, n):
        return [Dog(id=n, name="old", tricks=None)]

    def ours(self, session):
        for dog in session.scalars(select(Dog)):
            dog.tricks = Dog.id + 1 if dog.id % 2 else "sit"
            dog.name = "ours"

    def theirs(self, session):
        theirs(session, Dog.__mapper__.base_mapper.class_)


class Orphaned:
    """Children that their parents have let go."""

    tables = (Post, Comment)

    def rows(self, n):
        return [Post(id=n, comments=[Comment(id=n)])]

    def ours(self, session):
        for post in session.scalars(select(Post)):
            post.comments.clear()

    def theirs(self, session):
        theirs(session, Comment, text="theirs")


class OfDeletedParents:
    """Children that stay, and lose their parents."""

    tables = (Team, Player)

    def rows(self, n):
        return [Team(id=n, players=[Player(id=n)])]

    def ours(self, session):
        for team in session.scalars(select(Team)):
            list(team.players)
            session.delete(team)

    def theirs(self, session):
        theirs(session, Player, name="theirs")


class OfTwoUpdates:
    """The pointer to the captain is written by a second UPDATE of the row."""

    tables = (Team, Player)

    def rows(self, n):
        return [Team(id=n, players=[Player(id=n)])]

    def ours(self, session):
        for team in session.scalars(select(Team)):
            team.name = "ours"
            team.captain = team.players[0]

    def theirs(self, session):
        theirs(session, Team)


class LinkedAndGone:
    """Rows that we delete, and whose links the other program has taken away with them."""

    tables = (Post, Tag)

    def rows(self, n):
        return [Post(id=n, tags=[Tag(id=n)])]

    def ours(self, session):
        for post in session.scalars(select(Post)):
            list(post.tags)
            session.delete(post)

    def theirs(self, session):
        session.execute(Post.tags.property.secondary.delete())
        session.execute(Post.__table__.delete())


WAYS = [
    *itertools.product([Edited, Deleted], [None, merge_fields, client_wins, store_wins]),
    *itertools.product([EditedGone], [None, client_wins, store_wins]),
    *itertools.product([EditedOneByOne, EditedWithoutTheMixin], [None, merge_fields]),
    *itertools.product([Joined], [None, store_wins]),
    *itertools.product([Orphaned, OfDeletedParents], [None, client_wins, store_wins]),
    *itertools.product([OfTwoUpdates], [None, merge_fields]),
    (LinkedAndGone, client_wins),
]


def named(way):
    miss, resolver = way
    return f"{miss.__name__}-{resolver.__name__ if resolver else 'refused'}"


def quick(way):
    """Each way to miss once; with the other resolvers when all tests run."""
    miss, resolver = way
    first = resolver is None or miss in (Edited, LinkedAndGone)
    return pytest.param(way, id=named(way), marks=() if first else pytest.mark.full)


@pytest.mark.parametrize("way", [quick(way) for way in WAYS])
@pytest.mark.tenth
def test_a_row_that_missed_costs_the_same_among_many_and_among_few(way, engine, tables):
    miss, resolver = way[0](), way[1]
    tables(*miss.tables)
    sessions = sessionmaker(engine, class_=type("Own", (Counting,), {}), autoflush=False)
    watch(sessions, on_conflict=resolver)
    settled(miss, N, engine, sessions)  # what is made once is made before it counts
    once, twice, thrice = (settled(miss, count, engine, sessions) for count in (N, 2 * N, 3 * N))
    for_a_pair = (thrice - 2 * twice + once) / (2 * N * N)
    assert for_a_pair < 0.25, (once, twice, thrice)


def settled(miss, count, engine, sessions):
    """Lines of a flush in which ``count`` rows miss."""
    with Session(engine) as other, other.begin():
        other.add_all(row for n in range(1, count + 1) for row in miss.rows(n))
    session = sessions()
    miss.ours(session)
    with Session(engine) as other, other.begin():
        miss.theirs(other)

    def flush():
        with suppress(ConcurrencyError):
            session.flush()

    try:
        return lines_of(flush)
    finally:
        session.close()
        empty(engine, miss.tables)


def empty(engine, models):
    with engine.begin() as connection:
        there = set(inspect(connection).get_table_names())
        for table in reversed(models[0].metadata.sorted_tables):
            if table.name in there:
                connection.execute(table.delete())
