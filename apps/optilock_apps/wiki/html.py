"""A template as an answer. Everything that is put into one is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from optilock_apps.wiki.conflict import fold_equal
from optilock_apps.wiki.editing import Editing
from optilock_apps.wiki.pages import FIRST_PAGES

__all__ = ["show"]

_environment = Environment(
    loader=PackageLoader("optilock_apps.wiki"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters["fold_equal"] = fold_equal
_environment.globals |= {"credit": FIRST_PAGES, "wrong": None, "editing": Editing(), "places": []}


def show(
    template: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return the template with these values. Browsers ask again before they show it again.

    No proxy keeps it (``private``): the form of an editor has the id of the lease.
    """
    html = _environment.get_template(template).render(values)
    return HTMLResponse(html, status, {"Cache-Control": "private, no-cache", **(headers or {})})
