"""Servers of other projects that compare ETags: the probe finds no loss in them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from apps.tests.programs import served_by
from tests.support import in_process
from tests.support.needed import needed
from tests.support.serving import ask, wsgi

EVENT = "\r\n".join(
    [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//optilock//probe//EN",
        "BEGIN:VEVENT",
        "UID:one",
        "DTSTAMP:20260101T000000Z",
        "DTSTART:20260101T000000Z",
        "SUMMARY:First summary",
        "END:VEVENT",
        "END:VCALENDAR",
        "",
    ]
)
#: Of no account: moto checks no signature.
S3 = (
    "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host,"
    " Signature=y"
)


def notes(port: int, path: str, *words: str) -> set[str]:
    """The checks that are notes; the verdict is safe, and the value is back."""
    url = f"http://127.0.0.1:{port}{path}"
    new = ("--new", f"{url.rpartition('/')[0]}/two")
    ended = in_process.optilock("probe", url, "--write", "--json", *new, *words, folder=Path())
    report: dict[str, Any] = json.loads(ended.stdout)
    assert (ended.exit_code, report["verdict"]) == (0, "safe"), report
    assert report["findings"][-1]["found"] == "yes"
    return {one["check"] for one in report["findings"] if one["outcome"] != "safe"}


@pytest.mark.full
def test_radicales_calendars_are_safe(tmp_path: Path) -> None:
    """A program of its own: its licence is not ours."""
    if find_spec("radicale") is None:
        needed("Radicale is not installed: pip install --group probed")
    (tmp_path / "rights").write_text("[all]\nuser: .*\ncollection: .*\npermissions: RrWw\n")
    (tmp_path / "config").write_text(
        "[auth]\ntype = none\n"
        f"[rights]\ntype = from_file\nfile = {tmp_path / 'rights'}\n"
        f"[storage]\nfilesystem_folder = {tmp_path / 'calendars'}\n"
    )
    (tmp_path / "calendars.py").write_text(
        "import runpy, sys\n"
        "sys.argv = ['radicale', '--config', 'config', f'--hosts=127.0.0.1:{sys.argv[2]}']\n"
        "runpy.run_module('radicale', run_name='__main__')\n"
    )
    with served_by("calendars.py", folder=tmp_path) as port:
        assert ask(port, "MKCOL", "/ada/").status == 201
        assert ask(port, "MKCALENDAR", "/ada/cal/").status == 201
        lines = [("Content-Type", "text/calendar"), ("Content-Length", str(len(EVENT)))]
        assert ask(port, "PUT", "/ada/cal/one", lines, raw=EVENT.encode()).status == 201
        found = notes(port, "/ada/cal/one", "--field", "SUMMARY")
    assert "PUT without a condition" in found


@pytest.mark.full
def test_the_s3_of_moto_is_safe() -> None:
    if find_spec("moto") is None or find_spec("flask_cors") is None:
        needed("moto is not installed: pip install --group probed")
    from moto.server import DomainDispatcherApplication, create_backend_app

    with wsgi(DomainDispatcherApplication(create_backend_app)) as port:
        key = [("Authorization", S3)]
        assert ask(port, "PUT", "/bucket", key).status == 200
        sent = [*key, ("Content-Type", "text/plain"), ("Content-Length", "10")]
        assert ask(port, "PUT", "/bucket/one", sent, raw=b"first text").status == 200
        found = notes(port, "/bucket/one", "-H", f"Authorization: {S3}")
    assert "PUT without a condition" in found
