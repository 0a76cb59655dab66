"""Rows by their keys on MariaDB."""

from __future__ import annotations

from optilock.dialects.keys import RowKeys
from optilock.dialects.mariadb.rows import at_keys, forget_primary, has_primary, is_refused


class MariaDBRowKeys(RowKeys):
    at_keys = staticmethod(at_keys)
    has_hint = staticmethod(has_primary)
    refused_hint = staticmethod(forget_primary)
    refuses_many = staticmethod(is_refused)
