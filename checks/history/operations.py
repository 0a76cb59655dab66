"""What an author can do: a short function each, which tells the model what it should come to.

An operation takes the author and the step. It raises :class:`NotNow` where the step makes no sense;
any other error is judged by the runner. What it returns is held until the author has looked at its
objects, because a session's identity map is weak. What is *read* needs no telling: see
:mod:`~checks.history.authors`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import inspect, select, text, update
from sqlalchemy.orm import defer, load_only, undefer

from checks.history.authors import Author, Copy, NotNow
from checks.history.model import Base, Row
from optilock import ConcurrencyError, bulk_update, entities, etag_of, expect, touch, verify
from optilock._watched.rows.touch import is_touched

__all__ = ["ENDS", "LOCKS", "OPERATIONS", "Step"]


class Step(NamedTuple):
    """One line of a history: plain values."""

    author: int
    operation: str
    #: Which of the mapping's rows, by number.
    row: int = 0
    #: Which of the row's columns.
    column: int = 0
    choice: int = 0


Do = Callable[[Author, Step], Any]
OPERATIONS: dict[str, Do] = {}
#: They end the transaction, or try to.
ENDS = {"commit", "rollback", "close"}
#: They read what is stored now, whatever the snapshot shows.
LOCKS = {"get_locked", "select_locked", "refresh_locked", "refresh_dropping"}


def operation(do: Do) -> Do:
    OPERATIONS[do.__name__] = do
    return do


def row_of(author: Author, step: Step) -> Row:
    rows = author.on.rows
    return rows[step.row % len(rows)]


def column_of(author: Author, step: Step) -> str:
    columns = author.on.kind(row_of(author, step)[0]).columns
    if not columns:
        raise NotNow
    return columns[step.column % len(columns)]


def versioned(author: Author, step: Step) -> None:
    """Not for rows whose values are compared, and not for those of a class without a token."""
    row = row_of(author, step)
    if author.on.kind(row[0]).check != "version":
        raise NotNow


# -- reading --------------------------------------------------------------------------------------


@operation
def get(author: Author, step: Step) -> Any:
    row = row_of(author, step)
    return author.session.get(author.model(row), row[1])


@operation
def get_anew(author: Author, step: Step) -> Any:
    row = row_of(author, step)
    return author.session.get(author.model(row), row[1], populate_existing=True)


@operation
def get_locked(author: Author, step: Step) -> Any:
    row = row_of(author, step)
    return author.session.get(author.model(row), row[1], with_for_update=True)


@operation
def select_some(author: Author, step: Step) -> Any:
    """``load_only``, ``defer`` or ``undefer``."""
    row, option = row_of(author, step), _option(author, step)
    return author.session.scalars(_select(author, row).options(option)).all()


@operation
def select_some_anew(author: Author, step: Step) -> Any:
    row, option = row_of(author, step), _option(author, step)
    query = _select(author, row).options(option).execution_options(populate_existing=True)
    return author.session.scalars(query).all()


@operation
def select_anew(author: Author, step: Step) -> Any:
    row = row_of(author, step)
    query = _select(author, row).execution_options(populate_existing=True)
    return author.session.scalars(query).all()


@operation
def select_anew_unflushed(author: Author, step: Step) -> Any:
    """What was edited and not flushed is dropped."""
    _drop_edits(author, row_of(author, step))
    with author.session.no_autoflush:
        return select_anew(author, step)


@operation
def select_some_anew_unflushed(author: Author, step: Step) -> Any:
    row = row_of(author, step)
    _drop_edits(author, row)
    with author.session.no_autoflush:
        return select_some_anew(author, step)


def _drop_edits(author: Author, row: Row) -> None:
    for copy in author.attached():
        if copy.row == row:
            author.expired(copy, read=True)


@operation
def select_locked(author: Author, step: Step) -> Any:
    row = row_of(author, step)
    return author.session.scalars(_select(author, row).with_for_update()).all()


@operation
def read(author: Author, step: Step) -> None:
    copy = author.held(row_of(author, step))
    getattr(copy.obj, column_of(author, step))


def _select(author: Author, row: Row) -> Any:
    model = author.model(row)
    return select(model).where(model.id == row[1])


def _option(author: Author, step: Step) -> Any:
    row = row_of(author, step)
    attribute = getattr(author.model(row), column_of(author, step))
    return (load_only, defer, undefer)[step.choice % 3](attribute)


# -- the same object again ------------------------------------------------------------------------


@operation
def refresh(author: Author, step: Step) -> None:
    copy = author.held(row_of(author, step))
    author.expired(copy, read=True)
    author.session.refresh(copy.obj)


@operation
def refresh_one(author: Author, step: Step) -> None:
    copy, name = author.held(row_of(author, step)), column_of(author, step)
    author.expired(copy, [name])
    author.session.refresh(copy.obj, [name])


@operation
def refresh_locked(author: Author, step: Step) -> None:
    copy = author.held(row_of(author, step))
    author.expired(copy, read=True)
    author.session.refresh(copy.obj, with_for_update=True)


@operation
def refresh_dropping(author: Author, step: Step) -> None:
    """The way out of a conflict: the edits are dropped, and the row is read with a lock."""
    copy = author.held(row_of(author, step))
    with author.session.no_autoflush:
        author.expired(copy, read=True)
        author.session.refresh(copy.obj, with_for_update=True)


@operation
def expire(author: Author, step: Step) -> None:
    copy = author.held(row_of(author, step))
    author.expired(copy)
    author.session.expire(copy.obj)


@operation
def expire_one(author: Author, step: Step) -> None:
    copy, name = author.held(row_of(author, step)), column_of(author, step)
    author.expired(copy, [name])
    author.session.expire(copy.obj, [name])


@operation
def forget(author: Author, step: Step) -> None:
    """The program lets go of an object; the session's identity map is weak."""
    copy = author.held(row_of(author, step))
    if inspect(copy.obj).modified or copy.kind.root or copy.kind.name in ("order", "post"):
        raise NotNow
    del author.copies[id(copy.obj)]


