"""Runs a history on a database, and has every end of a transaction judged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event, inspect
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError, SAWarning
from sqlalchemy.orm import sessionmaker
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

import optilock
from checks.history.authors import Author, Copy, NotNow, Settings
from checks.history.histories import History
from checks.history.mappings import EARLY, Mapping_, mapping
from checks.history.model import Fault, Ledger, Row, judge
from checks.history.operations import ENDS, LOCKS, OPERATIONS, Step
from optilock import ConcurrencyError, ConfigurationError, watch
from optilock.errors import LinkGone, NotFound, TransactionEnded
from optilock.unit import set_trip_time
from tests.engines import Target

__all__ = ["Place"]

_LOCK_WORDS = ("locked", "lock timeout", "LockNotAvailable", "(1205", "(1213", "(1020")
_NO_WAITING = {
    "postgresql": "SET lock_timeout = '1ms'",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 0",
    "sqlite": "PRAGMA busy_timeout = 0",
}


class Place:
    """A database on which histories run: tables are made once, rows are put back each time."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.engine = _impatient(target)
        self._plain = target.engine(isolation_level="AUTOCOMMIT").connect()
        self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._makers: dict[Any, Any] = {}
        self._known: set[str] = set()

    def close(self) -> None:
        self._plain.close()
        self._plain.engine.dispose()
        self.engine.dispose()

    def run(self, history: History, runs: list[Run] | None = None) -> Run:
        on = mapping(history.mapping)
        if on.name not in self._known:
            on.base.metadata.create_all(self._plain)
            self._known.add(on.name)
        on.reset(self._plain)
        run = Run(self, on, history)
        if runs is not None:
            runs.append(run)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SAWarning)  # authors do what nobody should
                run.all()
        finally:
            run.over()
        return run

    def stored(self, on: Mapping_) -> dict[Row, Any]:
        return on.stored(self._plain)

    def sessions(self, settings: Settings) -> Any:
        """A factory of sessions; those that are watched early are shared by all databases."""
        engine = self._autocommit if settings.autocommit else self.engine
        if settings.early and settings.policy == "none" and not settings.unit:
            return lambda: EARLY[settings.expire_on_commit](bind=engine)
        key = (settings.policy, settings.expire_on_commit, settings.autocommit, settings.plain)
        if key not in self._makers:
            made = sessionmaker(engine, expire_on_commit=settings.expire_on_commit)
            if not settings.plain:
                policy = getattr(optilock, settings.policy) if settings.policy != "none" else None
                watch(made, on_conflict=policy)
            self._makers[key] = made
        return self._makers[key]


def _impatient(target: Target) -> Engine:
    engine = target.engine()
    set_trip_time(engine, 0.001)  # pipelined units take fewer round trips from the first one on

    @event.listens_for(engine, "connect")
    def no_waiting(connection: Any, record: Any) -> None:
        with _closing(connection.cursor()) as cursor:
            cursor.execute(_NO_WAITING[target.family])
        if target.family == "postgresql":
            connection.commit()

    return engine


@contextmanager
def _closing(cursor: Any) -> Iterator[Any]:
    try:
        yield cursor
    finally:
        cursor.close()


