"""HTTP without a framework: which conditions a request carries, and the tags that a row sends out.

:mod:`~optilock.http.preconditions` says what a request demands of a row, and what to answer.
:mod:`~optilock.http.request` is the request that is served, and whether that was compared.
:mod:`~optilock.http.fields` reads the fields of those conditions: lines, lists of tags, dates.
:mod:`~optilock.http.etags` makes the tag of a row, and finds the version in a tag that comes back.
:mod:`~optilock.http.identities` reads the key of a row.
:mod:`~optilock.http.keys` looks at the secret keys that sign them.
:mod:`~optilock.http.columns` knows what a column can hold of what a client sends, and
:mod:`~optilock.http.limits` what of that differs between databases.
:mod:`~optilock.http.texts` writes versions and keys in characters that a tag can hold.
:mod:`~optilock.http.typed_json` writes values as JSON, so that they come back in their types.
:mod:`~optilock.http.errors` has what a client got wrong, each with its status.
"""
