"""A --url that cannot work is refused in one sentence, without its password."""

from __future__ import annotations

from pathlib import Path

import pytest
from optilock_apps.demo.edits import checked_url, database_url
from sqlalchemy import make_url

from optilock import ConfigurationError


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "not a database URL"),
        ("oracle://u:secret@host/x", "does not know 'oracle'"),
        ("postgresql+nope://u:secret@host/x", "no driver 'postgresql+nope'"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite+aiosqlite:///file.db", "not async"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/x", "Cannot connect to"),
        ("mysql+pymysql://u:secret@127.0.0.1:1/x", "Cannot connect to"),
        ("sqlite:////no/such/folder/wiki.db", "unable to open"),
    ],
)
def test_a_url_that_cannot_work_is_refused_in_one_line(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked_url(url)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert "secret" not in message


def test_without_a_url_there_is_a_sqlite_file_in_wal_mode_that_is_removed_afterwards() -> None:
    with database_url(None) as url:
        file = Path(str(make_url(url).database))
        # Bytes 18 and 19 of the header are 2 in this mode (sqlite.org/fileformat.html, 1.3.3).
        assert file.read_bytes()[18:20] == b"\x02\x02"
    assert not file.parent.exists()