# -- writing --------------------------------------------------------------------------------------


@operation
def set_(author: Author, step: Step) -> None:
    name = column_of(author, step)
    author.assign(author.take(row_of(author, step)), name)


@operation
def append(author: Author, step: Step) -> None:
    """Who adds to a value has looked at it."""
    copy, name = author.take(row_of(author, step)), column_of(author, step)
    getattr(copy.obj, name)
    author.observe()
    author.assign(copy, name)


@operation
def like(author: Author, step: Step) -> None:
    """Add to the counter, or take away, from what was read of it."""
    row = row_of(author, step)
    counter = author.on.kind(row[0]).counter
    if counter is None:
        raise NotNow
    copy = author.take(row)
    before = getattr(copy.obj, counter)
    author.observe()
    more = (1, 1, 2, -1)[step.choice % 4]
    setattr(copy.obj, counter, before + more)
    author.add_up(copy, more)


@operation
def like_by_statement(author: Author, step: Step) -> None:
    row = row_of(author, step)
    counter = author.on.kind(row[0]).counter
    if counter is None or author.settings.autocommit:
        raise NotNow
    author.session.flush()
    if row not in author.ledger.stored or row in author.done.deletes:
        raise NotNow
    model = author.model(row)
    more = {counter: getattr(model, counter) + 1}
    author.session.execute(update(model).where(model.id == row[1]).values(more))
    author.done.added[row] = author.done.added.get(row, 0) + 1
    author.done.stated = True
    author.done.flushed.add(row)


@operation
def delete(author: Author, step: Step) -> None:
    row = row_of(author, step)
    if row[0] == "order" or author.done.links:
        raise NotNow
    copy = author.take(row)
    base = copy.base()
    author.session.delete(copy.obj)
    if author.settings.policy != "none":  # what it loads has flushed, and settled, the row
        author.observe()
        base = copy.base()
    author.done.drop(row, list(author.done.edited(row)))
    author.done.touched.pop(row, None)
    author.done.deletes[row] = base
    author.touch_roots(row)
    author.orphaned(row)
    for (child, column), edit in author.done.edits.items():
        if author.on.kind(child[0]).parent == row[0] and column:
            edit.maybe = True


