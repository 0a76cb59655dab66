"""A client's keys, values of a body and versions in an ETag, checked against columns.

:mod:`~optilock._columns.kinds` is the one table of what a text means for a column.
:mod:`~optilock._columns.values` checks values of a body against the type of their column, within
the limits of each database. :mod:`~optilock._columns.identities` reads the primary key that a
client has sent. :mod:`~optilock._columns.form_texts` shows a value as the text of a field, and
reads such a text. :mod:`~optilock._columns.texts` writes versions, keys and values as text, and
reads them back.
"""
