"""UPDATE, DELETE and INSERT statements that a watched session sends itself, without a flush.

:mod:`execute` is ``session.execute(update(Model)...)``, and :mod:`by_key` rows by primary key.
:mod:`while_flushing`: what a listener sends while the session is flushing.
:mod:`unmoved` ones leave the version.
:mod:`apart` moves a version that is in another table than the columns. :mod:`upserts` refuses what
would leave the version as it was. :mod:`own` notes what the session has to know afterwards, and
:mod:`sql_text` finds versioned tables in SQL text (:mod:`optilock.statements.unguarded`).
"""
