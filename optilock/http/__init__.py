"""HTTP without a framework: which conditions a request carries, and the tags that a row sends out.

:mod:`~optilock.http.preconditions` says what a request demands of a row, and what to answer.
:mod:`~optilock.http.fields` reads the field values of those conditions: lists of tags, and dates.
"""
