"""What a web framework needs of optilock: conditions read from a request, errors as answers.

Without a framework:

:mod:`~optilock.web.conditions` says what a request demands of the row that it is about.
:mod:`~optilock.web.problems` makes an error into an answer, a problem document (RFC 9457).
:mod:`~optilock.web.kinds` has the words of these documents.
:mod:`~optilock.web.cors` has the header names that a page of another origin has to be allowed.
:mod:`~optilock.web.units` makes one unit of work of one request.
:mod:`~optilock.web.openapi` has what an OpenAPI document says of all this.
:mod:`~optilock.web.extras` says which extra a framework comes with, where it is not installed.

With one, each behind the extra of its name: :mod:`~optilock.web.starlette`,
:mod:`~optilock.web.fastapi`, :mod:`~optilock.web.litestar`, :mod:`~optilock.web.flask`. They unpack
a request and raise an answer; the rules are in :mod:`optilock.http.preconditions`.
"""
