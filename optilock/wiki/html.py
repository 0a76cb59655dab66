"""A template as an answer. Everything that is put into one is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, StrictUndefined

from optilock.wiki.pages import CREDIT

__all__ = ["show"]

_environment = Environment(
    loader=PackageLoader("optilock.wiki"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["credit"] = CREDIT
_templates = Jinja2Templates(env=_environment)


def show(
    request: Request,
    template: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> Response:
    """The template with these values. Browsers ask again before they show it a second time."""
    fields = {"Cache-Control": "no-cache", **(headers or {})}
    return _templates.TemplateResponse(
        request, template, {"wrong": None, **values}, status_code=status, headers=fields
    )
