"""The version of a row that a client has seen, as a condition of a write.

===============  ===================================================================================
entity_tags      a version as an ETag, and back
rfc9110          the conditions of an HTTP request, judged
version_demands  the version that a caller demands, compared with the loaded one
expectations     ``expect`` and ``verify``, which demand a version until the transaction ends, and
                 ``overwrite``, which demands none
scopes           the same for a scope: rows that were added, too
edits            ``apply``: an edit of a row in the version that was seen
row_locks        ``lock``: a row in the version that was seen, locked
signed_values    the values that a client sees, signed
client_merges    a client's edits, merged into a row that has changed since
forms            a form that keeps its edits
form_lines       a form with the child rows of its row
form_fields      the rule for the fields of a request
filled_forms     a form with its values after a conflict
client_values    checks of the names, keys and values that a client sends
===============  ===================================================================================
"""

from optilock._columns.form_texts import Range
from optilock._mapping.scopes import Scope
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