@operation
def insert(author: Author, step: Step) -> None:
    kind = author.on.kind(author.on.rows[0][0])
    row = (kind.name, 100 + 10 * author._written + "ABC".index(author.name))
    if row in author.ledger.stored or row in author.done.inserts:
        raise NotNow
    values = {name: author.new_value() for name in kind.columns}
    more = {kind.counter: 0} if kind.counter else {}
    author.session.add(author.model(row)(id=row[1], **values, **more))
    author.done.inserts[row] = values


@operation
def update_class(author: Author, step: Step) -> None:
    """``update(Model)``: the session brings its objects up to date."""
    row, name = row_of(author, step), column_of(author, step)
    _statement_allowed(author, step, row)
    model = author.model(row)
    author.session.flush()
    if row not in author.ledger.stored or row in author.done.deletes:
        raise NotNow
    what = update(model).where(model.id == row[1])
    author.statement(row, name, lambda value: author.session.execute(what.values({name: value})))


@operation
def update_table(author: Author, step: Step) -> None:
    row, name = row_of(author, step), column_of(author, step)
    _statement_allowed(author, step, row)
    table = author.model(row).__table__
    if name not in table.c or row not in author.ledger.stored or row in author.done.deletes:
        raise NotNow
    what = update(table).where(table.c.id == row[1])
    author.statement(row, name, lambda value: author.session.execute(what.values({name: value})))


@operation
def update_by_key(author: Author, step: Step) -> None:
    """In the version that the object holds; the object follows."""
    _by_key(author, step, lambda model, row: author.session.execute(update(model), [row]))


@operation
def bulk(author: Author, step: Step) -> None:
    """The same with a report: what has moved is not written."""

    def send(model: Any, row: dict[str, Any]) -> None:
        conflicts = bulk_update(author.session, model, [row]).conflicts
        if conflicts:
            raise ConcurrencyError(conflicts)

    _by_key(author, step, send)


def _by_key(author: Author, step: Step, send: Callable[[Any, dict[str, Any]], object]) -> None:
    versioned(author, step)
    row, name = row_of(author, step), column_of(author, step)
    if author.settings.autocommit or row[0] not in ("page", "liked", "comment"):
        raise NotNow
    copy = author.take(row)
    author.session.flush()
    author.observe()
    if not _holds_version(copy) or copy.doubtful or row in author.done.deletes:
        raise NotNow
    if inspect(copy.obj).modified or name not in copy.obj.__dict__:
        raise NotNow
    base, value = copy.base(), author.new_value()
    # The value that is read afterwards, of a row that is not overtaken.
    send(author.model(row), {"id": row[1], "version": copy.obj.version, name: value})
    author.done.edit(row, name, value, base, over=True)
    author.done.flushed.add(row)
    author.done.stated = True


@operation
def entity(author: Author, step: Step) -> None:
    """A PATCH: under a tag that was taken, or whatever is stored."""
    versioned(author, step)
    row, name = row_of(author, step), column_of(author, step)
    if author.settings.autocommit or row[0] not in ("page", "liked") or row in author.done.deletes:
        raise NotNow
    if author.on.kind(row[0]).ignored:
        raise NotNow
    author.session.flush()
    model = author.model(row)
    if row not in author.tags or row in author.done.rows() or step.choice % 2:
        author.statement(
            row,
            name,
            lambda value: entities.merge(
                author.session, model, row[1], {name: value}, if_match="*"
            ),
        )
        return
    tag, revision = author.tags[row]
    value = author.new_value()
    entities.merge(author.session, model, row[1], {name: value}, if_match=tag)
    seen = dict.fromkeys(author.on.kind(row[0]).columns, (revision, revision))
    author.done.edit(row, name, value, Base(seen, revision), over=True)
    author.done.flushed.add(row)
    author.done.stated = True


