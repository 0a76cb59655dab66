"""An answer for pages that ask every few seconds whether their row has changed: for Flask.

A thread for each open page would be too many, so there are no streams::

    @app.get("/pages/<int:key>/change")
    def change(key: int) -> Response:
        return changed_since(SessionLocal, Page, key, authorize=None)
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from optilock.errors.base import extra
from optilock.live.rows import Authorize, read_allowed
from optilock.preconditions.entity_tags import PLAIN, ETags

with extra("flask"):
    from flask import Response, request

__all__ = ["changed_since"]


def changed_since(
    sessions: Any, model: type[Any], key: Any, *, authorize: Authorize, etags: ETags = PLAIN
) -> Response:
    """Return the data of an event as JSON, or 304 if the row is in the version of ``?seen=``.

    Args:
        sessions: a ``sessionmaker``.
        model: the mapped class.
        key: the primary key, as ``session.get()`` takes it.
        authorize: as for :meth:`optilock.live.Changes.stream`.
        etags: how tags are made, the same as for the pages.

    Raises:
        NotFound: there is no such row, or ``authorize`` has refused it (404).
        ConfigurationError: the class has no version.
    """
    with sessions() as session:
        row = read_allowed(session, model, key, authorize)
    tags = etags.of_row(sa.inspect(model), row.identity)
    headers = {"Cache-Control": "no-store"}
    if row.version in tags.named([request.args.get("seen", "")]):
        return Response(status=304, headers=headers)
    return Response(json.dumps(row.as_dict(tags)), headers=headers, mimetype="application/json")
