"""The wiki's pages: Python's own reference topics, as they come with every Python.

The text is from ``pydoc_data.topics``, generated from the Python documentation.
Copyright (c) Python Software Foundation, used under the PSF License Version 2.

>>> from optilock.demo.pages import hot_pages
>>> list(hot_pages(2))
['with', 'try']
"""

from __future__ import annotations

from pydoc_data.topics import topics

__all__ = ["CREDIT", "MOST", "hot_pages"]

CREDIT = (
    "Pages: pydoc_data.topics from the Python documentation,"
    " (c) Python Software Foundation, PSF License Version 2."
)

#: Pages of a few thousand characters, which everybody has an opinion on, come first.
_FAVOURITES = ("with", "try", "class", "function", "import", "naming", "strings", "for")

#: How many pages there are (they differ a little between Python versions).
MOST = len(topics)


def hot_pages(count: int) -> dict[str, str]:
    """Name -> text of the first ``count`` pages, favourites first."""
    favourites = [name for name in _FAVOURITES if name in topics]
    others = sorted(set(topics) - set(favourites))
    return {name: topics[name] for name in (favourites + others)[:count]}
