"""The hosts that may be probed, and addresses as they may be shown."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from optilock.errors import ConfigurationError


def require_named(url: str, host: str | None) -> None:
    """Let only addresses of this machine pass, or of the host that was named again.

    Raises:
        ConfigurationError: it is no address of HTTP, or one of another host.
    """
    parts = _split(url)
    if parts.hostname is None or parts.scheme not in ("http", "https"):
        raise ConfigurationError(
            "The address must begin with http:// or https:// and a host. Nothing was sent."
        )
    if not _is_loopback(parts.hostname) and parts.hostname != (host or "").lower():
        raise ConfigurationError(
            f"{parts.hostname} is another machine, and a probe of a server that others use may"
            f" disturb them. If you may test it, add --host {parts.hostname}. Nothing was sent."
        )


def shown_address(url: str) -> str:
    """Return the address without the user, the password, the query and the fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError("The address cannot be read. Nothing was sent.") from None
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
