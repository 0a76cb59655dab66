"""The judge: what was committed, what its authors had seen, and whether the one fits the other.

Plain Python. A *row* is ``("page", 1)``; its *revisions* are numbered from 0 in the order of the
commits. What an author has seen of a column is a pair of revisions, the oldest and the newest
that it may have been read in: mostly they are one and the same, but a snapshot may show a value
that several revisions share.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

__all__ = ["GONE", "Base", "Edit", "Fault", "Kind", "Ledger", "Row", "Transaction", "judge"]

Row = tuple[str, Hashable]
Values = Mapping[str, object]
Span = tuple[int, int]
#: In the place of a column: the row itself came or went.
GONE = "<gone>"
#: In the place of a column of an aggregate's root: a row that belongs to it.
CHILD = "<child>"
VERSION = "version"


class Fault(AssertionError):
    """A promise that was broken: in one word, and in a sentence."""

    def __init__(self, word: str, sentence: str) -> None:
        super().__init__(f"{word}: {sentence}")
        self.word = word


@dataclass(frozen=True)
class Kind:
    """What the model knows of a class: its columns, and which of them guard the row."""

    name: str
    #: The columns that hold unique values.
    columns: tuple[str, ...]
    ignored: frozenset[str] = frozenset()
    #: How a write is checked: by the row's ``version``, or by the columns that are ``named``, by
    #: ``all``, or by those that are ``changed``; ``nothing`` is SQLAlchemy alone.
    check: str = VERSION
    named: frozenset[str] = frozenset()
    #: The kind of the aggregate's root, where there is one, and the column that names its row.
    root: str | None = None
    parent: str | None = None
    parent_column: str | None = None
    #: The column to which authors add (``__version_commutes__``).
    counter: str | None = None

    @property
    def links(self) -> bool:
        """Rows of a link table have no column but their key."""
        return not self.columns


@dataclass(frozen=True)
class Base:
    """What an author had seen of a row when it made an edit."""

    seen: Mapping[str, Span]
    #: The oldest revision from which the author may still remember something.
    memory: int

    @property
    def newest(self) -> int:
        """The row was seen as a whole in no later revision than this, if it was seen at all."""
        return min((newest for _, newest in self.seen.values()), default=sys.maxsize)

    @property
    def oldest(self) -> int:
        return min((oldest for oldest, _ in self.seen.values()), default=self.memory)

    def after(self, first: Base) -> Base:
        """Edited twice, and not written in between: the first one may be what counts."""
        seen = {
            name: (min(oldest, first.seen.get(name, (oldest, 0))[0]), newest)
            for name, (oldest, newest) in self.seen.items()
        }
        return Base(seen, min(self.memory, first.memory))


@dataclass
class Edit:
    """A column that should hold one of ``values`` after the commit."""

    values: tuple[object, ...]
    #: ``None`` for the author's own UPDATE statement, which says nothing of what it has read.
    base: Base | None
    #: A change of a collection may be dropped by what is done to either of its ends.
    maybe: bool = False
    #: What was written before in the same transaction: it stays if this edit is dropped.
    under: Edit | None = None


@dataclass
class Transaction:
    """What an author has done since the last commit or rollback."""

    edits: dict[tuple[Row, str], Edit] = field(default_factory=dict)
    deletes: dict[Row, Base] = field(default_factory=dict)
    inserts: dict[Row, Values] = field(default_factory=dict)
    #: With ``None``: in the version that was read since.
    touched: dict[Row, Base | None] = field(default_factory=dict)
    promises: dict[Row, int] = field(default_factory=dict)
    #: Of rows that were edited before they were promised: what the edits are based on.
    promised_edits: dict[Row, int] = field(default_factory=dict)
    #: Rows that may be added, or not.
    perhaps: set[Row] = field(default_factory=set)
    #: Link rows: should they be there?
    links: dict[Row, bool] = field(default_factory=dict)
    #: What the author had seen of the roots of the rows that it changed.
    roots: dict[Row, Base] = field(default_factory=dict)
    #: On databases with snapshots: when the first one was taken.
    snapshot: Mapping[Row, int] | None = None
    #: Does the transaction read from a snapshot, though the engine usually does not?
    snapshotting: bool = False
    #: By how much the counters of rows should be more, and what of it is not flushed yet.
    added: dict[Row, int] = field(default_factory=dict)
    #: Was anything sent that is undone by a rollback?
    flushed: set[Row] = field(default_factory=set)
    stated: bool = False

    def copy(self) -> Transaction:
        """For a savepoint: what there was before it."""
        return replace(
            self,
            edits=dict(self.edits),
            deletes=dict(self.deletes),
            inserts=dict(self.inserts),
            touched=dict(self.touched),
            promises=dict(self.promises),
            links=dict(self.links),
            roots=dict(self.roots),
            added=dict(self.added),
            flushed=set(self.flushed),
            perhaps=set(self.perhaps),
        )

    def edit(
        self, row: Row, column: str, value: object, base: Base | None, *, over: bool = False
    ) -> None:
        """A column was set; ``over`` another value that is written already."""
        known = self.edits.get((row, column))
        under = known if over or known is None else known.under
        self.edits[row, column] = Edit((value,), base, under=under)

    def state(self, row: Row, column: str, value: object, pending: Collection[object]) -> None:
        """An UPDATE statement was sent; what is ``pending`` may be written after it."""
        known = self.edits.get((row, column))
        base = known.base if known and pending else None
        self.edits[row, column] = Edit((value, *pending), base, under=Edit((value,), None))
        self.stated = True
        self.flushed.add(row)

    def edited(self, row: Row) -> dict[str, Edit]:
        return {column: edit for (r, column), edit in self.edits.items() if r == row}

    def drop(self, row: Row, columns: Collection[str]) -> None:
        """Edits that are not flushed."""
        for column in columns:
            known = self.edits.pop((row, column), None)
            if known is not None and known.under is not None:
                self.edits[row, column] = known.under

    def own_values(self, row: Row, column: str) -> tuple[object, ...]:
        if row in self.inserts:
            return (self.inserts[row].get(column), *self._edited(row, column))
        return self._edited(row, column)

    def _edited(self, row: Row, column: str) -> tuple[object, ...]:
        edit = self.edits.get((row, column))
        return edit.values if edit else ()

    def rows(self) -> set[Row]:
        return {
            *(row for row, _ in self.edits),
            *self.deletes,
            *self.inserts,
            *self.perhaps,
            *self.touched,
            *self.links,
            *self.added,
        }

    def only_adds(self, row: Row) -> bool:
        """Is a difference all that is written of the row?"""
        others = (self.deletes, self.inserts, self.touched, self.roots, self.promises)
        return row in self.added and not self.edited(row) and all(row not in one for one in others)


class Ledger:
    """All revisions that were committed, and who committed them."""

    def __init__(self, kinds: Collection[Kind], stored: Mapping[Row, Values]) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.stored = dict(stored)
        #: For each row, what every revision changed, and what it left behind.
        self.revisions: dict[Row, list[tuple[str, frozenset[str], Values | None]]] = {
            row: [("", frozenset(), values)] for row, values in stored.items()
        }

    def kind(self, row: Row) -> Kind:
        return self.kinds[row[0]]

    def now(self, row: Row) -> int:
        return len(self.revisions.get(row, ())) - 1

    def picture(self) -> dict[Row, int]:
        return {row: len(revisions) - 1 for row, revisions in self.revisions.items()}

    def differences(self, after: Mapping[Row, Values]) -> dict[Row, frozenset[str]]:
        """What guards a row, and is another than it was; nothing, if only ignored columns are."""
        found = {}
        for row in {*self.stored, *after}:
            before, now = self.stored.get(row), after.get(row)
            if before == now:
                continue
            if before is None or now is None:
                found[row] = frozenset({GONE})
            else:
                ignored = self.kind(row).ignored
                found[row] = frozenset(c for c in now if before[c] != now[c]) - ignored
        return found

    def record(self, author: str, after: Mapping[Row, Values]) -> None:
        """A transaction was committed, and left these rows."""
        changes = dict(self.differences(after))
        for row in [row for row in changes if changes[row]]:
            for root in self.roots_of(row, after):
                if root in self.stored and root in after:
                    changes[root] = changes.get(root, frozenset()) | {CHILD}
        for row, changed in changes.items():
            self.revisions.setdefault(row, [("", frozenset({GONE}), None)]).append(
                (author, changed, after.get(row))
            )
        self.stored = dict(after)

    def roots_of(self, row: Row, after: Mapping[Row, Values] | None = None) -> set[Row]:
        """The roots to which the row belonged, and to which it belongs now."""
        kind = self.kind(row)
        if kind.root is None or kind.parent_column is None:
            return set()
        states = (self.stored.get(row), (after or {}).get(row))
        keys = {state[kind.parent_column] for state in states if state is not None}
        return {(kind.root, key) for key in keys if isinstance(key, Hashable) and key is not None}

    def since(self, row: Row, revision: int) -> frozenset[str]:
        """What later revisions have changed."""
        later = self.revisions.get(row, ())[revision + 1 :]
        return frozenset().union(*(changed for _, changed, _ in later))

    def span(self, row: Row, column: str, value: object) -> Span | None:
        """The first and the last revision in which the column held the value."""
        found = [
            number
            for number, (_, _, values) in enumerate(self.revisions.get(row, ()))
            if values is not None and values.get(column) == value
        ]
        return (found[0], found[-1]) if found else None

    def overtaken(self, row: Row, base: Base, columns: Collection[str]) -> frozenset[str]:
        """What was surely changed by others of that which the write of ``columns`` goes over."""
        return self._judged(row, base, columns, surely=True)

    def maybe_overtaken(self, row: Row, base: Base, columns: Collection[str]) -> frozenset[str]:
        return self._judged(row, base, columns, surely=False)

    def _judged(
        self, row: Row, base: Base, columns: Collection[str], *, surely: bool
    ) -> frozenset[str]:
        kind = self.kind(row)
        oldest, newest = min(base.oldest, base.memory), base.newest
        if kind.check in (VERSION, "nothing"):
            return self.since(row, newest if surely else oldest)
        judged = {"named": kind.named, "all": set(base.seen), "changed": set(columns)}[kind.check]
        gone = self.since(row, newest if surely else oldest) & {GONE}
        bound = 1 if surely else 0
        return gone | {
            column
            for column in judged & base.seen.keys()
            if column in self.since(row, base.seen[column][bound])
        }


def judge(
    ledger: Ledger, done: Transaction, after: Mapping[Row, Values], policy: str
) -> Iterator[Fault]:
    """What is wrong with a transaction that was committed, and left ``after`` behind."""
    for row, revision in done.promises.items():
        moved = ledger.since(row, revision)
        if moved:
            yield Fault("promise", f"{_name(row)} was promised, and {_list(moved)} was changed")
    for row, there in done.links.items():
        if (row in after) != there:
            yield Fault("missing", f"the link {row[1]} is {'' if row in after else 'not '}stored")
    for row in done.inserts:
        if row not in after and row not in done.deletes:
            yield Fault("missing", f"{_name(row)} was added, and is not stored")
    for row, base in done.deletes.items():
        yield from _judge_delete(ledger, row, base, after, policy)
    for row in {row for row, _ in done.edits} - done.deletes.keys():
        yield from _judge_row(ledger, row, done.edited(row), after, policy)
    for row, more in done.added.items():
        yield from _judge_sum(ledger, done, row, more, after)
    for row, base in done.touched.items():
        yield from _judge_touch(ledger, done, row, base, after, policy)
    written = (row for row in ledger.differences(after) if row in done.rows())
    parts = set[Row]().union(*(ledger.roots_of(row, after) for row in written))
    for row, base in done.roots.items():
        if row not in parts:
            continue  # what was changed of it was dropped
        moved = ledger.overtaken(row, base, ())
        if moved and policy == "none" and row in after:
            yield Fault("lost", f"a part of {_name(row)} was written over {_list(moved)}, unseen")
    yield from _not_asked_for(ledger, done, after)


def _judge_delete(
    ledger: Ledger, row: Row, base: Base, after: Mapping[Row, Values], policy: str
) -> Iterator[Fault]:
    columns = ledger.kind(row).columns
    moved = ledger.overtaken(row, base, columns)
    if row in after:
        if policy != "store_wins" or not ledger.maybe_overtaken(row, base, columns):
            yield Fault("missing", f"{_name(row)} was deleted, and is still stored")
    elif GONE in moved:
        if policy == "none":
            yield Fault("lost", f"{_name(row)} was deleted twice, and nobody was told")
    elif moved and policy in ("none", "merge_fields", "store_wins"):
        yield Fault("lost", f"{_name(row)} was deleted over a change of {_list(moved)}, unseen")


def _judge_row(
    ledger: Ledger, row: Row, edits: dict[str, Edit], after: Mapping[Row, Values], policy: str
) -> Iterator[Fault]:
    before, now = ledger.stored.get(row), after.get(row)
    if now is None:
        if policy != "store_wins" and any(edit.base and not edit.maybe for edit in edits.values()):
            yield Fault("missing", f"{_name(row)} was edited, and is not stored")
        return
    for column, edit in edits.items():
        moved = maybe = frozenset[str]()
        ignored = column in ledger.kind(row).ignored
        if edit.base is not None and not ignored:
            moved = ledger.overtaken(row, edit.base, edits)
            maybe = ledger.maybe_overtaken(row, edit.base, edits)
        if now[column] in edit.values:
            if moved and not _may_go_over(ledger, policy, row, column, edit.base):
                yield Fault(
                    "lost",
                    f"{_name(row)}.{column} = {edit.values[0]!r} was written over a change of"
                    f" {_list(moved)}, unseen",
                )
        elif not edit.maybe:
            kept = before is not None and now[column] == before.get(column)
            if not (kept and policy == "store_wins" and (maybe or ignored)):
                yield Fault(
                    "missing",
                    f"{_name(row)}.{column} was set to {edit.values[0]!r},"
                    f" and {now[column]!r} is stored",
                )


def _judge_sum(
    ledger: Ledger, done: Transaction, row: Row, more: int, after: Mapping[Row, Values]
) -> Iterator[Fault]:
    """No increment is lost, and none is counted twice, whoever else adds and whoever resolves."""
    counter, before, now = ledger.kind(row).counter, ledger.stored.get(row), after.get(row)
    if counter is None or before is None or now is None or row in done.deletes:
        return
    if now[counter] != before[counter] + more:  # type: ignore[operator]
        yield Fault(
            "sum",
            f"{_name(row)}.{counter} was {before[counter]}, {more} was added, and {now[counter]}"
            " is stored",
        )


def _may_go_over(ledger: Ledger, policy: str, row: Row, column: str, base: Base | None) -> bool:
    """May a resolver have written the column, though others had changed the row?"""
    if policy != "merge_fields" or base is None:
        return policy == "client_wins"
    _, newest = base.seen.get(column, (0, base.newest))
    return not ledger.since(row, newest) & {column, GONE}


def _judge_touch(
    ledger: Ledger,
    done: Transaction,
    row: Row,
    base: Base | None,
    after: Mapping[Row, Values],
    policy: str,
) -> Iterator[Fault]:
    moved = ledger.overtaken(row, base, ()) if base else frozenset()
    if row in done.deletes or row not in after:
        return
    if moved and policy == "none":
        yield Fault("lost", f"{_name(row)} was touched over a change of {_list(moved)}, unseen")
    if base is None and policy == "store_wins":
        return  # a resolver may have met it in an older version, and dropped it
    before = ledger.stored.get(row)
    if before is not None and before[VERSION] == after[row][VERSION] and not moved:
        yield Fault("missing", f"{_name(row)} was touched, and its version has not moved")


def _not_asked_for(
    ledger: Ledger, done: Transaction, after: Mapping[Row, Values]
) -> Iterator[Fault]:
    """Changes that are nobody's wish, and changes that no version tells of."""
    gone = done.deletes.keys() | {row for row in ledger.stored if row not in after}
    for row, changed in ledger.differences(after).items():
        kind = ledger.kind(row)
        if kind.links:
            if row not in done.rows() and not any(("post", key) in gone for key in row[1]):  # type: ignore[union-attr]
                yield Fault("unasked", f"the link {row[1]} came or went")
            continue
        if GONE in changed:
            parents = _parents(ledger, row)
            if row not in done.rows() and not parents & gone:
                yield Fault("unasked", f"{_name(row)} came or went")
            continue
        wanted = {column for r, column in done.edits if r == row}
        wanted |= {kind.counter} if row in done.added and kind.counter else set()
        orphaned = {kind.parent_column} if _parents(ledger, row) & gone else set()
        strange = changed - wanted - orphaned - {VERSION}
        if strange:
            yield Fault("unasked", f"{_list(strange)} of {_name(row)} changed")
        if kind.check == VERSION and changed and VERSION not in changed:
            yield Fault("unmoved", f"{_list(changed)} of {_name(row)} changed, its version did not")


def _parents(ledger: Ledger, row: Row) -> set[Row]:
    kind, values = ledger.kind(row), ledger.stored.get(row)
    if values is None or kind.parent is None or kind.parent_column is None:
        return set()
    return {(kind.parent, values[kind.parent_column])}  # type: ignore[arg-type]


def _name(row: Row) -> str:
    return f"{row[0]} {row[1]}"


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
