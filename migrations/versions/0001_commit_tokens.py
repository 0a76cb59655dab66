"""The tables that make a repeated unit of work harmless.

Revision: 0001, the first
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0001"
down_revision: str | Sequence[str] | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_optilock_tables("commit_tokens")


def downgrade() -> None:
    op.drop_optilock_tables("commit_tokens")
