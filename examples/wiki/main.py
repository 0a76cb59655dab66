"""The wiki on a database of one's own, for a server with several processes: see README.md."""

import os

from optilock_apps.wiki.app import wiki
from optilock_apps.wiki.pages import prepare
from sqlalchemy import create_engine

# No log has what people type, or the lease of an editor.
engine = create_engine(os.environ["WIKI_DATABASE"], pool_pre_ping=True, hide_parameters=True)
# The names that a proxy hands on; without them it answers for this machine's alone.
hosts = os.environ.get("WIKI_HOSTS", "").split()
app = wiki(engine, secret=os.environ["WIKI_SECRET"], hosts=hosts)

if __name__ == "__main__":
    prepare(engine)