class Run:
    """One history on one database."""

    def __init__(self, place: Place, on: Mapping_, history: History) -> None:
        self.place, self.on, self.history = place, on, history
        self.ledger = Ledger(on.kinds, place.stored(on))
        self.lines: list[str] = []
        family = place.target.family
        self.authors = [
            Author(
                "ABC"[number],
                settings,
                on,
                self.ledger,
                None if _refused(settings, place) else place.sessions(settings),
                family=family,
            )
            for number, settings in enumerate(history.authors)
        ]

    def all(self) -> None:
        for step in self.history.steps:
            author = self.authors[step.author]
            if author._sessions is not None:
                author.context.run(self.step, author, step)

    def over(self) -> None:
        for author in self.authors:
            try:
                author.context.run(author.close)
            except Exception:  # the fault itself is what counts
                if author._session is not None:
                    author._session.close()

    # -- one step ---------------------------------------------------------------------------------

    def step(self, author: Author, step: Step) -> None:
        author.ended = False
        answer, held = "done", None
        try:
            held = OPERATIONS[step.operation](author, step)
        except NotNow:
            if author.is_open:
                self._note(author, step, "only reads what it would need")
            return
        except Fault:
            self._note(author, step, "")
            raise
        except Exception as error:
            try:
                answer = self._told(author, step, error)
            except Fault:
                self._note(author, step, f"{type(error).__name__}")
                raise
        self._note(author, step, answer)
        author.observe(locking=step.operation in LOCKS and answer == "done")
        del held
        if author.ended or author.settings.autocommit:
            self._look(author, committed=step.operation == "commit" and answer == "done")

    def _note(self, author: Author, step: Step, answer: str) -> None:
        row = self.on.rows[step.row % len(self.on.rows)]
        what = "" if step.operation in ENDS else f"{row[0]} {row[1]}"
        kind = self.on.kind(row[0])
        if step.operation not in ENDS:
            what += f", {kind.columns[step.column % len(kind.columns)]}"
        told = "" if answer == "done" else f"    # {answer}"
        more = f" [{step.choice}]" if step.operation not in ENDS else ""
        self.lines.append(f"{author.name}.{step.operation.rstrip('_')}({what}){more}{told}")

    def _look(self, author: Author, *, committed: bool) -> None:
        """What is stored now, and was that to be?"""
        after = self.place.stored(self.on)
        if not committed:
            stored = self.ledger.differences(after)
            if stored:
                raise Fault("half", f"{_rows(stored)} changed without a commit")
            return
        faults = list(judge(self.ledger, author.done, after, author.settings.policy))
        faults += self._unlike(author, after)
        changed = set(self.ledger.differences(after)) | author.done.rows()
        changed = changed.union(*(self.ledger.roots_of(row, after) for row in changed))
        self.ledger.record(author.name, after)
        if faults:
            raise faults[0]
        self._seen_by(author, changed)

    def _unlike(self, author: Author, after: dict[Row, Any]) -> list[Fault]:
        """Objects that do not hold what is stored, after their author has written the row."""
        found = []
        written = {
            row
            for row, columns in self.ledger.differences(after).items()
            if columns and row in author.done.rows()
        }
        for copy in author.attached():
            stored = after.get(copy.row)
            if copy.row not in written or stored is None or author.done.stated:
                continue
            if (
                copy.doubtful or inspect(copy.obj).was_deleted
            ):  # it holds what was undone, or is gone
                continue
            base = copy.base()
            if copy.row in author.done.added and self.ledger.since(
                copy.row, min(base.oldest, base.memory)
            ):
                continue  # it stays in the version that was read
            if copy.kind.check != "version" or inspect(copy.obj).modified:
                continue
            held = copy.obj.__dict__
            for name in ("version", *copy.kind.columns):
                if name in held and held[name] != stored[name] and name not in copy.kind.ignored:
                    found.append(
                        Fault(
                            "unlike",
                            f"{_rows([copy.row])}.{name} is {held[name]!r} in the object,"
                            f" and {stored[name]!r} is stored",
                        )
                    )
        return found

    def _seen_by(self, author: Author, changed: set[Row]) -> None:
        """Who has written a row, and saw the one before, has seen the one after."""
        stayed = [copy for copy in author.detached if copy.written_in is author.done]
        for copy in [*author.attached(), *stayed]:
            if copy.row in author.done.inserts:
                copy.seen = dict.fromkeys(copy.kind.columns, (0, 0))
                copy.read = set(copy.held)
            if copy.row in changed:
                copy.seen = {
                    name: (self._after(copy, name, oldest), self._after(copy, name, newest))
                    for name, (oldest, newest) in copy.seen.items()
                }
                if copy.memory is not None:
                    copy.memory = self._after(copy, "version", copy.memory)
            copy.before_resolver = None
            copy.bases.clear()
        author.done = type(author.done)()
        author.nested = []
        if author.settings.unit:
            author.let_go()

    def _after(self, copy: Copy, name: str, seen: int) -> int:
        """The last revision, if nobody else had changed since ``seen`` what a write compares."""
        now = self.ledger.now(copy.row)
        revisions = self.ledger.revisions.get(copy.row, [])[seen + 1 : now]
        if copy.kind.check == "version":
            return seen if any(changed for _, changed, _ in revisions) else now
        return seen if any(name in changed for _, changed, _ in revisions) else now

    # -- errors -----------------------------------------------------------------------------------

    def _told(self, author: Author, step: Step, error: Exception) -> str:
        """Judge an error, and do what its author has to do after it."""
        if isinstance(error, ConcurrencyError) and not isinstance(error, LinkGone):
            self._judge_conflict(author, step, error)
        elif not self._legal(author, step, error):
            raise Fault(f"error {type(error).__name__}", str(error).split("\n")[0][:300]) from error
        left = author.settings.unit and not author.is_open
        if left:
            author._undone()
            author.let_go()
        elif author._session is not None and self._is_dead(author, error):
            try:
                author.rollback()
            except Exception as worse:
                raise Fault(f"error {type(worse).__name__}", str(worse)[:300]) from worse
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"

    def _is_dead(self, author: Author, error: Exception) -> bool:
        session = author._session
        assert session is not None
        if isinstance(error, DBAPIError) or isinstance(error.__cause__, DBAPIError):
            return True
        if isinstance(error, TransactionEnded):
            return True
        return not session.is_active or (
            isinstance(error, StaleDataError)
            and (isinstance(error, LinkGone) or not isinstance(error, ConcurrencyError))
        )

    def _legal(self, author: Author, step: Step, error: Exception) -> bool:
        if isinstance(error, TransactionEnded):
            return author.lost
        if isinstance(error, IntegrityError):
            return self.on.name.startswith(("orders", "posts"))
        if isinstance(error, DBAPIError):
            return any(word in f"{type(error.orig).__name__} {error}" for word in _LOCK_WORDS)
        if isinstance(error, LinkGone):
            return True
        gone = any(
            copy.row not in self.ledger.stored or copy.row in author.done.deletes
            for copy in author.attached()
        )
        if isinstance(error, ObjectDeletedError):
            return gone
        if isinstance(error, KeyError):  # SQLAlchemy's, for a column of a joined table
            return gone and "failed to populate" in str(error)
        if isinstance(error, InvalidRequestError):
            return gone and "refresh" in str(error)
        if isinstance(error, NotFound):  # an entity
            return author.on.rows[step.row % len(author.on.rows)] not in self.ledger.stored or bool(
                author.done.deletes
            )
        if isinstance(error, ConfigurationError):
            if author.settings.autocommit and "AUTOCOMMIT" in str(error):
                return True
            return "read" in str(error) and self._unknown(author)
        return False

    def _unknown(self, author: Author) -> bool:
        """May the library not know what this author has seen?"""
        return (
            author.done.stated
            or any(copy.doubtful for copy in author.attached())
            or any(kind.check != "version" for kind in self.on.kinds)
        )

    def _judge_conflict(self, author: Author, step: Step, conflict: ConcurrencyError) -> None:
        rows = [self._row_of_entry(entry) for entry in conflict.entries]
        if not rows:
            if isinstance(conflict.__cause__, DBAPIError):  # SQLite's snapshot is of all tables
                return
            raise Fault("entries", "a conflict without entries")
        stored = self.place.stored(self.on)
        for row, entry in zip(rows, conflict.entries, strict=True):
            copies = [*author.attached(), *(author.detached if step.operation == "merge" else ())]
            merged_over_own = step.operation == "merge" and row in author.done.rows()
            if step.operation == "merge" and self._unknown_to_copies(copies, row):
                continue
            only_adds = author.done.only_adds(row) and row in stored
            if (
                only_adds
                and not isinstance(conflict.__cause__, DBAPIError)
                and not copies_only(step)
            ):
                raise Fault("needless conflict", f"{_rows([row])}: {entry.describe()}")
            if not merged_over_own and not self._was_overtaken(author, row, copies):
                raise Fault("false conflict", f"{_rows([row])}: {entry.describe()}")
            if step.operation not in ("merge", "expect_tag"):  # they compare copies
                self._judge_entry(author, row, entry, stored.get(row))
            for copy in copies:
                if copy.row == row:  # what the flush has read of it was not seen
                    copy.memory = copy.base().memory

    def _unknown_to_copies(self, copies: list[Copy], row: Row) -> bool:
        """Was it written by a transaction that was undone, and has no version to tell so?

        Compared values have none, nor has a collection, and a row that was never stored. What was
        read after a statement may be what that had written.
        """
        if row not in self.ledger.revisions:
            return True
        kind, roots = self.on.kind(row[0]), self.ledger.roots_of(row)
        if any(copy.unknown and copy.row == row for copy in copies):
            return True
        return any(
            copy.doubtful and (copy.row in roots or (copy.row == row and kind.check != "version"))
            for copy in copies
        )

    def _row_of_entry(self, entry: Any) -> Row:
        name = next(name for name, cls in self.on.classes.items() if cls is entry.model)
        return name, entry.identity[0]

    def _was_overtaken(self, author: Author, row: Row, copies: list[Copy]) -> bool:
        """Can somebody have changed the row since this author has read it?"""
        seen = [
            oldest
            for copy in copies
            if copy.row == row
            for oldest in (*(oldest for oldest, _ in copy.seen.values()), copy.base().memory)
        ]
        done = author.done
        bases = [edit.base for edit in done.edited(row).values() if edit.base]
        for known in (done.deletes, done.touched, done.roots):
            base = known.get(row)
            bases += [base] if base else []
        seen += [number for base in bases for number in (base.oldest, base.memory)]
        for promised in (done.promises, done.promised_edits):
            seen += [number for r, number in promised.items() if r == row]
        seen += [number for r, (_, number) in author.tags.items() if r == row]
        return bool(self.ledger.since(row, min(seen, default=0)))

    def _judge_entry(self, author: Author, row: Row, entry: Any, stored: Any) -> None:
        kind = self.on.kind(row[0])
        if entry.database is not None and row not in author.done.flushed:
            for name in kind.columns:
                own = author.done.own_values(row, name)
                if (stored is None or entry.database[name] != stored[name]) and (
                    entry.database[name] not in own
                ):
                    raise Fault("entry", f"{name} of the database side is {entry.database[name]!r}")
        if entry.database is None and stored is not None and row not in author.done.deletes:
            raise Fault("entry", f"{_rows([row])} is not gone, but the entry says so")
        for name, value in entry.changes.items() if entry.action == "update" else ():
            edit = author.done.edits.get((row, name))
            if edit is not None and name in kind.columns and value not in edit.values:
                raise Fault("entry", f"{name} was set to {edit.values!r}, the entry says {value!r}")


def copies_only(step: Step) -> bool:
    """They compare copies, and write nothing."""
    return step.operation in ("merge", "expect_tag", "update_by_key", "bulk", "entity")


def _refused(settings: Settings, place: Place) -> bool:
    """An engine in AUTOCOMMIT mode may be refused when it is watched."""
    if not settings.autocommit:
        return False
    try:
        place.sessions(settings)
    except ConfigurationError:
        return True
    return False


def _rows(rows: Any) -> str:
    return ", ".join(f"{name} {key}" for name, key in sorted(rows, key=str))
