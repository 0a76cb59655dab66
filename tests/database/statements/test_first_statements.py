"""Programs whose first statement comes before SQLAlchemy has configured their classes.

SQLAlchemy configures the classes of a declarative base, and of those that it refers to, when the
first of them is used. Classes of the same names in a base that is not imported as a whole stay as
they are. Each program is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import sys
    from sqlalchemy import ForeignKey, create_engine, text, update
    from sqlalchemy.orm import (
        DeclarativeBase, Mapped, mapped_column, registry, relationship, sessionmaker
    )
    from optilock import ConfigurationError, Versioned, entities, watch
    from optilock.tables.names import scopes

    first = sys.argv[1]
    names = {}

    class Parts(DeclarativeBase):
        registry = registry(class_registry=names)

    class Line(Versioned, Parts):
        __tablename__ = "lines"
        __version_scopes__ = ((),)
        id: Mapped[int] = mapped_column(primary_key=True)
        n: Mapped[int] = mapped_column(default=0)
        basket_id: Mapped[int] = mapped_column(ForeignKey("baskets.id"))

    class Roots(DeclarativeBase):
        metadata = Parts.metadata
        registry = registry(class_registry=names)

    class Basket(Versioned, Roots):
        __tablename__ = "baskets"
        __version_root_of__ = ("lines",)
        id: Mapped[int] = mapped_column(primary_key=True)
        lines = relationship({"named": "__main__.Line", "called": lambda: Line}.get(first, Line))

    class Natives(DeclarativeBase):
        metadata = Parts.metadata

    class Native(Natives):
        __tablename__ = "natives"
        id: Mapped[int] = mapped_column(primary_key=True)
        n: Mapped[int]
        version: Mapped[int] = mapped_column()
        __mapper_args__ = {"version_id_col": version}

    class Elsewhere(DeclarativeBase):
        pass

    class Broken(Elsewhere):
        __tablename__ = "broken"
        id: Mapped[int] = mapped_column(primary_key=True)
        lost: Mapped[int] = relationship("Nobody")

    def its_own_lines():
        class Line(Versioned, Elsewhere):
            __tablename__ = "lines"
            id: Mapped[int] = mapped_column(primary_key=True)
            bin_id: Mapped[int] = mapped_column(ForeignKey("bins.id"))
            bin = relationship("Bin", backref="made")

        class Bin(Versioned, Elsewhere):
            __tablename__ = "bins"
            __version_root_of__ = ("named", "given", "called", "missing", "made")
            id: Mapped[int] = mapped_column(primary_key=True)
            named = relationship("Line")
            given = relationship(Line)
            called = relationship(lambda: Line)
            missing = relationship(lambda: NotImportedYet)

    its_own_lines()

    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        Parts.metadata.create_all(connection)
        scopes.create(connection)
        connection.exec_driver_sql("INSERT INTO baskets VALUES (1, 1)")
        connection.exec_driver_sql("INSERT INTO lines (id, n, basket_id, version) VALUES (1,0,1,1)")

    def refused(call):
        try:
            call()
        except ConfigurationError as error:
            return str(error)
        return ""

    UPDATE = "UPDATE lines SET n = 5, version = version + 1"
    lines, natives = Line.__table__, Native.__table__
    with watch(sessionmaker(engine))() as session:
        match first:
            case "core":
                session.execute(update(lines).values(n=5))
            case "text":
                session.execute(text(UPDATE))
            case "connection":
                session.connection().execute(update(lines).values(n=5))
            case "driver":
                session.connection().exec_driver_sql(UPDATE)
            case "native":
                print("version" in refused(lambda: session.execute(update(natives).values(n=5))))
            case "part" | "named" | "called":
                session.add(Line(id=2, basket_id=1))
            case "entity":
                call = lambda: entities.merge(session, Line, 1, {"n": 2}, if_match="*")
                print("Basket.lines" in refused(call))
        session.commit()

    with engine.connect() as connection:
        if first in ("part", "named", "called"):
            print(connection.exec_driver_sql("SELECT version FROM baskets").scalar() == 2)
        elif first not in ("native", "entity"):
            print(connection.execute(scopes.select()).first() is not None)
"""

FIRST = ["core", "text", "connection", "driver", "native", "part", "named", "called", "entity"]


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("call", FIRST)
def test_the_first_call_of_a_program_counts_as_a_later_one(call):
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), call]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
