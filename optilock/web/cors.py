"""Pages of another origin: the header names that a framework's CORS middleware has to be told.

::

    app.add_middleware(
        CORSMiddleware,
        allow_origins=["https://editor.example"],
        allow_methods=["GET", "PUT", "PATCH", "DELETE"],
        allow_headers=ALLOW_HEADERS,
        expose_headers=EXPOSE_HEADERS,
    )

Without the first list the browser refuses to send the condition, so that every write ends before it
has begun. Without the second one the page's script cannot read the tag, so that it has none to
send. The lists hold what optilock is about; add what your application sends besides.
"""

from __future__ import annotations

__all__ = ["ALLOW_HEADERS", "EXPOSE_HEADERS"]

#: What a page may send: ``Access-Control-Allow-Headers``.
ALLOW_HEADERS = ("If-Match", "If-None-Match", "Idempotency-Key")
#: What a page may read: ``Access-Control-Expose-Headers``.
EXPOSE_HEADERS = ("ETag", "Retry-After")
