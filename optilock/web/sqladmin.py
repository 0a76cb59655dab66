"""sqladmin: an admin in which two people lose no edit of each other.

::

    from optilock.web.sqladmin import Admin, ModelView

    admin = Admin(app, engine, etags=ETags(keys=[SECRET]))

    class PageAdmin(ModelView, model=Page):
        column_list = ["id", "title"]

    admin.add_view(PageAdmin)

Only the import differs from sqladmin's own admin. A form has a hidden field with the values that
its reader has seen, signed for its row (:class:`~optilock.preconditions.EditForm`). Only the fields
that the reader has changed are written, and edits of different fields are merged. If both have
changed the same field, the answer is 409: the form again, with a table of mine, theirs, and what I
had seen. A form without the hidden field is refused (428), one of another row too (400).

A delete names the version that its page has shown, in the list (one row or several) and on the
page of a row. A row in another version is not deleted (409). If any row stays, the answer names
each one: deleted, in another version, refused by the database, or not tried after such an error.

The version is in no list, page, form or export, and neither are the attributes of
``__version_author__`` and ``__version_time__`` in a form: the program fills them in, for example in
``on_model_change``. Relationships to many rows are not in forms: their rows have versions of their
own, and a form that names one is refused. So is a class with a many-to-many relationship that
``form_excluded_columns`` does not name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import inspect

from optilock._mapped import HINT_ADD_TOKEN, facts
from optilock._watched.guard.installation import watch
from optilock.errors import BadPrecondition, ConfigurationError
from optilock.errors.base import extra
from optilock.preconditions.entity_tags import ETags
from optilock.preconditions.filled_forms import FilledForm
from optilock.preconditions.signed_values import read_seen

with extra("sqladmin"):
    import sqladmin
    from jinja2 import ChoiceLoader, PackageLoader
    from sqladmin.authentication import login_required
    from sqladmin.helpers import object_identifier_values
    from starlette.datastructures import URL
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response

from optilock.web.sqladmin_outcomes import Outcome
from optilock.web.sqladmin_views import SEEN, ModelView

__all__ = ["Admin", "ModelView"]


class Admin(sqladmin.Admin):
    """sqladmin's ``Admin``, for views of classes with a version."""

    def __init__(self, *args: Any, etags: ETags, **options: Any) -> None:
        """Make the admin; the arguments are those of ``sqladmin.Admin``.

        Args:
            etags: with keys, which sign what a form shows. A ``session_maker`` of your own has to
            be a watched one (:func:`optilock.watch`).
        """
        if not isinstance(etags, ETags) or not etags.keys:
            raise ConfigurationError(
                "Admin() needs etags=ETags(keys=[...]), with keys: they sign what a form shows."
            )
        self.etags = etags
        super().__init__(*args, **options)
        if not options.get("session_maker") and len(args) < 3:
            watch(self.session_maker)

    def init_templating_engine(self) -> Any:
        """Return sqladmin's templates, and those of this module after them."""
        templates = super().init_templating_engine()
        ours = PackageLoader("optilock", "web/templates")
        theirs = templates.env.loader
        assert theirs is not None
        templates.env.loader = ChoiceLoader([theirs, ours])
        return templates

    def add_model_view(self, view: type[sqladmin.ModelView]) -> None:
        """Add a view.

        Raises:
            ConfigurationError: the class has a version, and the view is sqladmin's own, which would
                overwrite the edits of others; or the class has none, and the view is ours.
        """
        known = facts(inspect(view.model))
        if known.guarded and not issubclass(view, ModelView):
            raise ConfigurationError(
                f"{view.__name__} edits {view.model.__name__}, which has a version: make it a"
                " subclass of optilock.web.sqladmin.ModelView, or its forms lose edits."
            )
        if issubclass(view, ModelView):
            if not known.token:
                raise ConfigurationError(
                    f"{view.__name__} edits {view.model.__name__}, whose rows have no version:"
                    f" {HINT_ADD_TOKEN}, or take sqladmin's own ModelView."
                )
            view.etags = self.etags
        super().add_model_view(view)

    async def create(self, request: Request) -> Response:
        """Answer as sqladmin does; a conflict about other rows with the form and 409."""
        outcome = request.state.optilock = Outcome()
        return _with_status(outcome, await super().create(request))

    async def edit(self, request: Request) -> Response:
        """Answer as sqladmin does; a conflict with 409, a form without its tag with 428."""
        outcome = request.state.optilock = Outcome()
        try:
            answer: Response = await super().edit(request)
        except HTTPException as error:
            if error.status_code != 404 or not await self._was_there(request, outcome):
                raise
        view: Any = self._find_model_view(request.path_params["identity"])
        if outcome.refused is not None:
            said = outcome.refused
            raise HTTPException(said.status, f"{said.detail} Nothing was saved.") from said
        if outcome.again is not None:
            return await self._page(request, 409, await view.conflict_page(request, outcome))
        return outcome.answer or _with_status(outcome, answer)

    async def _was_there(self, request: Request, outcome: Outcome) -> bool:
        """Return whether a form was sent for a row that is gone; it shows what was typed."""
        view = self._find_model_view(request.path_params["identity"])
        if request.method != "POST" or not isinstance(view, ModelView):
            return False
        sent = await request.form()
        identity = tuple(object_identifier_values(request.path_params["pk"], view.model))
        try:
            read_seen("edit", inspect(view.model), identity, sent.get(SEEN), self.etags)
        except BadPrecondition:
            return False
        values = {name: sent[name] for name in view.get_form_columns() if name in sent}
        outcome.again = FilledForm(values, deleted=True)
        return True

    async def _page(self, request: Request, status: int, context: dict[str, Any]) -> Response:
        page: Response = await self.templates.TemplateResponse(
            request, context.pop("template"), context, status_code=status
        )
        return page

    @login_required
    async def delete(self, request: Request) -> Response:
        """Delete the rows that are in the version of their tags; name each row if one stays."""
        view = self._find_model_view(request.path_params["identity"])
        if not isinstance(view, ModelView):
            plain: Response = await super().delete(request)
            return plain
        query = request.query_params
        pks, tags = query.getlist("pk"), query.getlist("tag")
        named = dict(zip(pks, tags, strict=True)) if len(pks) == len(tags) else {}
        # sqladmin's own list of keys, of a page without our script: a key may have a comma.
        pks = pks or [pk for pk in query.get("pks", "").split(",") if pk]
        outcome = request.state.optilock = Outcome(tags=named)
        await self._require_permission(view, request, pks)
        await view.delete_rows(request, [*dict.fromkeys(pks)])
        if outcome.kept:
            statuses = {one.status for one in outcome.kept}
            context = {"template": "versioned/kept.html", "model_view": view, "outcome": outcome}
            return await self._page(request, 409 if 409 in statuses else max(statuses), context)
        page = URL(str(request.url_for("admin:list", identity=view.identity)))
        shown = URL(request.headers.get("referer", ""))  # sqladmin's: the page of the list
        return PlainTextResponse(str(page.replace(query=shown.query)))

    async def _require_permission(
        self, view: ModelView, request: Request, pks: Iterable[str]
    ) -> None:
        """Refuse (403) as sqladmin does, whose own check takes a key apart at its commas."""
        may_delete = view.can_delete and view.is_accessible(request)
        for pk in pks if may_delete else ():
            request.path_params["pk"] = pk
            try:
                obj = await view.get_object_for_details(request)
            except (OverflowError, ValueError):  # no key of this class
                raise HTTPException(404) from None
            may_delete = obj is None or await view.check_can_delete(request, obj) is True
            if not may_delete:
                break
        if not may_delete:
            raise HTTPException(403)


def _with_status(outcome: Outcome, answer: Response) -> Response:
    """Return sqladmin's answer to a new row, which is 400 for every error."""
    if outcome.conflict:
        answer.status_code = 409
    return answer
