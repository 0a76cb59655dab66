"""The log of conflicts: one row for each conflicting row.

Revision: 0008
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0008"
down_revision: str | Sequence[str] | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_optilock_tables("conflicts")


def downgrade() -> None:
    op.drop_optilock_tables("conflicts")
