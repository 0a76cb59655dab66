"""What the steps of programs do, each in a short function."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import event, inspect, select
from sqlalchemy.orm import Session, load_only, make_transient
from sqlalchemy.orm.attributes import flag_modified

from checks.differential.mappings import ROWS, Mapping
from optilock import touch


class Step(NamedTuple):
    do: str
    #: Which object, and numbers to choose by.
    row: int = 1
    choice: int = 0

    def __repr__(self) -> str:
        return f"{self.do}({self.row}, {self.choice})"


class Run:
    """One program in one session."""

    def __init__(self, made: Mapping, session: Session) -> None:
        self.made, self.session = made, session
        self.objects: dict[int, Any] = {}
        self.heard: list[Any] = []
        self.savepoints: list[Any] = []
        self.listening: dict[str, tuple[Any, str, Callable[..., Any]]] = {}
        self.new = 3
        #: Were rows read under locks, of a database that has some?
        self.locks = False
        #: Held, or Python's garbage would say which objects are loaded anew.
        self.kept: list[Any] = []
        #: How often something was undone, and when the last time was that an object has left.
        self.undone = 0
        self.left: dict[int, int] = {}
        #: Those that were to be deleted.
        self.recalled: list[Any] = []

    def obj(self, step: Step) -> Any:
        if step.row not in self.objects:
            self.objects[step.row] = self.session.get(self.made.thing, self.made.key(step.row))
            self.kept.append(self.objects[step.row])
        return self.objects[step.row]

    def read_first(self, step: Step) -> Any:
        """The object, read before it is edited: see ``blind``."""
        obj = self.obj(step)
        recalled = any(obj is one for one in self.recalled)
        if obj is not None and not recalled and "version" in inspect(obj).expired_attributes:
            _ = obj.version
        return obj

    def label(self, obj: Any) -> str:
        found = (f"thing {number}" for number, one in self.objects.items() if one is obj)
        return next(found, type(obj).__name__)


def _choose(values: Any, choice: int) -> Any:
    return values[choice % len(values)]


def set_(run: Run, step: Step) -> None:
    name, values = _choose(run.made.values, step.choice)
    setattr(run.read_first(step), name, _choose(values, step.choice // 7))


def set_bad(run: Run, step: Step) -> None:
    name, values = _choose(run.made.bad, step.choice)
    setattr(run.read_first(step), name, _choose(values, step.choice // 7))


def set_same(run: Run, step: Step) -> None:
    (name, _), obj = _choose(run.made.values, step.choice), run.read_first(step)
    setattr(obj, name, getattr(obj, name))


def set_all(run: Run, step: Step) -> None:
    for row in ROWS:
        set_(run, step._replace(row=row))


def del_(run: Run, step: Step) -> None:
    delattr(run.read_first(step), _choose(("title", "num", "body"), step.choice))


def set_expression(run: Run, step: Step) -> None:
    run.read_first(step).num = run.made.thing.num + 1


def set_key(run: Run, step: Step) -> None:
    obj = run.read_first(step)
    if not any(obj is one for one in run.recalled):  # SQLAlchemy cannot delete it any more
        obj.code = 40 + step.choice % 3


def set_other(run: Run, step: Step) -> None:
    other = run.session.get(run.made.other, step.choice % 2 + 1)
    run.kept.append(other)
    if run.made.traits.relation == "none" or step.choice % 5 == 0:
        other.note = f"n{step.choice % 3}"
    elif step.choice % 5 == 1:
        other.code = 50 + step.choice % 3
    else:
        run.read_first(step).other = other if step.choice % 5 < 4 else None


def move_code(run: Run, step: Step) -> None:
    """Of a row that others may refer to by it."""
    other, session = run.session.get(run.made.other, 1), run.session
    run.kept.append(other)
    if run.made.traits.relation != "none":
        run.read_first(step).other = other
    session.flush()
    other.note = f"m{step.choice}"
    session.flush()
    other.code = 60 + step.choice % 5
    session.flush()


def mutate(run: Run, step: Step) -> None:
    obj = run.read_first(step)
    if isinstance(obj.data, dict):
        obj.data["b"] = step.choice


def flag(run: Run, step: Step) -> None:
    flag_modified(run.read_first(step), _choose(("num", "title", "data"), step.choice))


def touch_(run: Run, step: Step) -> None:
    """It is written at once: a later reading drops the touch in a plain session alone."""
    obj, session = run.obj(step), run.session
    if any(obj is one for one in run.recalled):
        return
    _ = obj.version  # see ``remembered``
    touch(obj)
    with session.no_autoflush:
        # Not get(), which in a plain session compares the row with the version that is to come.
        query = select(run.made.thing).with_for_update()
        if step.choice % 3 == 1:
            run.kept += session.scalars(query).all()
        if step.choice % 3 == 2:
            run.kept += session.scalars(query.options(load_only(run.made.thing.num))).all()
    session.flush()


def read(run: Run, step: Step) -> Any:
    name, _ = _choose(run.made.values, step.choice)
    return plain(repr(getattr(run.obj(step), name)))


def get(run: Run, step: Step) -> None:
    run.objects.pop(step.row, None)
    run.obj(step)


def get_locked(run: Run, step: Step) -> None:
    anew = bool(step.choice % 2)
    key = run.made.key(step.row)
    run.session.get(run.made.thing, key, with_for_update=True, populate_existing=anew)


def select_all(run: Run, step: Step) -> Any:
    cls = run.made.thing
    query = select(cls).order_by(cls.id)
    if step.choice % 2:
        query = query.execution_options(populate_existing=True)
    if step.choice // 2 % 3 == 0:
        query = query.with_for_update()
    if step.choice // 6 % 3 == 0:
        query = query.options(load_only(cls.num))
    found = run.session.scalars(query).all()
    run.kept += found
    return [run.label(one) for one in found]


def expire(run: Run, step: Step) -> None:
    names = [None, ["title"], ["version"], ["num", "version"], ["id"]][step.choice % 5]
    run.session.expire(run.obj(step), names)


def expire_all(run: Run, step: Step) -> None:
    run.session.expire_all()


def refresh(run: Run, step: Step) -> None:
    names = [None, None, ["title"], ["version"]][step.choice % 4]
    # SQLAlchemy cannot lock a row of which it reads some columns, without the version.
    lock = names is None and step.choice % 3 == 0
    run.session.refresh(run.obj(step), names, with_for_update=lock or None)


def flush(run: Run, step: Step) -> None:
    run.session.flush()


def commit(run: Run, step: Step) -> None:
    run.session.commit()


def rollback(run: Run, step: Step) -> None:
    run.undone += 1
    run.session.rollback()


def begin_nested(run: Run, step: Step) -> None:
    run.savepoints.append(run.session.begin_nested())


def end_nested(run: Run, step: Step) -> None:
    if run.savepoints:
        run.undone += 1
        savepoint = run.savepoints.pop()
        (savepoint.commit if step.choice % 2 else savepoint.rollback)()


def delete(run: Run, step: Step) -> None:
    obj = run.obj(step)
    run.recalled.append(obj)
    run.session.delete(obj)


def add_new(run: Run, step: Step) -> None:
    run.new += 1
    cls = run.made.below if step.choice % 2 else None
    run.objects[run.new] = made = run.made.new(run.new, cls)
    run.session.add(made)


def add_again(run: Run, step: Step) -> None:
    if run.left.get(step.row, run.undone) == run.undone:  # ``undone``
        run.session.add(run.obj(step))


def expunge(run: Run, step: Step) -> None:
    run.left[step.row] = run.undone
    run.session.expunge(run.obj(step))


def pickled(run: Run, step: Step) -> None:
    obj = run.obj(step)
    data = pickle.dumps(obj)
    if step.choice % 2:
        if obj in run.session:
            run.session.expunge(obj)
        run.objects[step.row] = copy = pickle.loads(data)
        run.session.add(copy)
    else:
        run.objects[step.row] = run.session.merge(pickle.loads(data))


def transient(run: Run, step: Step) -> None:
    obj = run.obj(step)
    if not any(obj is one for one in run.recalled):  # SQLAlchemy cannot roll that back
        make_transient(obj)


def is_modified(run: Run, step: Step) -> Any:
    return run.session.is_modified(run.obj(step))


_SESSION = ("before_flush", "after_flush", "after_flush_postexec", "before_commit", "after_commit")
_TRANSACTION = ("after_transaction_create", "after_transaction_end", "after_soft_rollback")
OF_MAPPERS = ("before_update", "after_update", "before_delete", "after_delete", "before_insert")
_INSTANCE = ("refresh_flush", "refresh", "load", "expire")
_LIFE = ("persistent_to_deleted", "pending_to_persistent", "persistent_to_detached")
_LISTENERS = (*_SESSION, *_TRANSACTION * 3, *OF_MAPPERS, *_INSTANCE * 2, *_LIFE)


def listen(run: Run, step: Step) -> None:
    """Adds a listener, or removes the one that is there."""
    name = _choose(_LISTENERS, step.choice)
    if name in run.listening:
        event.remove(*run.listening.pop(name))
        return
    target = run.made.thing if name in OF_MAPPERS or name in _INSTANCE else run.session

    def hear(*given: Any) -> None:
        run.heard.append((name, *_told_to(run, name, given)))
        if name == "before_flush" and step.choice % 4 == 0 and 2 in run.objects:
            run.objects[2].body = "by listener"
        if name == "refresh_flush" and step.choice % 2 == 0 and 2 in run.objects:
            run.objects[2].body = "inside"
        if name == "before_update" and step.choice % 4 == 0:
            given[2].body = "by listener"

    event.listen(target, name, hear)
    run.listening[name] = (target, name, hear)


def _told_to(run: Run, name: str, given: tuple[Any, ...]) -> Iterator[Any]:
    if name in OF_MAPPERS:
        yield run.label(given[2])
    elif name in _INSTANCE:
        yield run.label(given[0])
        yield sorted(given[-1]) if isinstance(given[-1], (list, set, tuple, frozenset)) else None
    elif name in _LIFE:
        yield run.label(given[1])
    elif name in _TRANSACTION:
        yield given[1].nested, given[1].parent is None
    elif name in ("after_flush", "after_flush_postexec"):
        yield sorted(map(run.label, given[0].dirty)), sorted(map(run.label, given[0].deleted))
    elif name == "before_flush":
        yield sorted(map(run.label, given[0].dirty))


STEPS: dict[str, Callable[[Run, Step], Any]] = {
    one.__name__: one
    for one in (
        *(
            set_,
            set_bad,
            set_same,
            set_all,
            del_,
            set_expression,
            set_key,
            set_other,
            mutate,
            move_code,
        ),
        *(flag, touch_, read, get, get_locked, select_all, expire, expire_all, refresh, flush),
        *(commit, rollback, begin_nested, end_nested, delete, add_new, add_again, expunge),
        *(pickled, transient, is_modified, listen),
    )
}


def plain(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+ms", "", text)[:160]
