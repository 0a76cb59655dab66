"""Find out whether a server loses updates, in any language, from outside: as two clients.

::

    $ optilock probe http://127.0.0.1:8000/api/pages/1            # five reads
    $ optilock probe http://127.0.0.1:8000/api/pages/1 --write    # and about 15 writes

A client that read an old version sends it in ``If-Match``, and the server must refuse its write
(RFC 9110 section 13.1.1). The probe does what such clients do: the first one changes the resource,
the second one sends the body that it saw before with one place changed. After each refusal the
resource is read again, so that a server that refuses and writes all the same is found.

=============  =====================================================================================
rules          a finding, its outcome, the rules of the RFCs, and the verdict
addresses      the hosts that may be probed, and addresses without their secrets
clients        httpx: two clients and six more, which announce each write
places         the place in a body that the probe changes: a member of JSON, a line, the whole text
resource       the resource as it is read and written
reads          checks that only read
writes         checks that write the resource, and the race
others         checks of a new resource, and of a repeated POST
probing        all checks in order; the original value is put back
probe_command  ``optilock probe``
=============  =====================================================================================
"""