def _statement_allowed(author: Author, step: Step, row: Row) -> None:
    """Joined tables and aggregates have rules of their own for statements.

    Where every statement is a transaction, one that is sent alone is whole.
    """
    if author.settings.autocommit:
        raise NotNow
    if author.on.kind(row[0]).root or row[0] in ("dog", "order"):
        raise NotNow


@operation
def touch_(author: Author, step: Step) -> None:
    versioned(author, step)
    copy = author.take(row_of(author, step))
    base = copy.base()
    touch(copy.obj)
    author.done.touched.setdefault(copy.row, base)


@operation
def verify_(author: Author, step: Step) -> None:
    versioned(author, step)
    copy = author.take(row_of(author, step))
    if author.settings.plain or not _holds_version(copy):
        raise NotNow
    verify(copy.obj)
    promised = copy.base().newest
    author.done.promises[copy.row] = min(promised, author.done.promises.get(copy.row, promised))
    for name in copy.pending() & copy.bases.keys():
        author.done.promised_edits[copy.row] = min(copy.bases[name].oldest, copy.bases[name].memory)


@operation
def take_tag(author: Author, step: Step) -> None:
    """An ETag of what the author sees now."""
    versioned(author, step)
    copy = author.take(row_of(author, step))
    if copy.row in author.done.rows() or not _holds_version(copy) or copy.doubtful:
        raise NotNow
    if is_touched(inspect(copy.obj)):  # a root: its other rows are written, and it was refused
        raise NotNow
    if _has_unflushed_parts(author.session, copy.obj):  # refused: the root will move
        raise NotNow
    author.tags[copy.row] = (etag_of(copy.obj), copy.base().newest)


@operation
def expect_tag(author: Author, step: Step) -> None:
    versioned(author, step)
    copy = author.take(row_of(author, step))
    if copy.row not in author.tags or copy.row in author.done.rows() or not _holds_version(copy):
        raise NotNow
    tag, revision = author.tags[copy.row]
    expect(copy.obj, tag)
    author.done.promises[copy.row] = min(revision, author.done.promises.get(copy.row, revision))


def _has_unflushed_parts(session: Any, root: Any) -> bool:
    relationships = inspect(type(root)).relationships
    names = getattr(type(root), "__version_root_of__", ())
    parts = tuple(relationships[name].mapper.class_ for name in names)
    return any(isinstance(one, parts) for one in (*session.new, *session.dirty, *session.deleted))


def _holds_version(copy: Copy) -> bool:
    """Who has let the version expire is refused, and told why."""
    return "version" in copy.obj.__dict__


# -- the transaction ------------------------------------------------------------------------------


@operation
def flush(author: Author, step: Step) -> None:
    author.session.flush()


@operation
def commit(author: Author, step: Step) -> None:
    if not author.is_open or author.nested:
        raise NotNow
    author.ended = True
    author.commit()


@operation
def rollback(author: Author, step: Step) -> None:
    if not author.is_open:
        raise NotNow
    author.rollback()


@operation
def end_by_text(author: Author, step: Step) -> None:
    """SQL text ends the transaction, and the author goes on as if it had not."""
    settings = author.settings
    if settings.autocommit or settings.plain or not author.is_open:
        raise NotNow
    author.session.connection()
    if author.family == "sqlite" and not author.has_begun:
        raise NotNow
    author.session.execute(text("ROLLBACK"))
    author.lost = True


@operation
def close(author: Author, step: Step) -> None:
    if not author.is_open:
        raise NotNow
    author.close()


@operation
def savepoint(author: Author, step: Step) -> None:
    if not (author.savepoints or author.settings.unit or author.has_begun):
        raise NotNow
    if len(author.nested) > 2:
        raise NotNow
    if author.settings.autocommit:
        raise NotNow
    author.done.snapshotting |= not author.savepoints
    nested = author.session.begin_nested()
    author.observe()
    author.nested.append(
        (nested, author.done.copy(), [(copy, dict(copy.seen)) for copy in author.attached()])
    )


