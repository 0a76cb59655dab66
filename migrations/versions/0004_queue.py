"""The tables of queues.

Revision: 0004
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0004"
down_revision: str | Sequence[str] | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_optilock_tables("queue")


def downgrade() -> None:
    op.drop_optilock_tables("queue")
