"""A program of the documentation, served in this process: its names, and its address."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from werkzeug.serving import make_server

from apps.tests.programs import ROOT

__all__ = ["served_page"]


@contextlib.contextmanager
def served_page(path: str, folder: Path) -> Iterator[Any]:
    """Run all Python blocks of a page of ``docs`` as one program, whose Flask is ``app``."""
    page = (ROOT / "docs" / path).read_text(encoding="utf-8")
    code = "\n".join(part.split("```")[0] for part in page.split("```python\n")[1:])
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        exec(compile(code, path, "exec", dont_inherit=True), names)
        server = make_server("127.0.0.1", 0, names["app"], threaded=True)
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield SimpleNamespace(**names, address=f"http://127.0.0.1:{server.port}")
        finally:
            server.shutdown()
            serving.join()
            server.server_close()
            names["engine"].dispose()