@operation
def release(author: Author, step: Step) -> None:
    if not author.nested:
        raise NotNow
    author.nested[-1][0].commit()
    author.nested.pop()


@operation
def back_to_savepoint(author: Author, step: Step) -> None:
    if not author.nested:
        raise NotNow
    nested, before, seen = author.nested.pop()
    nested.rollback()
    before.snapshot, before.stated = author.done.snapshot, author.done.stated
    undone = author.done.flushed - before.flushed
    author.done = before
    author.done.flushed |= undone
    for copy, spans in seen:
        for name, span in spans.items():
            if name not in copy.obj.__dict__:
                copy.seen[name] = span
        copy.doubtful |= author.done.stated
        copy.unknown |= author.done.stated
    for copy in author.attached():
        copy.assigned = {n: v for n, v in copy.assigned.items() if n in copy.obj.__dict__}


# -- copies from elsewhere ------------------------------------------------------------------------


@operation
def expunge(author: Author, step: Step) -> None:
    copy = author.held(row_of(author, step))
    if copy.row in author.done.deletes:
        raise NotNow
    author.done.drop(copy.row, copy.pending())
    author.add_up(copy, -copy.pending_sum())
    author.done.touched.pop(copy.row, None)
    copy.doubtful |= copy.row in author.done.flushed or author.done.stated
    copy.unknown |= author.done.stated
    if copy.row in author.done.flushed:
        copy.written_in = author.done
    author.session.expunge(copy.obj)
    del author.copies[id(copy.obj)]
    author.detached.append(copy)


@operation
def pickle_(author: Author, step: Step) -> None:
    copy = author.held(row_of(author, step))
    twin = copy.twin(pickle.loads(pickle.dumps(copy.obj)))
    twin.doubtful |= copy.row in author.done.flushed or author.done.stated
    twin.unknown |= author.done.stated
    author.detached.append(twin)


@operation
def add(author: Author, step: Step) -> None:
    """A detached object, with the edits that it has."""
    copy = _detached(author, step)
    if copy.row in author.done.deletes or not _can_be_added(author, copy):
        raise NotNow
    author.detached.remove(copy)
    author.session.add(copy.obj)
    author.copies[id(copy.obj)] = copy
    copy.doubtful = True
    _cascaded(author)
    if "version" in inspect(copy.obj).committed_state:  # touched before it left its session
        author.done.touched.setdefault(copy.row, copy.base())
    for name in copy.pending():
        author.done.edit(copy.row, name, copy.obj.__dict__[name], copy.bases.get(name, copy.base()))
        author.touch_roots(copy.row)
    author.add_up(copy, copy.pending_sum())


@operation
def merge(author: Author, step: Step) -> None:
    copy = _detached(author, step)
    if copy.row in author.done.deletes:
        raise NotNow
    base = copy.base()
    there = [one for one in author.attached() if one.row == copy.row]
    before = sum(one.pending_sum() for one in there)
    target = author.session.merge(copy.obj)
    if target is copy.obj:
        raise NotNow
    author.detached.remove(copy)
    if inspect(target).key is None:
        author.done.inserts[copy.row] = {n: target.__dict__[n] for n in copy.held}
        return
    if target not in author.session:
        raise NotNow
    _cascaded(author)
    merged = author.copy_of(target, copy.row)
    merged.doubtful = True
    changed = merged.pending()
    for name in changed:
        merged.held[name] = merged.assigned[name] = target.__dict__[name]
    author.observe()
    for name in changed:
        author.assigned(merged, name, base)
    author.add_up(merged, merged.pending_sum() - before)


def _can_be_added(author: Author, copy: Copy) -> bool:
    """SQLAlchemy refuses what was deleted, and a second object of a row, also far in the graph."""
    state, there = inspect(copy.obj), author.session.identity_map
    along = [one for _, _, one, _ in state.mapper.cascade_iterator("save-update", state)]
    return all(
        not one.was_deleted and (one.key is None or there.get(one.key, one.obj()) is one.obj())
        for one in (state, *along)
    )


