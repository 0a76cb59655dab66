"""Conditional requests, read a second time: slowly, and as somebody else would read RFC 9110.

The evaluator of :mod:`optilock.preconditions.rfc9110` is compared with this reading, over requests
that chance makes::

    no_write_passes(Request("PUT", (("If-Match", '"a"'),), exists=True))

Nothing of optilock's is used for the reading, no regular expression among it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from optilock.preconditions.rfc9110 import evaluate, required

__all__ = ["EARLIER", "ETAG", "LATER", "MODIFIED", "PIECES", "Request", "no_write_passes"]

#: The row that every request is about.
ETAG = '"a"'
EARLIER = "Sun, 21 Oct 2007 23:21:46 GMT"
MODIFIED = "Sun, 21 Oct 2007 23:21:47 GMT"
LATER = "Sunday, 21-Oct-07 23:21:48 GMT"

#: What values are put together of.
PIECES = (
    *('"a"', '"b"', 'W/"a"', "*", ",", " ", "\t", '"', "W/", "w/", "a", '"a,b"', '"\xe9"'),
    *("\x00", "\n", '"a-gzip"', "-gzip", '"a",' * 40, "x" * 4096, EARLIER, MODIFIED, LATER),
)


@dataclass(frozen=True)
class Request:
    """A method and field lines, and whether there is a row."""

    method: str
    lines: tuple[tuple[str, str], ...]
    exists: bool
    proxies: tuple[str, ...] = ()

    def joined(self) -> dict[str, str]:
        """The value of each field, by its name in small letters (section 5.3)."""
        found: dict[str, str] = {}
        for name, value in self.lines:
            name = name.lower()
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found


def no_write_passes(request: Request) -> None:
    """No answer but those that there are, and a write passes where the second reading allows it."""
    answer = _status(request)
    if request.method in ("GET", "HEAD"):
        _read_is_answered(request, answer)
        return
    assert (answer is None) is allowed(request)
    assert (_status(request, require=None) is None) is holds(request)
    star = listed(request.joined().get("if-match", "")) == ["*"]
    assert (_status(request, allow_star=False) is None) is (allowed(request) and not star)
    if _status(request, profile="azure") is None:
        assert allowed(request, bare=True)
    assert _where(request) is allowed(request)


def _status(request: Request, **how: Any) -> int | None:
    answer = evaluate(
        request.method,
        request.lines,
        etag=ETAG if request.exists else None,
        exists=request.exists,
        last_modified=MODIFIED,
        proxies=request.proxies,
        **how,
    )
    assert answer.status in (None, 304, 400, 412, 428)
    assert answer.reason
    return answer.status


def _read_is_answered(request: Request, status: int | None) -> None:
    assert status in (None, 304, 400, 412)
    sent = request.joined()
    if status == 304 and "if-none-match" in sent:
        assert request.exists
        assert names_it(listed(sent["if-none-match"], proxies=request.proxies) or [])
    azure = _status(request, profile="azure")
    assert azure in (None, 304, 400, 412)


def _where(request: Request) -> bool:
    """Would a statement pass that takes its conditions from what is demanded before any look?"""
    asked = required(request.method, request.lines, proxies=request.proxies)
    if asked.status is not None:
        return False
    if not request.exists:
        return asked.absent and asked.versions is None and not asked.exists
    demanded = asked.exists or ETAG in (asked.versions or ())
    return demanded and not asked.absent and ETAG not in asked.unless


# -- the second reading ----------------------------------------------------------------------------


def allowed(request: Request, *, bare: bool = False) -> bool:
    """May the write pass, where each write has to name what it overwrites?"""
    sent = request.joined()
    protected = "if-match" in sent or listed(sent.get("if-none-match", "")) == ["*"]
    return protected and holds(request, bare=bare)


def holds(request: Request, *, bare: bool = False) -> bool:
    """Does everything that a write demands hold, as sections 13.1.1 to 13.1.4 say?"""
    sent = request.joined()
    dates = [sent.get(name, "") for name in ("if-unmodified-since", "if-modified-since")]
    if any((c < " " and c != "\t") or c == "\x7f" for date in dates for c in date):
        return False
    fields = ("if-match", "if-none-match", "if-unmodified-since", "if-modified-since")
    names = [name.lower() for name, _ in request.lines]
    if any(len(sent.get(name, "")) > 8192 or names.count(name) > 64 for name in fields):
        return False
    if "if-match" in sent:
        match = listed(sent["if-match"], bare=bare, proxies=request.proxies)
        if match is None or not request.exists or not (match == ["*"] or ETAG in match):
            return False
    elif dates[0].strip(" \t") == EARLIER and request.exists:
        return False
    if "if-none-match" in sent:
        none = listed(sent["if-none-match"], bare=bare, proxies=request.proxies)
        return none is not None and not (request.exists and names_it(none))
    return True


def names_it(none: list[str]) -> bool:
    """By weak comparison."""
    return none == ["*"] or ETAG in [tag.removeprefix("W/") for tag in none]


def listed(text: str, *, bare: bool = False, proxies: tuple[str, ...] = ()) -> list[str] | None:
    """The tags of a list, read a character at a time; ``None`` for what is no list."""
    found, text = [], text.strip(" \t")
    if text == "*":
        return ["*"]
    while text:
        if text[0] in " \t,":
            text = text[1:]
            continue
        read = _quoted(text) or (_unquoted(text) if bare else None)
        if read is None or len(found) == 64:
            return None
        weak, opaque, text = read
        if text.strip(" \t") and not text.strip(" \t").startswith(","):
            return None
        found.append(_without(proxies, weak, opaque))
    return found or None


Read = tuple[Literal["", "W/"], str, str]


def _quoted(text: str) -> Read | None:
    weak: Literal["", "W/"] = "W/" if text.startswith("W/") else ""
    text = text.removeprefix("W/")
    if not text.startswith('"') or '"' not in text[1:]:
        return None
    opaque, rest = text[1:].split('"', 1)
    return (weak, opaque, rest) if all(_in_tag(c) for c in opaque) else None


def _unquoted(text: str) -> Read | None:
    size = next((n for n, c in enumerate(text) if c == "," or not _in_tag(c)), len(text))
    return ("", text[:size], text[size:]) if size and text[0] != "*" else None


def _in_tag(c: str) -> bool:
    return c == "!" or "#" <= c <= "~" or "\x80" <= c <= "\xff"


def _without(proxies: tuple[str, ...], weak: str, opaque: str) -> str:
    ending = next((p for p in proxies if p != "W/" and opaque.endswith(p)), "")
    return f'{"" if "W/" in proxies else weak}"{opaque.removesuffix(ending)}"'
