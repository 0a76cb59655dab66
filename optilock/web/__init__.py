"""The parts for web frameworks: conditions from requests, errors as answers.

=================  =================================================================================
conditions         the conditions of a request, and headers that a page of another origin needs
problems           an error as a problem document (RFC 9457), and its description for OpenAPI
stored_answers     holds an answer of success back until its writes are stored
row_values         the values of a row that a problem document shows
keys               the key of a unit of work, from an ``Idempotency-Key``
units              one unit of work of one request; the extra of a missing framework
starlette          for Starlette, behind the extra of its name, as the others
fastapi            for FastAPI
litestar           for Litestar
flask              for Flask
sqladmin           an admin, with its pages in ``templates``
sqladmin_views     the admin's views
sqladmin_outcomes  the outcome of a request to the admin
starlette_admin    a view of starlette-admin
wtforms            a mixin for forms of WTForms
=================  =================================================================================

The files for frameworks unpack a request and raise an answer; the rules are in
:mod:`optilock.preconditions.rfc9110`.
"""
