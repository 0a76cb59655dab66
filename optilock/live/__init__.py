"""Server-sent events for open pages: their rows have changed.

::

    changes = Changes(engine, dsn="postgresql://app@db/shop")       # one for each process

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with changes:
            yield

    @app.get("/pages/{key}/changes")
    async def follow(key: int, request: Request, user: User) -> Response:
        return await stream_changes(request, changes, Page, key, authorize=user.may_read)

An event has the row's new tag, its author, the time and the names of the changed fields, and no
value of them. A page shows "Ada has changed the title just now", and its form merges as before:
streams come early, and the version in the form decides.

On PostgreSQL a trigger notifies (``__version_notify__ = True``, ``op.add_change_notice("pages")``),
and one connection of each process listens. On other databases, behind a pooler, and for a table
without the trigger, one query asks for the versions of all open rows every few seconds. A notice
also leads to that query, for the rows that it names: so an event is about a stored row, comes after
its COMMIT, and after a lost connection nothing is missing.

==========  ========================================================================================
changes     the open rows of a process, and what makes it ask for their versions
rows        the state of rows, read
streams     one open page: its events as bytes
listener    the connection to PostgreSQL that listens
starlette   the answer for Starlette and FastAPI, behind the extra of its name, as the others
litestar    the answer for Litestar
flask       an answer for pages that ask every few seconds
==========  ========================================================================================
"""

from optilock.live.changes import Changes
from optilock.live.streams import EventStream

__all__ = ["Changes", "EventStream"]
