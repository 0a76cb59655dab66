"""Build the site into ``build/site``, offline: ``python -m docs``. A warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main

HERE = Path(__file__).parent
BUILD = HERE.parent / "build"
#: All pages are read again: a page that is not would hide its warnings.
OPTIONS = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "--write-all"]

if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else str(BUILD / "site")
    sys.exit(main([*OPTIONS, "--doctree-dir", str(BUILD / "doctrees"), str(HERE), target]))
