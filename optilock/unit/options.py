"""The options of a unit of work: checked once, compared when units meet, turned into parts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, TypedDict, get_args

from sqlalchemy import Dialect

from optilock._watched.session.connections import binds_of_sessions, has_two_phases
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.exactly_once.keys import ExactlyOnce, check_once
from optilock.resolvers.resolution import DeletePolicies, OnConflict, check_on_delete
from optilock.resolvers.rules import check_on_conflict
from optilock.unit.isolation import (
    FirstReadPart,
    Isolation,
    LevelPart,
    ReadOnlyPart,
    VerifyReadsPart,
    level_of,
)
from optilock.unit.old_options import parts_of_join, rename_options
from optilock.unit.parts import Part
from optilock.unit.reading import LockingPart
from optilock.unit.retries import Policy
from optilock.unit.round_trips import Pipelined, PipelinedPart, check_pipelined
from optilock.unit.strategies import ADAPTIVE, OPTIMISTIC, PESSIMISTIC, Strategy, check_strategy

#: What a unit does inside a running one on the same sessions.
Propagation = Literal["join", "savepoint", "independent"]


class UnitOptionsWithoutIsolation(TypedDict, total=False):
    """The keywords of ``serializable`` and ``repeatable_read``."""

    attempts: int
    retry: Policy | None
    on_conflict: OnConflict
    on_delete: DeletePolicies
    strict: bool | None
    read_only: bool
    propagation: Propagation
    verify_reads: bool
    pipelined: Pipelined
    strategy: Strategy | None
    exactly_once: ExactlyOnce
    parts: Sequence[Part]
    name: str | None


class UnitOptions(UnitOptionsWithoutIsolation, total=False):
    """The keywords of :func:`optilock.unit_of_work`."""

    isolation: Isolation | str | None


#: Either True or False.
_SWITCHES = ("strict", "read_only", "verify_reads")

#: Options that a unit which joins cannot have if the outer unit does not have them.
_OF_THE_OUTERMOST = (
    "on_conflict",
    "on_delete",
    "strict",
    "isolation",
    "read_only",
    "verify_reads",
    "strategy",
    "parts",
)


@dataclass(frozen=True)
class Options:
    """How one unit of work should run."""

    on_conflict: OnConflict = None
    on_delete: DeletePolicies = None
    strict: bool | None = None
    isolation: Isolation | str | None = None
    read_only: bool = False
    propagation: Propagation = "join"
    verify_reads: bool = False
    #: ``"auto"``: where the server is far away (:mod:`optilock.unit.round_trips`).
    pipelined: Pipelined = False
    #: None: ``"adaptive"`` in an attempt of a retry, elsewhere ``"optimistic"``.
    strategy: Strategy | None = None
    #: True, or a key (:mod:`optilock.exactly_once`).
    exactly_once: ExactlyOnce = False
    #: Parts of the application's own.
    parts: Sequence[Part] = ()
    #: In events and telemetry; by default the name of the decorated function.
    name: str | None = None

    def __post_init__(self) -> None:
        self._check_values()
        self._check_parts()
        self._check_combinations()
        self._require_one_part_each()

    def _check_values(self) -> None:
        check_on_conflict(self.on_conflict)
        check_on_delete(self.on_delete)
        if self.strategy is not None:
            check_strategy(self.strategy)
        for name in _SWITCHES:
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "strict" and value is None):
                raise ConfigurationError(f"{name}={value!r} is neither True nor False.")
        check_pipelined(self.pipelined)
        if self.propagation not in get_args(Propagation):
            raise ConfigurationError(
                f'propagation={self.propagation!r} is no choice: write "savepoint" or'
                ' "independent", or omit it, and the unit joins a running one.'
            )
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise ConfigurationError(
                f"name={self.name!r} names no unit: write one text for all units of a kind, such as"
                ' name="transfer", without keys or values of rows.'
            )
        object.__setattr__(self, "isolation", level_of(self.isolation))

    def _check_parts(self) -> None:
        for part in self.parts:
            if not isinstance(part, Part):
                raise ConfigurationError(
                    f"parts=[...] has {part!r}, which is no part: write a subclass of"
                    " optilock.unit.Part, and give an object of it."
                )

    def _check_combinations(self) -> None:
        if self.verify_reads and self.read_only:
            raise ConfigurationError(
                "verify_reads=True locks the rows that were read, which a read_only=True"
                " transaction cannot do: for one picture of the data that needs no check, use"
                " repeatable_read(sessions, read_only=True)."
            )
        if self.strategy == PESSIMISTIC and (self.read_only or self.verify_reads):
            other = "read_only" if self.read_only else "verify_reads"
            raise ConfigurationError(
                f'strategy="pessimistic" locks each row that it reads, and {other}=True is for rows'
                " that are only read: use one of them."
            )
        if self.exactly_once and self.read_only:
            raise ConfigurationError(
                "exactly_once= stores a token with COMMIT, which a read_only=True transaction"
                " cannot do, and such a unit has nothing to store: leave exactly_once= out."
            )

    def _require_one_part_each(self) -> None:
        named = [part.option for part in self.all_parts if part.option]
        if len(named) != len({*named}):
            raise ConfigurationError(
                f"two parts of this unit are for one option ({', '.join(sorted(named))}): leave the"
                " keyword or one of parts=[...] out."
            )

    def opened(self, sessions: Any) -> None:
        """Check the options against the sessions of a unit, before anything is sent.

        Raises:
            ConfigurationError: an option cannot work with them.
        """
        for part in self.all_parts:
            part.opened(sessions)
        if (self.read_only or self.exactly_once) and has_two_phases(sessions):
            for bind in binds_of_sessions(sessions):
                self._refuse_two_phases(bind.dialect)

    def _refuse_two_phases(self, dialect: Dialect) -> None:
        for name in sorted(database_of(dialect).isolation.forbidden_in_two_phases):
            if getattr(self, name):
                raise ConfigurationError(
                    f"{name}= does not go with a sessionmaker with twophase=True: a transaction in"
                    f" two phases cannot have it on {dialect.name}. Leave one of them out."
                    " Nothing was sent."
                )

    @cached_property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts of these options, in the order in which they are called."""
        parts: list[Part] = []
        if self.pipelined:  # first: the others send queries
            parts.append(PipelinedPart(self.pipelined))
        last: tuple[Part, ...] = ()
        if self.isolation is not None:
            level = LevelPart(level_of(self.isolation), read_only=self.read_only)
            parts.append(level)
            last = (FirstReadPart(level),)
        if self.read_only:
            parts.append(ReadOnlyPart())
        if self.verify_reads:
            parts.append(VerifyReadsPart())
        if self.strategy is not None and self.locks:
            parts.append(LockingPart(self.strategy))
        return (*parts, *self.parts, *last)

    @cached_property
    def chooses_engines(self) -> bool:
        """True if a part has execution options for its engines."""
        return any(type(part).engine_options is not Part.engine_options for part in self.all_parts)

    @property
    def locks(self) -> bool:
        """True if reads may lock, as they do not in a unit that only reads."""
        named = self.strategy not in (None, OPTIMISTIC)
        return named and not (self.read_only or self.verify_reads)

    @cached_property
    def of_attempts(self) -> Options:
        """The options of a unit that is run again after a conflict."""
        return self if self.strategy is not None else replace(self, strategy=ADAPTIVE)

    def require_room_in(self, outer: Options) -> None:
        """Refuse an inner unit with options that the running outer unit does not have.

        Raises:
            ConfigurationError: an option is given and differs.
        """
        for name in _OF_THE_OUTERMOST:
            wanted, has = getattr(self, name), getattr(outer, name)
            if name == "parts":
                wanted, has = parts_of_join(wanted, has)
            if wanted and wanted != has and wanted != OPTIMISTIC:
                raise ConfigurationError(
                    f"this unit of work joins one that has already begun with {name}={has!r}, so"
                    f" it cannot have {name}={wanted!r}: give the option to the outer unit, or"
                    ' propagation="independent" to this one, which then commits on its own.'
                )


