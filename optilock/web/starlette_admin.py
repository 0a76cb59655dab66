"""starlette-admin: a form of its admin carries the version that it shows.

::

    from starlette_admin.contrib.sqla import Admin
    from optilock.web.starlette_admin import ModelView

    admin = Admin(watch(sessionmaker(engine)))
    admin.add_view(ModelView(Page))

A form of a row in another version is not saved. It comes back with what was typed, and with the
stored value at each field that differs; saved again, it replaces these values. A form without a
version is 428. Deletes, actions and imports of the admin carry no version.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect
from starlette.exceptions import HTTPException
from starlette.requests import Request

from optilock import expect
from optilock._mapped import facts
from optilock.errors import BadPrecondition, ConcurrencyError
from optilock.errors.base import extra
from optilock.preconditions.entity_tags import PLAIN, tag_of_entry
from optilock.preconditions.form_fields import shortened_text

with extra("starlette-admin"):
    from sqlalchemy.ext.asyncio import AsyncSession
    from starlette_admin.contrib.sqla import ModelView as _ModelView
    from starlette_admin.exceptions import FormValidationError
    from starlette_admin.fields import StringField

__all__ = ["ModelView"]

#: The hidden field of a form.
TAG = "optilock_tag"


class ModelView(_ModelView):
    """A view of starlette-admin that loses no edit of a versioned class."""

    def __init__(self, model: type[Any], *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        hidden = StringField(
            TAG,
            label="",
            input_type="hidden",
            read_only=True,  # starlette-admin writes it to no object
            exclude_from_list=True,
            exclude_from_detail=True,
            exclude_from_create=True,
            getter=lambda request, obj: PLAIN.of_values_read(obj),
        )
        self.fields = [*self.fields, hidden]
        token = facts(inspect(model)).token
        for field in self.fields:
            if field.name == token:  # which optilock alone moves
                field.exclude_from_create = field.exclude_from_edit = True

    async def edit(self, request: Request, pk: Any, data: dict[str, Any]) -> Any:
        """Save a form in the version that it shows."""
        sent = {name: value for name, value in data.items() if name != TAG}
        tag = (await request.form()).get(TAG) or None
        session, obj = request.state.session, await self.find_by_pk(request, pk)
        if obj is None:
            raise HTTPException(404)
        try:
            if isinstance(session, AsyncSession):
                await session.run_sync(lambda _: expect(obj, tag))
            else:
                expect(obj, tag)
            return await super().edit(request, pk, sent)
        except BadPrecondition as error:
            raise HTTPException(error.status, error.detail) from error
        except ConcurrencyError as error:
            if len(error.entries) != 1 or error.entries[0].database is None:
                raise HTTPException(409, "Another user has deleted or changed it.") from error
            [entry] = error.entries
            data[TAG] = tag_of_entry(entry)
            raise FormValidationError(_told(entry.database, sent)) from error


def _told(stored: Any, sent: dict[str, Any]) -> dict[str | int, Any]:
    """Return a sentence for each field whose stored value is another one."""
    found: dict[str | int, Any] = {
        name: f"Another user has changed it: it is stored as “{shortened_text(str(stored[name]))}”."
        for name, value in sent.items()
        if name in stored and str(stored[name]) != str(value)
    }
    return found or {next(iter(sent), TAG): "Another user has saved it: save again to go on."}
