"""The fields of a form that a browser has sent, read strictly.

FastAPI silently turns bytes that are no UTF-8 into other characters, and a lost field into an empty
text. Here both are refused (400), and so is a field that came twice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, HTTPException, Request

from optilock.resolvers.diff3 import normalize_line_ends

__all__ = ["Form", "Sent", "SentText"]

_KIND = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Form:
    """The fields of the wiki's forms; each form has some of them."""

    name: str = ""
    body: str = ""
    #: What was edited: its tag, its text, and the seal on both.
    tag: str = ""
    base: str = ""
    seal: str = ""
    #: The id of this editor's lease; "": there is none.
    lease: str = ""
    #: The signature that others see, if there is one.
    author: str = ""


_NAMES = {field.name for field in fields(Form)}


async def _body(request: Request) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _KIND:
        raise HTTPException(415, f"A form is sent as {_KIND}.")
    return await request.body()


def _sent(request: Request, body: Annotated[bytes, Depends(_body)]) -> Form:
    """Run in a thread: a large form takes a second or more, and other requests must not wait."""
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=2 * len(_NAMES),
        )
    except ValueError:  # UnicodeDecodeError is one
        raise HTTPException(400, "The form cannot be read: it is no text in UTF-8.") from None
    found = [(name, normalize_line_ends(value)) for name, value in pairs if name in _NAMES]
    if len(found) > len(dict(found)):
        raise HTTPException(400, "A field of this form came twice, so nothing was saved.")
    request.state.fields = dict(found).keys()
    return Form(**dict(found))


def _sent_text(request: Request, form: Annotated[Form, Depends(_sent)]) -> Form:
    if "body" not in request.state.fields:  # the field is missing, which is not the same as empty
        raise HTTPException(400, "This form came without its text, so nothing was saved.")
    return form


#: The form that a request carries, for the signature of a view.
Sent = Annotated[Form, Depends(_sent)]
#: The same, of a form with a text.
SentText = Annotated[Form, Depends(_sent_text)]
