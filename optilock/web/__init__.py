"""The parts for web frameworks: conditions from requests, errors as answers.

Without a framework:

:mod:`~optilock.web.conditions` reads the conditions of a request, and has the header names that a
page of another origin needs.
:mod:`~optilock.web.problems` turns an error into a problem document (RFC 9457), and describes
these documents for OpenAPI.
:mod:`~optilock.web.stored_answers` holds an answer of success back until its writes are stored.
:mod:`~optilock.web.row_values` picks the values of a row that such a document shows.
:mod:`~optilock.web.keys` makes the key of a unit of work from an ``Idempotency-Key``.
:mod:`~optilock.web.units` makes one unit of work of one request, and names the extra of a framework
that is not installed.

With one, each behind the extra of its name: :mod:`~optilock.web.starlette`,
:mod:`~optilock.web.fastapi`, :mod:`~optilock.web.litestar`, :mod:`~optilock.web.flask`. They unpack
a request and raise an answer; the rules are in :mod:`optilock.preconditions.rfc9110`.
:mod:`~optilock.web.sqladmin` is an admin, with its views in :mod:`~optilock.web.sqladmin_views`,
the outcome of a request in :mod:`~optilock.web.sqladmin_outcomes`, and its pages in ``templates``.
:mod:`~optilock.web.starlette_admin` is a view of starlette-admin, and
:mod:`~optilock.web.wtforms` a mixin for forms of WTForms.
"""