_NONE = Options()


def options_from(given: Mapping[str, Any]) -> tuple[Policy | None, Options]:
    """Return a retry's policy, if one of its options is given, and the options of the unit.

    Raises:
        ConfigurationError: there is no such option, or its value cannot work.
    """
    if not given:
        return None, _NONE
    about_unit = rename_options(given)
    if unknown := about_unit.keys() - _KNOWN.keys():
        raise ConfigurationError(
            f"unit_of_work() has no option {min(unknown)!r}; it has {', '.join(_KNOWN)}."
        )
    policy = _policy_of(about_unit)
    return policy, _of_unit(about_unit)


def _policy_of(given: dict[str, Any]) -> Policy | None:
    """Take the options of a repetition from those that are given."""
    has_attempts, attempts = "attempts" in given, given.pop("attempts", 0)
    policy = given.pop("retry", None)
    if policy is None:
        return Policy(attempts=attempts, given="attempts") if has_attempts else None
    if has_attempts:
        raise ConfigurationError(
            "attempts= and retry= are both given: write retry=retrying(attempts=...)."
        )
    if not isinstance(policy, Policy):
        raise ConfigurationError(
            f"retry={policy!r} is no rule of repetition: write retry=retrying(attempts=5,"
            " deadline=2.0), with optilock.retrying."
        )
    return replace(policy, given="retry")


def _of_unit(given: dict[str, Any]) -> Options:
    if "exactly_once" in given:
        check_once(given["exactly_once"])
    elif _PLAIN.issuperset(map(type, given.values())):
        return _checked(tuple(given.items()))
    return Options(**given)


#: Types whose equal values of one option are the same; True would also equal 1.
_PLAIN = frozenset({bool, str, type(None)})


@lru_cache(maxsize=64)
def _checked(given: tuple[tuple[str, Any], ...]) -> Options:
    """Return the options of the units of one ``with`` line, which are checked once."""
    return Options(**dict(given))


def named_after(options: Options, function: Any) -> Options:
    """Return the options with the function's name, if they have none; the parts are the same."""
    name = getattr(function, "__name__", None)
    if options.name is not None or not isinstance(name, str):
        return options
    named = copy.copy(options)
    object.__setattr__(named, "name", name)
    return named


def spelled_out(*, sessions: Any) -> inspect.Signature:
    """Return the signature of a unit, for ``help()`` and editors, which see ``**options`` only."""
    kind = inspect.Parameter
    first = kind("sessions", kind.POSITIONAL_OR_KEYWORD, annotation=sessions)
    of_unit = [
        kind(one.name, kind.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in fields(Options)
    ]
    of_retry = [
        kind("attempts", kind.KEYWORD_ONLY, default=5, annotation="int"),
        kind("retry", kind.KEYWORD_ONLY, default=None, annotation="Policy | None"),
    ]
    return inspect.Signature([first, *of_unit, *of_retry])


_KNOWN = dict.fromkeys(["attempts", "retry", *(field.name for field in fields(Options))])
