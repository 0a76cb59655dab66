"""Write ``sqlalchemy.inv`` from SQLAlchemy's sdist, which has the pages and no inventory.

``python docs/inventories/sqlalchemy.py sqlalchemy-2.0.50.tar.gz``. Sphinx reads the inventory to
link names of SQLAlchemy without a network. ``python.inv`` is the file ``objects.inv`` of Python's
own documentation.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zlib
from pathlib import Path

ENTRY = re.compile(r'<dl class="py (\w+)[^"]*">\s*<dt [^>]*id="(sqlalchemy\.[\w.]+)"')
HEAD = (
    "# Sphinx inventory version 2\n# Project: SQLAlchemy\n# Version: {}\n"
    "# The remainder of this file is compressed using zlib.\n"
)


def entries(sdist: Path) -> set[str]:
    """Return a line for each name that a page of the sdist's documentation describes."""
    found = set()
    with tarfile.open(sdist) as archive:
        for member in archive:
            page = re.fullmatch(r"[^/]+/doc/([^_].*\.html)", member.name)
            file = archive.extractfile(member) if page else None
            if page and file:
                for kind, name in ENTRY.findall(file.read().decode()):
                    found.add(f"{name} py:{kind} 1 {page[1]}#$ -")
    return found


if __name__ == "__main__":
    sdist = Path(sys.argv[1])
    version = ".".join(sdist.name.split("-")[1].split(".")[:2])
    lines = "\n".join(sorted(entries(sdist))) + "\n"
    target = Path(__file__).with_suffix(".inv")
    target.write_bytes(HEAD.format(version).encode() + zlib.compress(lines.encode(), 9))
