"""A browser without JavaScript, for tests: it opens pages, and sends the forms in them.

::

    ada = Visitor(client)
    form = ada.open("/pages/tea/edit").form
    answer = ada.send(form, body="hot")

A form is sent as HTML says: every field, line ends as CR and LF, redirects followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

__all__ = ["Answer", "Form", "Visitor"]


@dataclass
class Form:
    action: str = ""
    method: str = "get"
    fields: dict[str, str] = field(default_factory=dict)


@dataclass
class Answer(HTMLParser):
    """A page, as it came."""

    status: int
    html: str
    headers: Any
    url: str
    #: Those that are sent by POST.
    forms: list[Form] = field(default_factory=list)
    title: str = ""
    #: The text of each element with marks: theirs, yours.
    sides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self.area: str | None = None
        self.feed(self.html)

    @property
    def form(self) -> Form:
        return self.forms[0]

    @property
    def box(self) -> str:
        return self.form.fields["body"]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self._open.append(tag)
        if tag == "form":
            self._form = Form(given.get("action", self.url), given.get("method", "get"))
            if self._form.method == "post":
                self.forms.append(self._form)
        elif tag == "input":
            self._form.fields[given["name"]] = given.get("value", "")
        elif tag == "textarea":
            self.area, self._form.fields[given["name"]] = given["name"], ""

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "textarea" and self.area:
            text = self._form.fields[self.area]
            self._form.fields[self.area] = text.removeprefix("\n")  # as browsers do
            self.area = None

    def handle_data(self, data: str) -> None:
        if self.area:
            self._form.fields[self.area] += data
        elif self._open[-1:] == ["title"]:
            self.title += data


class Visitor:
    """Somebody who visits the wiki, with a client of Starlette or httpx."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def open(self, path: str, **headers: str) -> Answer:
        return self.answer(self.client.get(path, headers=headers))

    def send(self, form: Form, *, headers: dict[str, str] | None = None, **typed: str) -> Answer:
        fields = {**form.fields, **typed}
        data = {name: value.replace("\n", "\r\n") for name, value in fields.items()}
        sent = self.client.post(form.action, data=data, headers=headers, follow_redirects=True)
        return self.answer(sent)

    def edit(self, name: str) -> Form:
        """The form of the editor, also where somebody else has it open."""
        return self.open(f"/pages/{name}/edit?anyway=yes").form

    def answer(self, response: Any) -> Answer:
        return Answer(response.status_code, response.text, response.headers, str(response.url))
