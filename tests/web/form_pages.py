"""A form with a field of each kind, behind four frameworks: what is stored, and what is told.

``texts`` of a column are those of its field: as stored, after a change by its reader, and after one
of another user.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from html import escape
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import UnitOfWork, Versioned, watch
from optilock.preconditions import EditForm, FilledForm, Range
from optilock.preconditions.entity_tags import ETags

__all__ = ["COLUMNS", "FORM", "SERVED", "Kind", "Row", "page_of", "save", "sessions_of"]


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"
    GREEN = "g"


@dataclass(frozen=True)
class Kind:
    """A column and its field; the values are: stored, mine, theirs."""

    column: Any
    values: tuple[Any, Any, Any]
    texts: tuple[Any, Any, Any]
    html: str = "text"
    kind: Any = None
    #: The value of an emptied field; ``...`` stands for a refusal.
    empty: Any = None


def comma(value: Any) -> str:
    return "" if value is None else str(value).replace(".", ",")


def of_comma(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", ".")) if text.strip() else None
    except ArithmeticError:
        raise ValueError(f"“{text}” is no price.") from None


def moment(hour: int, micro: int = 0) -> datetime:
    return datetime(2024, 5, 1, hour, 30, 15 if micro else 0, micro)


M, D = moment, Decimal
COLUMNS: dict[str, Kind] = {
    "line": Kind(sa.Text, ("one\ntwo", "mine", "theirs"), ("one\ntwo", "mine", "theirs"), empty=""),
    "area": Kind(
        sa.Text,
        ("\n a\r\nb\x0bé😀", "mine\r\nmore", "theirs"),
        ("\n a\r\nb\x0bé😀", "mine\nmore", "theirs"),
        "textarea",
        "textarea",
        "",
    ),
    "missing": Kind(sa.Text, (None, "mine", "theirs"), ("", "mine", "theirs")),
    "mail": Kind(
        sa.Text, (" a@b.c ", "x@y.z", "t@h.e"), (" a@b.c ", "x@y.z", "t@h.e"), "email", "email", ""
    ),
    "link": Kind(
        sa.Text, (" http://x ", "http://y", "http://z"), (" http://x ", "http://y", "http://z"),
        "url", "url", "",
    ),
    "paint": Kind(
        sa.String(20), ("#ABCDEF", "#00ff00", "#0000ff"), ("#ABCDEF", "#00ff00", "#0000ff"),
        "color", "color", ...,
    ),
    "whole": Kind(sa.Integer, (-5, 7, 9), ("-5", "7", "9"), "number"),
    "money": Kind(
        sa.Numeric(12, 2), (D("1234567.50"), D("2.25"), D("3.00")),
        ("1234567.50", "2.25", "3"), "number",
    ),
    "ratio": Kind(sa.Double, (1e-7, 0.5, 0.25), ("1e-07", "0.5", "0.25"), "number"),
    "level": Kind(sa.Integer, (150, 40, 60), ("150", "40", "60"), "range", Range(), ...),
    "day": Kind(
        sa.Date, (date(987, 5, 1), date(2024, 5, 2), date(2025, 1, 1)),
        ("0987-05-01", "2024-05-02", "2025-01-01"), "date",
    ),
    "clock": Kind(
        sa.Time, (time(10, 30, 15, 123456), time(11, 0), time(12, 0)),
        ("10:30:15.123", "11:00", "12:00"), "time",
    ),
    "moment": Kind(
        sa.DateTime, (M(10, 123456), M(11), M(12)),
        ("2024-05-01T10:30:15.123", "2024-05-01T11:30", "2024-05-01T12:30"), "datetime-local",
    ),
    "instant": Kind(
        sa.DateTime(timezone=True), (M(10, 123456), M(11), M(12)),
        ("2024-05-01T12:30:15.123", "2024-05-01T13:30", "2024-05-01T14:30"), "datetime-local",
    ),
    "flag": Kind(
        sa.Boolean, (True, False, None), ("true", "false", ""), "checkbox", "checkbox", ...
    ),
    "answer": Kind(sa.Boolean, (None, True, False), ("", "true", "false"), "select"),
    "colour": Kind(
        sa.Enum(Colour), (Colour.RED, Colour.BLUE, Colour.GREEN), ("RED", "BLUE", "GREEN"), "select"
    ),
    "ident": Kind(
        sa.Uuid, (UUID(int=1), UUID(int=2), UUID(int=3)), tuple(str(UUID(int=n)) for n in (1, 2, 3))
    ),
    "tags": Kind(
        sa.JSON, (["a", "b"], ["b", "c"], ["d"]), (["a", "b"], ["b", "c"], ["d"]),
        "multiple", "multiple", [],
    ),
    "price": Kind(sa.Numeric(8, 2), (D("1.50"), D("2.75"), D("9.00")), ("1,50", "2,75", "9")),
}  # fmt: skip


class Base(DeclarativeBase):
    pass


class Row(Versioned, Base):
    __tablename__ = "rows_of_form_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(default="old")
    other: Mapped[str] = mapped_column(default="old")
    for _name, _kind in COLUMNS.items():
        locals()[_name] = mapped_column(_kind.column, nullable=True)
    del _name, _kind


FORM = EditForm(
    Row,
    ["title", "other", *COLUMNS],
    etags=ETags(keys=["at least 16 bytes, the same in all processes"]),
    kinds={name: one.kind for name, one in COLUMNS.items() if one.kind is not None},
    readers={"price": (comma, of_comma)},
    zone=ZoneInfo("Europe/Berlin"),
)


def sessions_of(engine: sa.Engine) -> sessionmaker[Session]:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return watch(sessionmaker(engine))


def as_stored(name: str, at: int) -> Any:
    """Return the value as the session gives it: a moment with a zone has one on PostgreSQL."""
    return COLUMNS[name].values[at]


def as_written(name: str, at: int) -> Any:
    value = COLUMNS[name].values[at]
    return value.replace(tzinfo=UTC) if name == "instant" else value


def field(name: str, form: FilledForm) -> str:
    """Return the HTML of a field, as a template writes it."""
    kind, text = COLUMNS[name].html if name in COLUMNS else "text", form.texts.get(name, "")
    match kind:
        case "textarea":
            return f'<textarea name="{name}">{escape(form.areas[name])}</textarea>'
        case "checkbox":
            on = " checked" if text == "true" else ""
            return f'<input type="checkbox" name="{name}" value="true"{on}>'
        case "select" | "multiple":
            held = form.lists[name] if kind == "multiple" else [text]
            values = {"answer": ["", "true", "false"], "colour": ["", "RED", "BLUE", "GREEN"]}
            options = "".join(
                f'<option value="{one}"{" selected" if one in held else ""}>{one}</option>'
                for one in values.get(name, ["a", "b", "c", "d"])
            )
            several = " multiple" if kind == "multiple" else ""
            return f'<select name="{name}"{several}>{options}</select>'
    return f'<input type="{kind}" name="{name}" step="any" value="{escape(text)}">'


def page_of(form: FilledForm) -> str:
    fields = "".join(field(name, form) for name in FORM.names)
    alert = escape(form.sentence)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title><p>{alert}</p>'
        '<form method="post" autocomplete="off" novalidate>'
        f'<input type="hidden" name="seen" value="{escape(form.seen)}">{fields}'
        "<button>Save</button></form></html>"
    )


def show(sessions: Any) -> str:
    with sessions() as session:
        return page_of(FORM.of(session.get_one(Row, 1)))


def save(sessions: Any, raw: Any) -> tuple[int, str]:
    """Save a form; return the status and the page."""
    with UnitOfWork(sessions) as session:
        again = FORM.save(session, 1, raw)
        if again is not None:
            return again.status, page_of(again)
    return 200, "saved"


# -- the frameworks --------------------------------------------------------------------------------

#: Sends these fields to an application; returns the status.
Send = Callable[[list[tuple[str, str]]], int]


def on_flask(sessions: Any) -> Any:
    from flask import Flask, request

    from optilock.web.flask import Optilock

    app = Flask(__name__)
    app.config["MAX_FORM_PARTS"] = 10_000
    Optilock().init_app(app)

    @app.route("/", methods=["GET", "POST"])
    def edit() -> Any:
        if request.method == "GET":
            return show(sessions)
        status, page = save(sessions, request.form)
        return page, status

    return app


def on_fastapi(sessions: Any) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse

    from optilock.web.fastapi import SentForm, install

    app = FastAPI()
    install(app)

    def edit(sent: SentForm) -> HTMLResponse:
        status, page = save(sessions, sent)
        return HTMLResponse(page, status)

    edit.__annotations__ = {"sent": SentForm}
    app.add_api_route("/", edit, methods=["POST"], response_model=None)
    return app


def on_starlette(sessions: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    from optilock.web.starlette import exception_handlers

    async def edit(request: Request) -> HTMLResponse:
        status, page = save(sessions, await request.form())
        return HTMLResponse(page, status)

    routes = [Route("/", edit, methods=["POST"])]
    return Starlette(routes=routes, exception_handlers=exception_handlers())


def on_litestar(sessions: Any) -> Any:
    from litestar import Litestar, MediaType, Request, Response, post

    from optilock.web.litestar import OptilockPlugin

    async def edit(request: Request) -> Response:  # type: ignore[type-arg]
        status, page = save(sessions, await request.form())
        return Response(page, status_code=status, media_type=MediaType.HTML)

    edit.__annotations__ = {"request": Request, "return": Response}
    return Litestar([post("/", sync_to_thread=None)(edit)], plugins=[OptilockPlugin()])


def sender(name: str, app: Any) -> Send:
    """Return a function that posts fields to the application, without a network."""
    from urllib.parse import urlencode

    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if name == "flask":
        flask = app.test_client()
        return lambda fields: flask.post("/", data=urlencode(fields), headers=headers).status_code
    if name == "litestar":
        from litestar.testing import TestClient as LitestarClient

        client: Any = LitestarClient(app)
    else:
        from starlette.testclient import TestClient

        client = TestClient(app, raise_server_exceptions=False)
    return lambda fields: client.post("/", content=urlencode(fields), headers=headers).status_code


SERVED = {
    "starlette": on_starlette,
    "fastapi": on_fastapi,
    "flask": on_flask,
    "litestar": on_litestar,
}
