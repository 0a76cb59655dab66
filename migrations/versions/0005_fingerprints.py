"""What a key of a unit stands for: the column that tells one call from another.

Revision: 0005
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0005"
down_revision: str | Sequence[str] | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.upgrade_optilock_tables("commit_tokens", to=2)


def downgrade() -> None:
    op.downgrade_optilock_tables("commit_tokens", to=1)
