"""``optilock wiki``: a wiki that never loses an edit, and an example of a web application.

Several people open the same page and save it. Who opens it second is told that somebody edits it,
and can edit it anyway. Nobody overwrites what he has not seen: each edit form carries the ETag of
the page and the text that was edited, and the UPDATE has the version in its WHERE. Who saves second
gets his text back, merged with the stored one where that can be::

    optilock wiki
    optilock wiki --database wiki.db --port 8080

From Python, with a database and a server of one's own::

    from optilock_apps.wiki.app import wiki
    from optilock_apps.wiki.pages import prepare

    prepare(engine)
    app = wiki(engine, secret=os.environ["WIKI_SECRET"])

Which file is about what:

============  ==========================================================================
pages         the table of the pages, and the pages of a new wiki
texts         what can be the name or the text of a page
forms         what a browser has sent in a form
seals         the text that was edited, signed together with its tag
conflict      one conflict: base, yours, theirs, the merge, and the changed words (values only)
editing       the lease of an editor, and the requests of its script
dependencies  what views ask of a request besides its form
html          a template as an answer
views         the pages for people: read, edit, save, delete
api           the pages for programs, in JSON
protection    forms of other sites, requests that are too large, headers of each answer
app           the application, put together
command       the command line
templates     the HTML, for Jinja2
static        the one stylesheet, and the one script
============  ==========================================================================

Without JavaScript nobody loses an edit either: a lease then ends after a while, and who waits looks
again by himself. Nothing comes from another server.
"""
