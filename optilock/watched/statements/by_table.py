"""``update(table)`` and ``delete(table)`` of a watched session, and statements inside of a flush.

::

    session.execute(Account.__table__.update().where(...).values(balance=0))
    session.connection().execute(...)      # the same, also in a listener during a flush

Such a statement moves the version of every row that it changes, and the session's objects follow it
(:mod:`optilock.watched.statements.follower`).

``update(Model)`` and ``delete(Model)`` that a listener sends while the session is flushing are sent
in the same way, after the rows held by the flush were sent (:func:`send_in_flush`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.watched.session.record import session_record
from optilock.watched.statements.call import Call, mark_statement
from optilock.watched.statements.demand_checks import add_demands_for_table
from optilock.watched.statements.follower import class_in_table, objects_follow
from optilock.watched.statements.version import keep_version_of_table


def update_table(call: Call) -> Any:
    """Send ``update(table)`` or ``delete(table)``; in a flush, the connection handles it."""
    session, flushing = call.session, session_record(call.session).flush is not None
    if flushing:
        return call.send()
    demands = session_record(session).demands
    if demands is not None:
        given = call.statement, call.params
        call = call.with_statement(
            add_demands_for_table(session, call.connection(), *given, demands)
        )
    call = call.with_statement(keep_version_of_table(session, call.statement, call.params))
    if class_in_table(call.statement.table) is None:
        with mark_statement(session):
            return call.send()
    connection = call.connection()
    session_record(session).sends_on(connection)
    with (
        mark_statement(session),
        objects_follow(session, connection, call.statement, call.params),
    ):
        return call.send()


# -- statements of a class, in a flush -------------------------------------------------------------


def send_in_flush(call: Call, mapper: Mapper[Any]) -> Any:
    """Send ``update(Model)`` or ``delete(Model)``, and let the objects follow it."""
    call, connection = call.without_synchronizing(), call.connection(mapper)

    def native(statement: Any, params: Any) -> Any:
        return call.original(call.session, statement, params, **call.options)

    with mark_statement(call.session, checked=False):  # but by what is called now
        record = session_record(call.session)
        record.run_in_flush()
        flush = record.flush
        return flush.by_hand(flush, connection, native, call.statement, call.params, {})


def refuse_apart_in_flush(mapper: Mapper[Any]) -> NoReturn:
    """Refuse an UPDATE of one table that has to move versions in another one.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        f"The UPDATE of {mapper.class_.__name__} is sent by a listener while the session is"
        " flushing, and the versions of its rows are in another table than the columns: objects"
        " that the flush is writing would not know of it. Change the objects in a before_flush"
        " listener, or send the statement after the flush. Nothing was sent."
    )


def refuse_by_key_in_flush(mapper: Mapper[Any]) -> NoReturn:
    """Refuse ``update(Model)`` with rows by key, which SQLAlchemy sends as a flush sends its own.

    Raises:
        ConfigurationError: always.
    """
    name = mapper.class_.__name__
    raise ConfigurationError(
        f"The UPDATE of {name} by primary key is sent by a listener while the session is flushing,"
        f" so its rows cannot be distinguished from the flush's. Write update({name}).where(...),"
        " or change the objects in a before_flush listener. Nothing was sent."
    )
