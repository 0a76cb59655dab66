"""Programs by chance, what each of their steps comes to, and where two sessions differ."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple

from sqlalchemy import Engine, event, inspect, select
from sqlalchemy.exc import DBAPIError, SAWarning
from sqlalchemy.orm import Session, load_only, make_transient, sessionmaker
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

from optilock import ConfigurationError, touch, watch
from tests.differential.mappings import MAPPINGS, ROWS, Mapping, Stop, mapping

#: What is different by intention, and why.
WANTED = {
    "conflict": (
        "A conflict leaves the transaction of a watched session alive, and the edits where they"
        " were, so that it can be settled; SQLAlchemy's ends it. The program ends there: what was"
        " told is the same, and so is what is stored after a rollback."
    ),
    "unread": (
        "A copy that was pickled before a transaction had its outcome is not written by a watched"
        " session until its row was read: its version may never have been stored."
    ),
    "remembered": (
        "An expired object that is to be deleted, or is touched, holds its key and the version"
        " that its author had seen; a plain session reads whatever is stored by then. And a touch"
        " outlives a reading that drops edits."
    ),
    "undone": (
        "An object whose INSERT was rolled back has no version in a watched session, and one that"
        " has left it before a rollback has the version from before: no row has the one it had."
    ),
    "together": (
        "Rows that go together are sent when all are known: where one of them ends in an error,"
        " listeners of rows may have been called for those that come after it."
    ),
    "looked": (
        "The row of an expired object that is deleted is read before the flush, and not within."
    ),
    "locked": (
        "Where a plain query may be older than a row that was read under a lock, what it fills in"
        " is expired, and read with a lock when it is asked for (optilock/rows/locked.py)."
    ),
    "first": (
        "Of two errors in the values of a row SQLAlchemy meets either first, by the order of a set."
        " Of two in several rows it meets that of the first row; where rows go together, those of"
        " comparisons come before those of the database."
    ),
    "message": (
        "The database's own text of an error names the statement, which is another one where rows"
        " are written together; its class is the same."
    ),
}


class Step(NamedTuple):
    do: str
    #: Which object, and numbers to choose by.
    row: int = 1
    choice: int = 0

    def __repr__(self) -> str:
        return f"{self.do}({self.row}, {self.choice})"


@dataclass(frozen=True)
class Program:
    seed: int
    mapping: int
    autoflush: bool
    expire_on_commit: bool
    steps: tuple[Step, ...]


_OFTEN = (*("set_", "flush") * 4, "commit", "get", "read", "set_bad", "listen")


def program(seed: int) -> Program:
    """The same for the same seed."""
    rng = Random(f"program {seed}")
    names = [*_OFTEN * 2, *STEPS]
    steps = tuple(
        Step(rng.choice(names), rng.choice((1, 1, 2, 3)), rng.randrange(1000))
        for _ in range(rng.randrange(6, 26))
    )
    autoflush, expire = rng.random() < 0.5, rng.random() < 0.7
    return Program(seed, seed % MAPPINGS, autoflush, expire, (*_WARM, *steps))


#: A flush, so that the guard knows the statement of the class.
_WARM = (Step("get"), Step("set_", 1, 0), Step("commit"))


# -- running --------------------------------------------------------------------------------------


class Over(Exception):
    """The program ends here, as ``WANTED`` says."""


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

    def label(self, obj: Any) -> str:
        found = (f"thing {number}" for number, one in self.objects.items() if one is obj)
        return next(found, type(obj).__name__)


def _choose(values: Any, choice: int) -> Any:
    return values[choice % len(values)]


def set_(run: Run, step: Step) -> None:
    name, values = _choose(run.made.values, step.choice)
    setattr(run.obj(step), name, _choose(values, step.choice // 7))


def set_bad(run: Run, step: Step) -> None:
    name, values = _choose(run.made.bad, step.choice)
    setattr(run.obj(step), name, _choose(values, step.choice // 7))


def set_same(run: Run, step: Step) -> None:
    (name, _), obj = _choose(run.made.values, step.choice), run.obj(step)
    setattr(obj, name, getattr(obj, name))


def set_all(run: Run, step: Step) -> None:
    for row in ROWS:
        set_(run, step._replace(row=row))


def del_(run: Run, step: Step) -> None:
    delattr(run.obj(step), _choose(("title", "num", "body"), step.choice))


def set_expression(run: Run, step: Step) -> None:
    run.obj(step).num = run.made.thing.num + 1


def set_key(run: Run, step: Step) -> None:
    obj = run.obj(step)
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
        run.obj(step).other = other if step.choice % 5 < 4 else None


def move_code(run: Run, step: Step) -> None:
    """Of a row that others may refer to by it."""
    other, session = run.session.get(run.made.other, 1), run.session
    run.kept.append(other)
    if run.made.traits.relation != "none":
        run.obj(step).other = other
    session.flush()
    other.note = f"m{step.choice}"
    session.flush()
    other.code = 60 + step.choice % 5
    session.flush()


def mutate(run: Run, step: Step) -> None:
    obj = run.obj(step)
    if isinstance(obj.data, dict):
        obj.data["b"] = step.choice


def flag(run: Run, step: Step) -> None:
    flag_modified(run.obj(step), _choose(("num", "title", "data"), step.choice))


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
    return _plain(repr(getattr(run.obj(step), name)))


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
_MAPPER = ("before_update", "after_update", "before_delete", "after_delete", "before_insert")
_INSTANCE = ("refresh_flush", "refresh", "load", "expire")
_LIFE = ("persistent_to_deleted", "pending_to_persistent", "persistent_to_detached")
_LISTENERS = (*_SESSION, *_TRANSACTION * 3, *_MAPPER, *_INSTANCE * 2, *_LIFE)


def listen(run: Run, step: Step) -> None:
    """Adds a listener, or removes the one that is there."""
    name = _choose(_LISTENERS, step.choice)
    if name in run.listening:
        event.remove(*run.listening.pop(name))
        return
    target = run.made.thing if name in _MAPPER or name in _INSTANCE else run.session

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
    if name in _MAPPER:
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


# -- what each step comes to ----------------------------------------------------------------------


def trace(made: Mapping, sessions: sessionmaker[Session], steps: Program) -> list[Any]:
    """What the program comes to, step by step, and at last what is stored."""
    engine: Engine = sessions.kw["bind"]
    with engine.begin() as connection:
        made.fill(connection)
    told: list[Any] = []
    with ExitStack() as stack:
        session = stack.enter_context(
            sessions(autoflush=steps.autoflush, expire_on_commit=steps.expire_on_commit)
        )
        run = Run(made, session)
        stack.callback(_remove_listeners, run)
        for step in steps.steps:
            came = _outcome(run, step)
            told.append([step, *came, *_state(run)])
            if came[0] in ("conflict", "unread"):
                break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)
            session.rollback()
    with engine.connect() as connection:
        told.append([Step("stored"), "stored", made.stored(connection)])
    return told


def _remove_listeners(run: Run) -> None:
    for one in run.listening.values():
        event.remove(*one)


def _outcome(run: Run, step: Step) -> list[Any]:
    """What the step gives or raises, what it has warned of, and who was called."""
    run.heard.clear()
    locking = step.do in ("get_locked", "select_all", "refresh", "touch_")
    run.locks |= locking and run.session.get_bind().dialect.name != "sqlite"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            came: Any = ("gives", STEPS[step.do](run, step))
        except (Exception, Stop) as error:
            came = _named(error)
            run.undone += 1
    about = [_plain(str(one.message)) for one in warned if issubclass(one.category, SAWarning)]
    return [came[0], came[1:], sorted(about), [*run.heard]]


def _named(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, StaleDataError):
        return ("conflict",)
    if isinstance(error, ObjectDeletedError):
        return ("conflict",)
    if isinstance(error, ConfigurationError) and "without having been read" in str(error):
        return ("unread",)
    if isinstance(error, DBAPIError):
        return ("raises", type(error).__name__, type(error.orig).__name__)
    return (
        "raises",
        type(error).__name__,
        _plain(str(error).splitlines()[0] if str(error) else ""),
    )


def _plain(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+ms", "", text)[:160]


def _state(run: Run) -> list[Any]:
    session = run.session
    return [
        (session.is_active, session.in_transaction(), session.in_nested_transaction()),
        [sorted(map(run.label, some)) for some in (session.new, session.dirty, session.deleted)],
        # Of the others it depends on Python's garbage which are there.
        [number for number, one in run.objects.items() if one is not None and one in session],
        {number: _held(run, one) for number, one in run.objects.items() if one is not None},
        run.locks,
    ]


def _held(run: Run, obj: Any) -> Any:
    state = inspect(obj)
    life = ("transient", "pending", "persistent", "deleted", "detached")
    if obj in run.session.deleted or (_remembers(run, obj) and not state.deleted):
        return [name for name in life if getattr(state, name)]
    held = {name: repr(value) for name, value in vars(obj).items() if name[0] != "_"}
    held.pop("other", None)  # of two deleted rows SQLAlchemy asks one for it, by the order of a set
    held = {n: v if "object at" not in v else "object" for n, v in held.items()}
    names = {"version", "id", "code"} if _remembers(run, obj) else set()
    names |= {"version"} if state.transient or state.detached else set()  # ``undone``
    changed = {n: repr(v) for n, v in state.committed_state.items() if "object at" not in repr(v)}
    return (
        next((name for name in life if getattr(state, name)), None),
        {name: value for name, value in held.items() if name not in names},
        {name: value for name, value in changed.items() if name not in names},
        sorted(set(state.expired_attributes) - names),
        state.modified,
    )


def _remembers(run: Run, obj: Any) -> bool:
    """Is it one of the ``remembered`` ones?"""
    return any(obj is one for one in run.recalled)


# -- where they differ ----------------------------------------------------------------------------


class Difference(NamedTuple):
    program: Program
    at: int
    plain: Any
    watched: Any

    @property
    def word(self) -> str:
        """What kind it is."""
        return f"{self.plain[0].do}: {_first_other(self.plain, self.watched)}"

    def __str__(self) -> str:
        traits = mapping(self.program.mapping, "plain").traits
        steps = " ".join(map(repr, self.program.steps[: self.at + 1]))
        flags = f"autoflush={self.program.autoflush}, expire={self.program.expire_on_commit}"
        return f"seed {self.program.seed}, {traits}, {flags}\n  {steps}\n" + "".join(
            f"  plain:   {ours!r}\n  watched: {theirs!r}\n"
            for ours, theirs in zip_longest(*map(_flat, (self.plain, self.watched)))
            if ours != theirs
        )


def _flat(told: Any) -> Iterator[Any]:
    for part in told:
        yield from part.items() if isinstance(part, dict) else [part]


_PARTS = (
    "step",
    "outcome",
    "value",
    "warnings",
    "listeners",
    "session",
    "lists",
    "keys",
    "objects",
)


def _first_other(plain: Any, watched: Any) -> str:
    pairs = zip_longest(_PARTS, plain, watched)
    return next((name or "rows" for name, one, two in pairs if one != two), "?")


def _begin(engine: Engine) -> None:
    """Python's driver begins no transaction for a savepoint, and its release would commit."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


