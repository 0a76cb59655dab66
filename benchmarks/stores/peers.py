"""Who is compared: one line for each subject, with what it needs.

A subject of optilock is a name and the options of ``unit_of_work``. An option that this version of
optilock does not know leaves its subject out. One that writes its rows another way is a class
beside ``Optilock`` whose name begins so, with ``rows`` of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from benchmarks.stores.rows import Store
from optilock import ConfigurationError, Isolation, unit_of_work
from optilock.resolvers import add_delta, per_field

__all__ = ["LOCKING", "PEERS", "Peer", "opened", "present"]

_OURS = "benchmarks.stores.by_sqlalchemy:Optilock"
_PLAIN = "benchmarks.stores.by_sqlalchemy:Plain"
_CORE = "benchmarks.stores.by_core:Core"
_DJANGO = "benchmarks.stores.by_django:Checked"
_PEEWEE = "benchmarks.stores.by_peewee:Peewee"
_POSTGRESQL = ("socket", "delayed", "far")
#: They begin with BEGIN, and what they then read locks a file of SQLite against other writers.
_SERVERS = (*_POSTGRESQL, "mariadb")
#: Two that add to one number have both added.
_ADDED = per_field(number=add_delta)


@dataclass(frozen=True)
class Peer:
    """A library, or one way to use it."""

    store: str
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What has to be installed.
    packages: tuple[str, ...] = ()
    #: Whether it is an object-relational mapper: those are what we are held against.
    orm: bool = True
    #: Whether two writers of a row are told of each other, so that nothing may be lost.
    safe: bool = True
    #: Whether there must be row locks, or a level SERIALIZABLE that is refused later: not SQLite.
    server: bool = False
    #: The places (``Place.name``) that it is for; without them, all.
    places: tuple[str, ...] = ()
    #: Of benchmarks that ask for it by name.
    apart: bool = False

    @property
    def own(self) -> bool:
        """Whether this is optilock."""
        return self.store.startswith(_OURS)


#: What locks the row that it reads.
LOCKING = "SELECT FOR UPDATE"

PEERS: Mapping[str, Peer] = {
    "optilock": Peer(_OURS),
    "optilock, optimistic": Peer(_OURS, {"strategy": "optimistic"}),
    "optilock, pessimistic": Peer(_OURS, {"strategy": "pessimistic"}),
    "optilock, pessimistic, pipelined": Peer(
        _OURS, {"strategy": "pessimistic", "pipelined": True}, places=_POSTGRESQL, apart=True
    ),
    "optilock, pipelined": Peer(_OURS, {"pipelined": True}, places=_POSTGRESQL),
    "optilock, commutative": Peer(f"{_OURS}Commuting", apart=True),
    "optilock, commutative, pipelined": Peer(
        f"{_OURS}Commuting", {"pipelined": True}, places=_POSTGRESQL, apart=True
    ),
    "optilock, verify_reads": Peer(_OURS, {"verify_reads": True}, apart=True),
    "optilock, REPEATABLE READ": Peer(_OURS, {"isolation": Isolation.REPEATABLE_READ}, apart=True),
    "optilock, SERIALIZABLE": Peer(_OURS, {"isolation": Isolation.SERIALIZABLE}, apart=True),
    "optilock, merged": Peer(_OURS, {"on_conflict": _ADDED, "strategy": "optimistic"}, apart=True),
    "optilock, at once": Peer(_OURS, {"at_once": True, "strategy": "optimistic"}, apart=True),
    LOCKING: Peer(_PLAIN, {"locks": True}, server=True),
    "native, retried": Peer(_PLAIN, {"family": "native"}),
    "native, retried at once": Peer(_PLAIN, {"family": "native", "at_once": True}),
    "SERIALIZABLE, retried": Peer(_PLAIN, {"isolation": "SERIALIZABLE"}, server=True),
    "REPEATABLE READ, retried": Peer(
        _PLAIN,
        {"isolation": "REPEATABLE READ"},
        safe=False,  # on MariaDB, where it writes over what its snapshot does not show
        server=True,
        apart=True,
    ),
    "unversioned": Peer(_PLAIN, safe=False),
    "Core, checked": Peer(_CORE, orm=False),
    "Core, at once": Peer(_CORE, {"at_once": True}, orm=False, apart=True),
    "hand-written": Peer("benchmarks.stores.by_driver:Driver", orm=False),
    "Django, filter(version)": Peer(_DJANGO, packages=("django",)),
    "Django, select_for_update": Peer(
        "benchmarks.stores.by_django:Locking", packages=("django",), server=True
    ),
    "django-concurrency": Peer(
        "benchmarks.stores.by_django:Concurrency", packages=("django", "concurrency")
    ),
    "peewee, checked": Peer(_PEEWEE, packages=("peewee",)),
    "Django, at once": Peer(
        _DJANGO, {"at_once": True}, packages=("django",), places=_SERVERS, apart=True
    ),
    "peewee, at once": Peer(
        _PEEWEE, {"at_once": True}, packages=("peewee",), places=_SERVERS, apart=True
    ),
}


def present(database: str, wanted: Collection[str] = (), among: Collection[str] = ()) -> list[str]:
    """The subjects that can run on this database (``Place.name``), and are wanted if any are.

    They are those that ``among`` names, or without it those that every benchmark has.
    """
    found = []
    for name, peer in PEERS.items():
        if name not in among if among else peer.apart:
            continue
        if (wanted and name not in wanted) or (peer.server and database == "sqlite"):
            continue
        if peer.places and database not in peer.places:
            continue
        if not all(map(_installed, peer.packages)):
            print(f"{name} is left out: pip install --group bench-peers", file=sys.stderr)
        elif not peer.own or _known(peer.options):
            found.append(name)
    return found


def opened(name: str, url: str) -> Store:
    """A connection of this subject."""
    peer = PEERS[name]
    store: Store = resolve_name(peer.store)(url, **peer.options)
    return store


def _installed(package: str) -> bool:
    return find_spec(package) is not None


def _known(options: Mapping[str, Any]) -> bool:
    """Whether ``unit_of_work`` takes these options."""
    options = {name: value for name, value in options.items() if name != "at_once"}
    try:
        unit_of_work(create_engine("postgresql+psycopg://"), **options)(_nothing)
    except (TypeError, ConfigurationError):
        return False
    return True


def _nothing(session: Session) -> None:
    pass
