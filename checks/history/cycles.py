"""What a history of appends to lists shows: lost and doubled appends, dirty reads, and cycles.

In the spirit of Elle (Kyle Kingsbury and Peter Alvaro, "Elle: Inferring Isolation Anomalies from
Experimental Observations", VLDB 2020). Every value is appended once, so a list that was read says
in which order the transactions before it were carried out. From these orders three kinds of edges
between transactions follow:

====  ============================================================================================
ww    the second one has appended right behind the first one's value
wr    the second one has read a list that ends in the first one's value
rw    the first one has read a list to which the second one has then appended
====  ============================================================================================

A cycle of them is an order in which the transactions cannot have run one after the other. By the
names of Adya ("Weak Consistency", 1999): **G0** has only ww; **G1c** ww and wr; **G-single** one
rw, among which are lost updates and read skew; **G2** two or more, such as write skew.

Beside the cycles: **lost**, an acknowledged append is not in the last list; **doubled**, it is
there twice; **aborted**, one that has failed is there (G1a); **intermediate**, a list that ends
between two appends of one transaction (G1b); **garbage**, a value that was never appended;
**orders**, two lists of one key of which none begins with the other; **internal**, a transaction
that does not read what it has appended itself.

An append whose outcome is unknown (``info``) may be there once, or not at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

__all__ = ["Append", "Finding", "Read", "Transaction", "check"]

Status = Literal["ok", "fail", "info"]


@dataclass(frozen=True)
class Append:
    key: int
    value: int


@dataclass(frozen=True)
class Read:
    key: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Transaction:
    operations: tuple[Append | Read, ...]
    status: Status = "ok"


@dataclass(frozen=True)
class Finding:
    """What a history shows, in one word, and where."""

    word: str
    where: str


@dataclass
class _Graph:
    """Edges between transactions, by their numbers."""

    edges: dict[str, dict[int, set[int]]] = field(
        default_factory=lambda: {kind: defaultdict(set) for kind in ("ww", "wr", "rw")}
    )

    def add(self, kind: str, first: int | None, second: int | None) -> None:
        if first is not None and second is not None and first != second:
            self.edges[kind][first].add(second)

    def after(self, *kinds: str) -> dict[int, set[int]]:
        together: dict[int, set[int]] = defaultdict(set)
        for kind in kinds:
            for first, seconds in self.edges[kind].items():
                together[first] |= seconds
        return together


def check(history: Iterable[Transaction], last: dict[int, tuple[int, ...]]) -> list[Finding]:
    """What the history shows; ``last`` has the lists of all keys at its end."""
    done = list(history)
    writers = {
        (one.key, one.value): number
        for number, transaction in enumerate(done)
        for one in transaction.operations
        if isinstance(one, Append)
    }
    found = [*_of_values(done, writers, last), *_of_reads(done, writers, last)]
    return [*found, *_of_cycles(_graph(done, writers, last), done)]


# -- values ----------------------------------------------------------------------------------------


def _of_values(
    done: list[Transaction],
    writers: dict[tuple[int, int], int],
    last: dict[int, tuple[int, ...]],
) -> Iterator[Finding]:
    for key, values in last.items():
        for value, times in Counter(values).items():
            writer = writers.get((key, value))
            if writer is None:
                yield Finding("garbage", f"{value} of list {key}")
            elif done[writer].status == "fail":
                yield Finding("aborted", f"{value} of list {key} is stored; {done[writer]} failed")
            if times > 1:
                yield Finding("doubled", f"{value} is {times} times in list {key}")
    there = {key: set(values) for key, values in last.items()}
    for (key, value), writer in writers.items():
        if done[writer].status == "ok" and value not in there.get(key, ()):
            yield Finding("lost", f"{value} of list {key}")


def _of_reads(
    done: list[Transaction],
    writers: dict[tuple[int, int], int],
    last: dict[int, tuple[int, ...]],
) -> Iterator[Finding]:
    intermediate = _intermediate(done)
    for number, transaction in enumerate(done):
        if transaction.status != "ok":
            continue
        yield from _internal(transaction)
        for read in _reads(transaction):
            values, order = read.values, last.get(read.key, ())
            if values != order[: len(values)]:
                yield Finding("orders", f"list {read.key} was read as {values}, and is {order}")
            for value in values:
                writer = writers.get((read.key, value))
                if writer is None:
                    yield Finding("garbage", f"{value} of list {read.key} was read")
                elif done[writer].status == "fail":
                    yield Finding("aborted", f"{value} of list {read.key} was read")
            ends = (read.key, values[-1]) if values else None
            if ends in intermediate and writers[ends] != number:
                yield Finding("intermediate", f"{values[-1]} of list {read.key} was read")


def _intermediate(done: list[Transaction]) -> set[tuple[int, int]]:
    """Values behind which the same transaction has appended another one."""
    found = set()
    for transaction in done:
        before: dict[int, int] = {}
        for one in transaction.operations:
            if isinstance(one, Append):
                if one.key in before:
                    found.add((one.key, before[one.key]))
                before[one.key] = one.value
    return found


def _internal(transaction: Transaction) -> Iterator[Finding]:
    known: dict[int, tuple[int, ...]] = {}
    own: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for one in transaction.operations:
        if isinstance(one, Append):
            own[one.key] += (one.value,)
            if one.key in known:
                known[one.key] += (one.value,)
            continue
        ends = one.values[-len(own[one.key]) :] if own[one.key] else ()
        if known.get(one.key, one.values) != one.values or ends != own[one.key]:
            yield Finding("internal", f"{transaction}")
        known[one.key] = one.values


def _reads(transaction: Transaction) -> Iterator[Read]:
    """What it has read of others: its reads of a list before its own first append to it."""
    own = set()
    for one in transaction.operations:
        if isinstance(one, Append):
            own.add(one.key)
        elif one.key not in own:
            yield one


# -- cycles ----------------------------------------------------------------------------------------


def _graph(
    done: list[Transaction],
    writers: dict[tuple[int, int], int],
    last: dict[int, tuple[int, ...]],
) -> _Graph:
    graph = _Graph()
    places = {}
    for key, values in last.items():
        for place, value in enumerate(values):
            places.setdefault((key, value), place)
        order = [writers.get((key, value)) for value in dict.fromkeys(values)]
        for first, second in pairwise(order):
            graph.add("ww", first, second)
    for number, transaction in enumerate(done):
        if transaction.status == "fail" or not _is_there(transaction, places):
            continue
        for read in _reads(transaction):
            order = last.get(read.key, ())
            place = places.get((read.key, read.values[-1]), -1) if read.values else -1
            if read.values:
                graph.add("wr", writers.get((read.key, read.values[-1])), number)
            if (not read.values or place >= 0) and place + 1 < len(order):
                graph.add("rw", number, writers.get((read.key, order[place + 1])))
    return graph


def _is_there(transaction: Transaction, places: dict[tuple[int, int], int]) -> bool:
    """One whose outcome is unknown is, if its appends are."""
    if transaction.status == "ok":
        return True
    own = [one for one in transaction.operations if isinstance(one, Append)]
    return any((one.key, one.value) in places for one in own)


def _of_cycles(graph: _Graph, done: list[Transaction]) -> Iterator[Finding]:
    written, flow = graph.after("ww"), graph.after("ww", "wr")
    for part in _components(written):
        yield Finding("G0", _shown(part, done))
    for part in _components(flow):
        if any(second in part for first in part for second in graph.edges["wr"][first]):
            yield Finding("G1c", _shown(part, done))
    everything = graph.after("ww", "wr", "rw")
    for part in _components(everything):
        words: dict[str, str] = {}
        for first in part:
            for second in graph.edges["rw"][first] & part:
                way = _path(flow, second, first, part)
                word = "G2" if way is None else "G-single"
                if word not in words:
                    back = way or _path(everything, second, first, part) or []
                    words[word] = _shown([first, *back], done)
        for word, where in words.items():
            yield Finding(word, where)


def _shown(numbers: Iterable[int], done: list[Transaction]) -> str:
    chosen = [*numbers][:6]
    return "; ".join(f"T{number} {done[number].operations}" for number in chosen)


def _path(after: dict[int, set[int]], start: int, end: int, inside: set[int]) -> list[int] | None:
    """The shortest way from one transaction to another, inside a component."""
    before: dict[int, int | None] = {start: None}
    waiting = [start]
    for number in waiting:
        if number == end:
            way: list[int] = []
            at: int | None = number
            while at is not None:
                way.append(at)
                at = before[at]
            return way[::-1]
        for second in after.get(number, ()):
            if second in inside and second not in before:
                before[second] = number
                waiting.append(second)
    return None


def _components(after: dict[int, set[int]]) -> Iterator[set[int]]:
    """Strongly connected components of two or more (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in [*after]:
        if root in index:
            continue
        index[root] = lowest[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(after.get(root, ())))]
        while work:
            number, following = work[-1]
            for second in following:
                if second not in index:
                    index[second] = lowest[second] = len(index)
                    stack.append(second)
                    on_stack.add(second)
                    work.append((second, iter(after.get(second, ()))))
                    break
                if second in on_stack:
                    lowest[number] = min(lowest[number], index[second])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[number])
                if lowest[number] == index[number]:
                    place = _place(stack, number)
                    part = {*stack[place:]}
                    del stack[place:]
                    on_stack -= part
                    if len(part) > 1:
                        yield part


def _place(stack: list[int], number: int) -> int:
    place = len(stack) - 1
    while stack[place] != number:
        place -= 1
    return place