class Place:
    """An engine with the sessions of both sides."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        if engine.dialect.name == "sqlite":
            _begin(engine)
        self.plain, self.watched = sessionmaker(engine), watch(sessionmaker(engine))
        self.there: set[int] = set()

    def difference(self, steps: Program) -> Difference | None:
        """The first step at which the sessions differ."""
        one, two = (mapping(steps.mapping, side) for side in ("plain", "watched"))
        if steps.mapping not in self.there:
            self.there.add(steps.mapping)
            one.metadata.drop_all(self.engine)
            one.metadata.create_all(self.engine)
        plain, watched = trace(one, self.plain, steps), trace(two, self.watched, steps)
        troubles = 0
        for at, (ours, theirs) in enumerate(zip(plain, watched, strict=False)):
            if theirs[1] == "unread" or {ours[1], theirs[1]} <= {"conflict", "unread"}:
                return None
            troubles += ours[0].do in ("set_bad", "del_")
            if not _alike(ours, theirs, several=troubles > 1):
                return Difference(steps, at, ours, theirs)
            if ours[1] == "raises" or ours[0].do in ("flush", "commit", "rollback"):
                troubles = 0
        return None


def _alike(ours: list[Any], theirs: list[Any], *, several: bool) -> bool:
    ours, theirs = (_without_looks(one) for one in (ours, theirs))
    ours, theirs = _as_locked(ours, theirs)
    if ours[1] == theirs[1] == "raises":  # ``together``
        ours, theirs = (_without_fills(one) for one in (ours, theirs))
        if several:  # ``first``
            ours, theirs = ([*one[:2], *one[3:]] for one in (ours, theirs))
    return ours == theirs


def _without_looks(told: list[Any]) -> list[Any]:
    """``looked``"""
    if told[0].do == "stored":
        return told
    first = sorted((one for one in told[4] if one[0] == "refresh"), key=repr)
    return [*told[:4], [*first, *(one for one in told[4] if one[0] != "refresh")], *told[5:]]


def _as_locked(ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """``locked``: without the attributes that are expired in the watched session alone."""
    if ours[0].do == "stored" or not ours[9]:
        return ours, theirs
    told: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
    for number in sorted({*ours[8], *theirs[8]}):
        held = theirs[8].get(number)
        pair = ours[8].get(number), held
        later = set(held[3]) if isinstance(held, tuple) else set()
        for side, one in zip(told, pair, strict=True):
            if isinstance(one, tuple):
                life, values, changed, expired, modified = one
                left = {n: v for n, v in values.items() if n not in later}
                one = life, left, changed, sorted(set(expired) - later), modified
            side[number] = one
    return [*ours[:8], told[0]], [*theirs[:8], told[1]]


_OF_A_ROW = (*_MAPPER, "refresh_flush", "expire")


def _without_fills(told: list[Any]) -> list[Any]:
    return [*told[:4], [one for one in told[4] if one[0] not in _OF_A_ROW], *told[5:]]


def shrink(place: Place, found: Difference) -> Difference:
    """The same difference with as few steps as it takes."""
    found = found._replace(program=found.program)
    going = True
    while going:
        going = False
        for at in range(len(found.program.steps) - 1, -1, -1):
            steps = (*found.program.steps[:at], *found.program.steps[at + 1 :])
            fewer = place.difference(Program(*[*_fields(found.program)[:-1], steps]))
            if fewer is not None and fewer.word == found.word:
                found, going = fewer, True
    return found


def _fields(steps: Program) -> list[Any]:
    return [steps.seed, steps.mapping, steps.autoflush, steps.expire_on_commit, steps.steps]


@contextmanager
def place_on(engine: Engine) -> Iterator[Place]:
    made = Place(engine)
    try:
        yield made
    finally:
        for number in made.there:
            mapping(number, "plain").metadata.drop_all(engine)
