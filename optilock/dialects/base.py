"""A database as the list of its features, each with a class for its answers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from optilock.dialects.catalogue import Catalogue
from optilock.dialects.change_notices import ChangeNotices
from optilock.dialects.commit_tokens import CommitTokens
from optilock.dialects.ends import Ends
from optilock.dialects.forms import Forms
from optilock.dialects.isolation import IsolationLevels
from optilock.dialects.keys import RowKeys
from optilock.dialects.locks import RowLocks
from optilock.dialects.migrations import GuardTriggers, Ways
from optilock.dialects.one_row import OneRow
from optilock.dialects.refusals import Refusals
from optilock.dialects.scope_rows import ScopeRows
from optilock.dialects.scope_triggers import ScopeTriggers
from optilock.dialects.servers import Servers
from optilock.dialects.tables import Tables
from optilock.dialects.trips import Trips
from optilock.dialects.values import Values
from optilock.dialects.waits import Waits
from optilock.dialects.watching import Watching
from optilock.errors import ConfigurationError

if TYPE_CHECKING:
    from optilock.dialects.queue_sql import Messages, Place


class Database(Refusals):
    """A database that optilock knows nothing special about.

    It has the class of each feature; an engine's has its own where it answers differently.
    """

    #: SQLAlchemy dialect names this class answers for.
    names: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        """Refuse an attribute that optilock does not ask an engine for: it would be ignored.

        Raises:
            ConfigurationError: it is a question of a feature, or of none.
        """
        super().__init_subclass__()
        ours = [one for one in cls.__mro__ if one.__module__.startswith(f"{__package__}.")]
        known = {name for one in ours for name in vars(one)}
        for name in dir(cls):
            if name[0] != "_" and name not in known:
                raise ConfigurationError(
                    f"{cls.__name__}.{name} would be ignored: {_place_of(name)} The name of a"
                    " helper of your own begins with an underscore."
                )

    # -- rows (asked by optilock._watched, entities, leases and shares) ----------------------------

    locks = cached_property(RowLocks)
    waits = cached_property(Waits)
    keys = cached_property(RowKeys)
    forms = cached_property(Forms)
    one_row = cached_property(OneRow)
    values = cached_property(Values)

    # -- transactions and servers (asked by optilock.unit and by sessions) -------------------------

    isolation = cached_property(IsolationLevels)
    ends = cached_property(Ends)
    trips = cached_property(Trips)
    servers = cached_property(Servers)
    #: Asked by optilock.testing.
    watching = cached_property(Watching)

    # -- the rows of optilock's own tables ---------------------------------------------------------

    commit_tokens = cached_property(CommitTokens)
    scope_rows = cached_property(ScopeRows)

    def messages(self, place: Place) -> Messages:
        """The statements of a queue.

        Raises:
            ConfigurationError: none are known.
        """
        raise ConfigurationError(
            "A queue works on PostgreSQL, MariaDB and SQLite: optilock knows of no statements for"
            " this database."
        )

    # -- tables (asked by optilock.check, rollout and alembic) -------------------------------------

    tables = cached_property(Tables)
    catalogue: type[Catalogue] = Catalogue
    guard_triggers: type[GuardTriggers] = GuardTriggers
    scope_triggers: type[ScopeTriggers] = ScopeTriggers
    change_notices: type[ChangeNotices] = ChangeNotices
    rollout: type[Ways] = Ways


def _place_of(question: str) -> str:
    """Return where a question belongs, for the author of an engine."""
    kinds = {name: getattr(one, "func", one) for name, one in vars(Database).items()}
    features = {name: one for name, one in kinds.items() if isinstance(one, type)}
    for name, kind in features.items():
        if hasattr(kind, question):
            return (
                f"write it in a subclass of {kind.__module__}.{kind.__name__}, and set {name} to"
                " that class, as Database does."
            )
    return f"no feature has this question; Database lists them ({', '.join(features)})."


class _Promised(IsolationLevels):
    """The levels that an engine known by its codes promises."""

    database: KnownByCodes

    def level_options(self, level: str) -> dict[str, Any]:
        """Or transactions would run at something that has the level's name and keeps less."""
        levels, name = self.database.levels, self.database.names[0]
        if level in levels:
            return super().level_options(level)
        kept = " or ".join(f"Isolation.{one.replace(' ', '_')}" for one in levels)
        raise ConfigurationError(
            f"optilock knows {name} by the codes of its errors alone, and cannot promise"
            f" {level} there: {f'write isolation={kept}, or ' if kept else ''}leave isolation= out,"
            " and give the rows versions. verify() checks what was only read."
        )


class KnownByCodes(Database):
    """An engine known by its error codes: features that were not tested raise an error."""

    #: Levels of isolation that the engine keeps as the SQL standard, and optilock, mean them.
    levels: tuple[str, ...] = ("READ COMMITTED",)

    isolation = cached_property(_Promised)
