"""Programs by chance, and what each of their steps comes to in a session."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

from sqlalchemy import Engine, event, inspect
from sqlalchemy.exc import DBAPIError, SAWarning
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

from checks.differential.mappings import MAPPINGS, Mapping, Stop
from checks.differential.steps import STEPS, Run, Step, plain
from optilock import ConfigurationError


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
    about = [plain(str(one.message)) for one in warned if issubclass(one.category, SAWarning)]
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
        plain(str(error).splitlines()[0] if str(error) else ""),
    )


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
