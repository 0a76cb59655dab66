"""Versions of scopes: one row for each predicate that was changed or checked.

Revision: 0007
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0007"
down_revision: str | Sequence[str] | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_optilock_tables("scopes")


def downgrade() -> None:
    op.drop_optilock_tables("scopes")
