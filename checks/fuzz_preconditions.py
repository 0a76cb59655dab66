"""``python -m checks.fuzz_preconditions --runs 1000000``: requests that a fuzzer makes.

Atheris (the extra ``fuzz``) changes bytes and keeps those that reach a line of
:mod:`optilock.http` that was not reached before. Each request is judged by the evaluator and by
:mod:`checks.second_reader`. The first one of which they think differently, or that raises
anything, ends the run, and its bytes are written to a file:
``python -m checks.fuzz_preconditions FILE`` shows it again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

METHODS = ["PUT", "PATCH", "DELETE", "POST", "GET", "HEAD"]
NAMES = [
    *("If-Match", "if-match", "If-None-Match", "IF-NONE-MATCH"),
    *("If-Unmodified-Since", "If-Modified-Since", "Accept"),
]
PROXIES = [(), ("-gzip",), ("W/",), ("-gzip", "W/")]


def main() -> None:
    """Fuzz until a request is found, or the runs are over."""
    options = _options()
    try:
        import atheris
    except ImportError:
        sys.exit("This needs Atheris: python -m pip install -e '.[test,fuzz]'")
    with atheris.instrument_imports(include=["optilock.http"]):
        from checks.second_reader import PIECES, no_write_passes

    def judged(data: bytes) -> None:
        no_write_passes(_request(atheris.FuzzedDataProvider(data), list(PIECES)))

    if options.file is not None:
        data = options.file.read_bytes()
        print(_request(atheris.FuzzedDataProvider(data), list(PIECES)))
        return judged(data)
    atheris.Setup(
        [
            sys.argv[0],
            f"-atheris_runs={options.runs}",
            f"-seed={options.seed}",
            "-max_len=512",
            "-len_control=0",
        ],
        judged,
    )
    atheris.Fuzz()


def _request(data: Any, pieces: list[str]) -> Any:
    """The request that these bytes stand for."""
    from checks.second_reader import Request

    method, proxies = data.PickValueInList(METHODS), data.PickValueInList(PROXIES)
    exists = data.ConsumeBool()
    lines = tuple(
        (data.PickValueInList(NAMES), _value(data, pieces))
        for _ in range(data.ConsumeIntInRange(0, 4))
    )
    return Request(method, lines, exists, proxies)


def _value(data: Any, pieces: list[str]) -> str:
    """Pieces that mean something, and characters by chance among them."""
    parts = []
    for _ in range(data.ConsumeIntInRange(0, 6)):
        chance = data.ConsumeIntInRange(0, 3) == 0
        parts.append(data.ConsumeUnicode(4) if chance else data.PickValueInList(pieces))
    return "".join(parts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m checks.fuzz_preconditions", description=main.__doc__
    )
    parser.add_argument("file", nargs="?", type=Path, help="show the request of this file again")
    parser.add_argument("--runs", type=int, default=1_000_000, help="requests to judge")
    parser.add_argument("--seed", type=int, default=1, help="another number, other requests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
