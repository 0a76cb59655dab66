"""Of which rows of a query a lock is asked for, and what PostgreSQL is told then."""

from __future__ import annotations

import pytest
from sqlalchemy import func, literal_column, select, union
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Bundle, aliased, joinedload

from optilock._watched.rows.locked import rows_to_lock
from tests.support.models import Account, Animal, Comment, Dog, Post, Tag

OTHER = aliased(Post)


def tables(statement):
    return [source.name for _, source in rows_to_lock(statement)]


@pytest.mark.parametrize(
    ("statement", "locked"),
    [
        (select(Account), ["accounts"]),
        (select(Account).where(Account.id == 1).order_by(Account.owner).limit(3), ["accounts"]),
        (select(Account, Account.balance), ["accounts"]),
        (select(Post, Comment).join(Post.comments), ["posts", "comments"]),
        (select(Post).join(Post.comments), ["posts"]),
        (select(Post).outerjoin(Post.comments), ["posts"]),
        (select(Post).options(joinedload(Post.comments)), ["posts"]),
        (select(Dog), ["animals"]),
        (select(Animal), ["animals"]),
        (select(Bundle("key", Post.id), Comment).join(Comment.post), ["comments"]),
    ],
)
def test_rows_that_become_objects_are_locked(statement, locked):
    assert tables(statement) == locked
    of = [source for _, source in rows_to_lock(statement)]
    sent = str(
        statement.with_for_update(of=of, key_share=True).compile(dialect=postgresql.dialect())
    )
    assert f"FOR NO KEY UPDATE OF {', '.join(locked)}" in sent


def test_an_alias_is_locked_by_its_name():
    sent = select(OTHER).with_for_update(of=[s for _, s in rows_to_lock(select(OTHER))])
    assert "FOR UPDATE OF posts_1" in str(sent.compile(dialect=postgresql.dialect()))


@pytest.mark.parametrize(
    "statement",
    [
        select(Account).distinct(),
        select(Account).group_by(Account.id),
        select(func.count()).select_from(Account),
        select(Account, func.count()),
        select(Account, func.row_number().over()),
        select(Account.id).having(func.count() > 1),
        select(aliased(Account, union(select(Account), select(Account)).subquery())),
        select(Post, Comment).outerjoin(Post.comments),
        select(Comment).select_from(Post).outerjoin(Post.comments),
        select(Comment).join_from(Post, Comment, isouter=True),
        select(Post).join(Post.comments, full=True),
        select(literal_column("1")),
        select(Account).add_cte(select(Tag.id).cte()),
    ],
)
def test_a_query_that_databases_do_not_lock_is_left_alone(statement):
    assert tables(statement) == []