def _cascaded(author: Author) -> None:
    """New objects that a copy refers to come along."""
    for obj in author.session.new:
        row = (next(name for name, cls in author.on.classes.items() if cls is type(obj)), obj.id)
        if row not in author.done.inserts:
            author.done.perhaps.add(row)


def _detached(author: Author, step: Step) -> Copy:
    if not author.detached:
        raise NotNow
    return author.detached[step.choice % len(author.detached)]


# -- children and links ---------------------------------------------------------------------------


def _family(author: Author) -> tuple[str, str, str, str]:
    """Parent, collection, child, and the child's reference."""
    if author.on.name.startswith("orders"):
        return "order", "lines", "line", "order"
    if author.on.name.startswith("posts"):
        return "post", "comments", "comment", "post"
    raise NotNow


def _parent(author: Author, step: Step) -> Copy:
    return author.take((_family(author)[0], 1 + step.row % 2))


def _child(author: Author, step: Step) -> Copy:
    return author.take((_family(author)[2], 1 + step.row % 3))


@operation
def load_children(author: Author, step: Step) -> None:
    len(getattr(_parent(author, step).obj, _family(author)[1]))


@operation
def add_child(author: Author, step: Step) -> None:
    _, collection, child, _ = _family(author)
    parent = _parent(author, step)
    row = (child, 100 + 10 * author._written + "ABC".index(author.name))
    values = {name: author.new_value() for name in author.on.kind(child).columns}
    children = getattr(parent.obj, collection)
    author.observe()  # of a parent that was expired, the whole row was read for it
    root = parent.base()
    children.append(author.model(row)(id=row[1], **values))
    author.done.inserts[row] = values
    if author.on.kind(child).root:
        author.done.roots.setdefault(parent.row, root)


@operation
def remove_child(author: Author, step: Step) -> None:
    _, collection, child, _ = _family(author)
    parent = _parent(author, step)
    children = [c for c in getattr(parent.obj, collection) if inspect(c).persistent]
    author.observe()
    if not children:
        raise NotNow
    obj = children[step.choice % len(children)]
    copy = author.held((child, inspect(obj).identity[0]))
    base = copy.base()
    getattr(parent.obj, collection).remove(obj)
    if child == "comment":
        author.done.drop(copy.row, list(author.done.edited(copy.row)))
        author.done.deletes[copy.row] = base
        author.done.touched.pop(copy.row, None)
    else:
        author.done.edit(copy.row, "order_id", None, base)
        author.touch_roots(copy.row)


@operation
def move_child(author: Author, step: Step) -> None:
    """To the other parent: by the reference, or by the foreign key."""
    parent_name, _, child, reference = _family(author)
    copy = _child(author, step)
    key = 1 + step.column % 2
    if getattr(copy.obj, f"{reference}_id") == key or copy.row in author.done.deletes:
        raise NotNow
    if (copy.row, f"{reference}_id") in author.done.edits:
        raise NotNow
    author.observe()  # to ask for its parent has read all of a child that was expired
    base = copy.base()
    if step.choice % 2:
        parent = author.take((parent_name, key))
        setattr(copy.obj, reference, parent.obj)
    else:
        if (parent_name, key) not in author.ledger.stored:
            raise NotNow
        setattr(copy.obj, f"{reference}_id", key)
    author.done.edit(copy.row, f"{reference}_id", key, base)
    author.touch_roots(copy.row)
    for other in author.attached():
        if author.on.kind(child).root and other.row == (parent_name, key) and other.seen:
            author.done.roots.setdefault(other.row, other.base())


@operation
def link(author: Author, step: Step) -> None:
    """A tag more, or one less."""
    if not author.on.name.startswith("posts"):
        raise NotNow
    post = author.take(("post", 1 + step.row % 2))
    tag = author.session.get(author.on.classes["tag"], 1 + step.column % 3)
    there = tag in post.obj.tags
    (post.obj.tags.remove if there else post.obj.tags.append)(tag)
    row = ("link", (post.row[1], tag.id))
    author.done.links[row] = not there
