"""A listener behind a pooler in transaction mode would hear nothing, and is refused."""

from __future__ import annotations

import pytest

from optilock.errors import ConfigurationError
from optilock.live import Changes


@pytest.mark.anyio
async def test_a_listener_without_effect_is_refused(pooler, engine):
    changes = Changes(engine, dsn=pooler.url())
    with pytest.raises(ConfigurationError, match="A pooler in transaction mode does that"):
        await changes.__aenter__()
    async with Changes(engine, dsn=pooler.server.url):
        pass
