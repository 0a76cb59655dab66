"""The checks before every request, and the headers of every answer.

**Forms of other sites.** A page of another site can send a form here, in the name of its reader.
Browsers report the origin of a request, so a request that may write is refused (403) if
``Sec-Fetch-Site`` names another site or, without that field, if ``Origin`` is not this host. A
program such as curl sends neither, and no page steers it. (A cookie marked ``SameSite`` would not
be enough: it counts other ports and subdomains as the same site, and this wiki has no cookies.)

**Names of other sites.** A page of another site can give its own name our address, and then counts
to the browser as ours ("DNS rebinding"): it could read and write what only this machine may. So a
wiki that listens on this machine alone answers for this machine's names, and for those that it was
given; a request for another ``Host`` is 421.

**Large requests** are refused before they are read, by the length that they announce (413); what
announces none is refused, too (411).

**Prefetches.** A browser may fetch an address before the user opens it, or as a picture of another
site's page. Such a request begins no edit.

**Headers.** No script runs but our own file, which asks this server alone; nothing is loaded from
another server, and no other site can show a page of this one inside of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

from fastapi import HTTPException, Request

__all__ = ["HEADERS", "is_loopback", "is_visit", "refusal"]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With "no-referrer" some browsers would not say where a form comes from.
    "Referrer-Policy": "same-origin",
}

#: Bytes. A form with two of the longest texts, each character written as %F0%9F%8D%B5, has fewer.
_LARGEST = 4 * 1024 * 1024
_READS = ("GET", "HEAD", "OPTIONS")


def refusal(request: Request, hosts: Collection[str] | None = None) -> HTTPException | None:
    """Return the error of a refused request; ``None`` if it is accepted.

    ``hosts``: the names that the wiki answers for, besides this machine's; ``None``: all names.
    """
    if hosts is not None and not _is_host(request.headers.get("host", ""), hosts):
        return HTTPException(
            421,
            "This wiki is not called so. Start it with --allowed-host NAME if it should be. Nothing"
            " was read or saved.",
        )
    if request.method in _READS:
        return None
    if not _is_ours(request):
        return HTTPException(403, "A page of another site has sent this. Nothing was saved.")
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers:  # whatever length it says besides
        return HTTPException(411, "Say how long the request is. Nothing was saved.")
    if length and (not length.isdecimal() or int(length[:20]) > _LARGEST):
        return HTTPException(413, "This is more than a page can hold. Nothing was saved.")
    return None


def is_visit(request: Request) -> bool:
    """Return whether a user sees the answer."""
    opened = request.headers.get("sec-fetch-dest", "document") == "document"
    return request.method == "GET" and opened and "sec-purpose" not in request.headers


def is_loopback(host: str) -> bool:
    """Return whether this is a name, or an address, of this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_host(field: str, hosts: Collection[str]) -> bool:
    name, colon, port = field.rpartition(":")
    if not colon or not port.isdecimal():
        name = field
    name = name.lower().removesuffix(".").removeprefix("[").removesuffix("]")
    return is_loopback(name) or name in hosts


def _is_ours(request: Request) -> bool:
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")  # "none": the person, and no page
    host = request.headers.get("host")
    return origin in (None, f"http://{host}", f"https://{host}")
