"""A form of a row with its child rows: an order with its lines.

::

    order_form = FormWithLines(
        EditForm(Order, ["customer"], etags=tags),
        EditForm(Line, ["position", "product", "count"], etags=tags),
        parent="order_id",
    )
    filled = order_form.of(session, 7)                  # filled.form, filled.lines
    again = order_form.save(session, 7, request.form)   # None: stored; or the form to show again

A line is a row of its own, with its own version and its own ``seen``. So added, removed, changed
and reordered lines of two users are merged as rows are. All of a form is stored, or nothing.

A new line gets its key when its page is shown. If the same form comes twice, as after a double
click, its line is added once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import exc, inspect
from sqlalchemy.orm import Mapper, Session, scoped_session

from optilock._columns.identities import identity_given
from optilock._mapped import Identity, facts
from optilock._watched.session.connections import given_session
from optilock.errors import BadEntity, BadPrecondition, ConfigurationError, NotFound
from optilock.preconditions.client_merges import read_signed
from optilock.preconditions.edits import mapper_to_edit
from optilock.preconditions.filled_forms import FilledForm
from optilock.preconditions.form_fields import Raw, read_new, read_returned
from optilock.preconditions.forms import EditForm

T = TypeVar("T")

#: A line of a request: its key and its fields.
_Sent = tuple[str, dict[str, list[Any]]]


@dataclass(frozen=True)
class Line:
    """One line of a form."""

    key: str
    form: FilledForm
    prefix: str
    #: The line is not stored yet.
    is_new: bool = False
    #: Its user wants to remove it.
    removed: bool = False
    #: The reason to look at it, in plain English; or "".
    sentence: str = ""

    def name(self, field: str) -> str:
        """Return the name of a field: an attribute, ``seen`` or ``remove``."""
        return f"{self.prefix}-{self.key}-{field}"


@dataclass(frozen=True)
class FilledLines:
    """The contents of a form with its lines."""

    form: FilledForm
    lines: list[Line]
    #: The HTTP status to answer with: 409 after a conflict, 400 for a text that cannot be read.
    status: int = 200

    @property
    def sentence(self) -> str:
        """The reason for showing the form again, in plain English."""
        said = ["Nothing is saved yet, and nothing is lost.", *self.form.sentences.values()]
        for line in self.lines:
            said += [line.sentence] if line.sentence else line.form.sentences.values()
        return " ".join(said)


class FormWithLines(Generic[T]):
    """A form for a row and its child rows, which merges the edits that it receives."""

    def __init__(
        self, form: EditForm[Any], line: EditForm[T], *, parent: str, prefix: str = "lines"
    ) -> None:
        """Make a form that can be kept as long as the program runs.

        Args:
            form: of the row.
            line: of its child rows. Their primary key is one ``Uuid``, or its text.
            parent: the attribute of a child row that has the key of the row.
            prefix: of the names of the fields: ``lines-KEY-product``.

        Raises:
            ConfigurationError: the primary key of a child row cannot be made before its INSERT.
        """
        self.form, self.line, self.parent, self.prefix = form, line, parent, prefix
        [column, *more] = inspect(line.model).primary_key
        if more or not isinstance(column.type, (sa.String, sa.Uuid)):
            raise ConfigurationError(
                f"FormWithLines({line.model.__name__}): the primary key of a line has to be one"
                " column of the type Uuid or String. So a form that comes twice adds a line once."
            )

    def of(self, session: Session, pk: Any, *, new: int = 1) -> FilledLines:
        """Return the form of a stored row, with its lines and ``new`` empty ones.

        Raises:
            NotFound: the row is missing.
        """
        key = identity_given("FormWithLines.of", inspect(self.form.model), pk)
        row = session.get(self.form.model, key)
        if row is None:
            raise NotFound(self.form.model, key)
        lines = [*self._stored(session, key), *(self._empty() for _ in range(new))]
        return FilledLines(self.form.of(row), lines)

    def save(
        self,
        session: Session | scoped_session[Any],
        pk: Any,
        sent: Any,
        *,
        errors: Mapping[str, str] = MappingProxyType({}),
    ) -> FilledLines | None:
        """Write what was edited; return the form to show again if nothing of it was saved.

        The session is flushed, and the COMMIT is left to the caller. All is written inside a
        savepoint. The returned form has the lines that another user has added, too. Arguments and
        errors are those of :meth:`EditForm.save`, and a ``ConcurrencyError`` if a row has moved
        between the merge and the write.
        """
        session = given_session(session, "FormWithLines.save", "await session.run_sync(...)")
        key = identity_given("FormWithLines.save", inspect(self.form.model), pk)
        mapper = mapper_to_edit(session, self.line.model, "FormWithLines.save")
        sent_lines = [*self._sent(sent)]
        found: dict[str, Line | None] = {}
        with session.begin_nested() as savepoint:
            again = self.form.save(session, pk, sent, errors=errors)
            if again is None or not again.deleted:
                for name, raw in sent_lines:
                    found[name] = self._save_line(session, mapper, key, name, raw)
            if again is None and not any(found.values()):
                return None
            savepoint.rollback()
        if again is None:
            again = _as_sent(self.form, session, pk, sent)
        lines = [found.get(name) or self._as_sent(session, name, raw) for name, raw in sent_lines]
        shown = {name for name, _ in sent_lines}
        others = [one for one in self._stored(session, key) if one.key not in shown]
        lines = [one for one in lines if one.is_new or not one.form.deleted] + others
        is_bad = bool(again.errors or any(one.form.errors for one in lines))
        return FilledLines(again, lines, 400 if is_bad else max(409, again.status))

    def _sent(self, sent: Any) -> Iterator[_Sent]:
        """Yield the lines of a request that are no empty ones."""
        pattern = re.compile(rf"{re.escape(self.prefix)}-([\w-]{{1,64}})-(\w+)", re.A)
        found: dict[str, dict[str, list[Any]]] = {}
        for name, values in Raw(sent).lists.items():
            if match := pattern.fullmatch(name):
                found.setdefault(match[1], {})[match[2]] = values
        for key, raw in found.items():
            if raw.get("seen") not in ([""], None) or any(
                text for name in self.line.names for text in raw.get(name, ())
            ):
                yield key, raw

    def _save_line(
        self, session: Session, mapper: Mapper[Any], parent: Identity, key: str, raw: Any
    ) -> Line | None:
        """Write a line; return it if it needs a look."""
        try:
            identity, seen = read_signed(
                session, mapper, key, Raw(raw).seen or None, self.line.etags
            )
        except NotFound as error:
            raise BadEntity(f"No line can have the key {key!r}. Nothing was written.") from error
        except BadPrecondition as error:
            if error.status == 428:
                return self._add(session, mapper, parent, key, raw)
            return self._line(key, self._saved(session, parent, key, raw), raw)
        done = read_returned(self.line.fields, seen, Raw(raw))
        if "remove" in raw:
            obj = self._owned(session, identity, parent)
            if obj is None:
                return None
            if getattr(obj, facts(mapper).token) != seen.version:
                stored = self._line(key, self.line.of(obj), raw)
                return replace(stored, sentence="Another user has changed a line that you remove.")
            session.delete(obj)
            session.flush()
            return None
        if not (done.changes or done.errors or done.unknown):
            return None
        again = self._saved(session, parent, key, raw)
        if again is None or not again.deleted:
            return None if again is None else self._line(key, again, raw)
        form = replace(again, deleted=False, seen="")
        told = "Another user has removed a line that you change: save it to add it again."
        return Line(key, form, self.prefix, is_new=True, sentence=told)

    def _add(
        self, session: Session, mapper: Mapper[Any], parent: Identity, key: str, raw: Any
    ) -> Line | None:
        """Add a line, unless it is stored already."""
        if "remove" in raw:
            return None
        [value] = identity = identity_given("FormWithLines.save", mapper, key)
        done = read_new(self.line.fields, Raw(raw))
        if self._owned(session, identity, parent) is None and not done.errors:
            name = mapper.get_property_by_column(mapper.primary_key[0]).key
            try:
                with session.begin_nested():
                    keys = {name: value, self.parent: parent[0]}
                    session.add(self.line.model(**done.changes, **keys))
            except exc.IntegrityError:  # the same form, sent twice in one moment
                if self._owned(session, identity, parent) is None:
                    raise
            else:
                return None
        again = self._saved(session, parent, key, raw)
        if again.deleted:
            again = replace(again, deleted=False, errors=done.errors, status=400)
            return Line(key, again, self.prefix, is_new=True)
        return self._line(key, again, raw) if again.sentences else None

    def _saved(self, session: Session, parent: Identity, key: str, raw: Any) -> Any:
        self._owned(session, identity_given("", inspect(self.line.model), key), parent)
        return self.line.save(session, key, {**raw, "seen": raw.get("seen") or [None]})

    def _owned(self, session: Session, identity: Identity, parent: Identity) -> T | None:
        """Return a stored line of this row.

        Raises:
            BadEntity: it is a line of another one.
        """
        obj = session.get(self.line.model, identity)
        if obj is not None and getattr(obj, self.parent) != parent[0]:
            raise BadEntity("A line of the form belongs to another row. Nothing was written.")
        return obj

    def _stored(self, session: Session, parent: Identity) -> Iterator[Line]:
        model = self.line.model
        rows = session.scalars(
            sa.select(model)
            .where(getattr(model, self.parent) == parent[0])
            .order_by(*(getattr(model, name) for name in self.line.names[:1]))
        )
        for one in rows:
            yield Line(str(inspect(one).identity[0]), self.line.of(one), self.prefix)

    def _empty(self) -> Line:
        form = FilledForm(dict.fromkeys(self.line.names), fields=self.line.fields)
        return Line(str(uuid4()), form, self.prefix, is_new=True)

    def _as_sent(self, session: Session, key: str, raw: Any) -> Line:
        """Return a line as it was sent; one that was not stored before is a new line."""
        line = self._line(key, _as_sent(self.line, session, key, raw), raw)
        is_new = line.form.deleted and not line.removed and not Raw(raw).seen
        form = replace(line.form, deleted=False, errors={}) if is_new else line.form
        return replace(line, form=form, is_new=is_new)

    def _line(self, key: str, form: FilledForm, raw: Any) -> Line:
        return Line(key, form, self.prefix, removed="remove" in raw)


def _as_sent(form: EditForm[Any], session: Session, pk: Any, sent: Any) -> FilledForm:
    """Return a form as it was sent; nothing of it is stored."""
    found = form.save(session, pk, sent, errors={"": ""})
    assert found is not None
    return replace(found, errors={name: one for name, one in found.errors.items() if name})
