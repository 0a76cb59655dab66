"""``optilock wiki``: a wiki that never loses an edit, and an example of a web application.

Several people open the same page and save it. The second one sees that the page is being edited,
and can edit it anyway. No user overwrites a text that they have not seen: each edit form carries
the page's ETag and the text that was edited, and the UPDATE has the version in its WHERE. The
second save gets its text back, merged with the stored one if possible::

    optilock wiki
    optilock wiki --database wiki.db --port 8080

From Python, with your own database and server::

    from optilock_apps.wiki.app import wiki
    from optilock_apps.wiki.pages import prepare

    prepare(engine)
    app = wiki(engine, secret=os.environ["WIKI_SECRET"])

The files:

============  ==========================================================================
pages         the table of the pages, and the pages of a new wiki
texts         names and texts that a page can have
forms         the fields of a form, as a browser has sent them
seals         the text that was edited, signed together with its tag
conflict      one conflict: base, yours, theirs, the merge, and the changed words (values only)
editing       the lease of an editor, and the requests of its script
dependencies  the needs of views besides the form
html          a template as an answer
views         the pages for people: read, edit, save, delete
api           the pages for programs, in JSON
protection    forms of other sites, requests that are too large, headers of each answer
app           the application, put together
command       the command line
templates     the HTML, for Jinja2
static        the one stylesheet, and the one script
============  ==========================================================================

Without JavaScript no edit is lost either: a lease then ends after a while, and waiting users reload
the page themselves. Nothing is loaded from another server.
"""
