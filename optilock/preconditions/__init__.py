"""The version of a row that a client has seen, as a condition of a write.

:mod:`~optilock.preconditions.entity_tags` writes a version as an ETag and reads it back, and
:mod:`~optilock.preconditions.rfc9110` judges the conditions of an HTTP request.
:mod:`~optilock.preconditions.version_demands` compares the version that a caller demands with the
loaded one. :mod:`~optilock.preconditions.expectations` has ``expect`` and ``verify``, which demand
a version until the transaction ends, and ``overwrite``, which demands none.
:mod:`~optilock.preconditions.scopes` has the same for a scope: rows that were added, too.
:mod:`~optilock.preconditions.edits` edits a row in the version that was seen (``apply``), and
:mod:`~optilock.preconditions.row_locks` locks it.
:mod:`~optilock.preconditions.signed_values` signs the values that a client sees, and
:mod:`~optilock.preconditions.client_merges` merges a client's edits into a row that has changed
since. :mod:`~optilock.preconditions.forms` is a form that keeps its edits,
:mod:`~optilock.preconditions.form_lines` one with the child rows of its row,
:mod:`~optilock.preconditions.form_fields` the rule for the fields of a request, and
:mod:`~optilock.preconditions.filled_forms` a form with its values after a conflict.
:mod:`~optilock.preconditions.client_values` checks the names, keys and values that a client sends.
"""

from optilock.columns.form_texts import Range
from optilock.mapping.scopes import Scope
from optilock.preconditions.client_merges import merge_changes
from optilock.preconditions.edits import apply
from optilock.preconditions.entity_tags import ETags, etag_of
from optilock.preconditions.expectations import expect, overwrite, verify
from optilock.preconditions.filled_forms import FilledForm, conflict_form
from optilock.preconditions.form_lines import FilledLines, FormWithLines
from optilock.preconditions.forms import EditForm
from optilock.preconditions.row_locks import lock
from optilock.preconditions.signed_values import sign_seen

__all__ = [
    "ETags",
    "EditForm",
    "FilledForm",
    "FilledLines",
    "FormWithLines",
    "Range",
    "Scope",
    "apply",
    "conflict_form",
    "etag_of",
    "expect",
    "lock",
    "merge_changes",
    "overwrite",
    "sign_seen",
    "verify",
]
