"""An ``Idempotency-Key`` as the key of a unit of work: a POST is done once, and answered again.

::

    @unit_of_work(SessionLocal, exactly_once=lambda once, order: once)
    def place(session: Session, once: Once | None, order: dict[str, Any]) -> dict[str, Any]:
        session.add(new := Order(**order))
        session.flush()
        return {"status_code": 201, "content": {"id": new.id}}

    once = once_of("POST", "/orders", header, principal=user.id, of=order)
    answer = place(once, order)         # sent again: the same answer, and no second order

The frameworks' files take method, path and field from the request: ``once_of(request, ...)`` of
:mod:`~optilock.web.starlette`, :mod:`~optilock.web.fastapi` and :mod:`~optilock.web.litestar`, and
``Optilock.once`` of :mod:`~optilock.web.flask`.

The key is bound to its principal: another principal with the same key sends another request. What
must be the same each time is the method, the path with its query, ``of``, and the function of the
unit. The answers are those of draft-ietf-httpapi-idempotency-key-header, as problem documents:

======  ============================================================================
status  when
======  ============================================================================
400     the field is missing where it is required, or cannot be read, or is too long
409     a request with the key is being served (``KeyInUse``), with ``Retry-After``
422     the key belongs to another request (``KeyReused``)
======  ============================================================================

The answer is stored as JSON with the unit. It is given again until the key is purged
(:func:`optilock.exactly_once.purge`). A request that failed is not remembered: sent again, it runs.
:class:`~optilock.entities.Idempotency` recognises a request by the version of the row that it wrote
and needs no table; ``docs/how-to/web/idempotent-requests.md`` compares both.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from optilock.entities.idempotency import client_key
from optilock.errors import BadEntity, BadPrecondition
from optilock.exactly_once import Once
from optilock.exactly_once.keys import fingerprint_of
from optilock.serialize import is_too_deep

__all__ = ["AsgiRequest", "once_of", "once_of_request"]


def once_of(
    method: str,
    path: str,
    header: str | None,
    *,
    principal: str,
    of: Any,
    wait: float | timedelta | None = 0,
    required: bool = True,
) -> Once | None:
    """Return the key of a request, for ``exactly_once=``.

    Args:
        method: that of the request.
        path: with the query.
        header: the value of the field ``Idempotency-Key``; several lines are joined by a comma, and
            refused. ``None`` if the client sent none.
        principal: the sender as the server knows it: a user's id, not a name that the client gives.
        of: the body that must be the same each time: its bytes, or plain values.
        wait: seconds, or a timedelta, to wait for a request that has the key and is being served.
            On SQLite each writer of the file is waited for: give it some seconds there.
        required: ``False``: without the field the request has no key, and ``None`` is returned; a
            decorated function with ``None`` as its key runs as with ``exactly_once=True``.

    Raises:
        BadPrecondition: the field is missing, or is not a String of RFC 9651 of 1 to 255
            characters (400).
        BadEntity: ``of`` is nested too deeply (400).
        ConfigurationError: ``principal`` or ``wait`` cannot work, or ``of`` is no plain value.
    """
    key = client_key(header)
    if key is None:
        if required:
            raise _missing()
        return None
    if is_too_deep(of):
        raise BadEntity(
            "The body of a request with an Idempotency-Key is nested too deeply. Nothing was sent.",
            detail="A value that was sent is nested too deeply.",
        )
    return Once((principal, key), of=fingerprint_of(f"{method} {path}", of), wait=wait)


class AsgiRequest(Protocol):
    """A request of Starlette, FastAPI or Litestar."""

    @property
    def scope(self) -> Any: ...


def once_of_request(
    request: AsgiRequest,
    *,
    principal: str,
    of: Any,
    wait: float | timedelta | None = 0,
    required: bool = True,
) -> Once | None:
    """Return the key of a request, for ``exactly_once=``: same arguments as :func:`once_of`.

    Raises:
        BadPrecondition: the request has no ``Idempotency-Key``, or one that cannot be read (400).
        BadEntity: ``of`` is nested too deeply (400).
        ConfigurationError: ``principal`` or ``wait`` cannot work, or ``of`` is no plain value.
    """
    scope = request.scope
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == _FIELD]
    path = f"{scope['path']}?{scope.get('query_string', b'').decode('latin-1')}"
    header = ", ".join(lines) if lines else None
    return once_of(
        scope["method"], path, header, principal=principal, of=of, wait=wait, required=required
    )


_FIELD = b"idempotency-key"


def _missing() -> BadPrecondition:
    error = BadPrecondition(
        "The request has no Idempotency-Key, and what it asks for is done once for each key. Send a"
        " new random UUID with each new request, in two quotes, and the same one with a request"
        " that you send again. Nothing was stored."
    )
    error.detail = str(error)
    return error
