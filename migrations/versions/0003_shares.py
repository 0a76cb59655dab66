"""The tables of names that several programs have open.

Revision: 0003
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0003"
down_revision: str | Sequence[str] | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_optilock_tables("shares")


def downgrade() -> None:
    op.drop_optilock_tables("shares")
