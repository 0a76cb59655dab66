"""Who holds the lease of a name: the column of the label that its holder gives.

Revision: 0006
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0006"
down_revision: str | Sequence[str] | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.upgrade_optilock_tables("leases", to=2)


def downgrade() -> None:
    op.downgrade_optilock_tables("leases", to=1)
