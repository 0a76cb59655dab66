"""The recorded answers of Azure's Table service, and what is recommended in their place.

``tests/vectors/table.json`` says where each comes from. What is wanted is ``recommended`` where it
is present. Its ``update`` and ``merge`` without a condition are our upserts. The status of an
insert over a row that is there is 409 in that profile, and 412 by RFC 9110, where ``If-None-Match:
*`` was demanded: the error is the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from optilock import OptilockError, Versioned, entities
from optilock.entities import Operation
from optilock.errors import BatchFailed
from optilock.tokens import Unique
from tests.support.entities import Base

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "table.json").read_text())["vectors"]
#: Reading is :mod:`optilock.preconditions.rfc9110`; what an SDK sends is none of ours.
SINGLE = [
    vector
    for vector in VECTORS
    if vector["steps"][0]["op"] in ("insert", "update", "merge", "merge_patch", "delete")
    and not vector.get("information_only")
]
BATCHES = [one for one in VECTORS if one["steps"][0]["op"] == "entity_group_transaction"]


class Row(Versioned, Base):
    __tablename__ = "ent_vectors"
    __version_token__ = Unique()
    id: Mapped[str] = mapped_column(String(4), primary_key=True)
    A: Mapped[int | None]
    B: Mapped[str | None]
    C: Mapped[str | None]


def wanted(vector: Any) -> tuple[set[int], dict[str, Any]]:
    """The statuses that are good, and the effects that are known."""
    (step,) = vector["steps"]
    recommended = vector.get("recommended") or {}
    expect = {**step["expect"], **recommended}
    observed = step["expect"]["effects"]
    same = recommended.get("status", step["expect"]["status"]) == step["expect"]["status"]
    effects = {**(observed if same else {}), **recommended.get("effects", {})}
    return {expect["status"], *vector.get("also_acceptable", ())}, effects


def props(session: Session, key: str) -> Any:
    row = session.get(Row, key, populate_existing=True)
    if row is None:
        return None
    values = {name: getattr(row, name) for name in "ABC"}
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize("vector", SINGLE, ids=lambda vector: vector["id"])
@pytest.mark.engines("sqlite-wal")
@pytest.mark.tenth
def test_one_operation(tables, watched, vector):
    tables(Row)
    run(watched(), vector)


@pytest.mark.engines("postgresql", "mariadb")
def test_each_operation(tables, watched):
    """The same on the servers, in one test."""
    tables(Row)
    session = watched()
    for vector in SINGLE:
        run(session, vector)
        session.execute(delete(Row))
        session.commit()


def run(session: Session, vector: Any) -> None:
    given = vector["given"]
    if isinstance(given, str):  # "missing", or "entity A=1,B=2"
        given = {"entity": {"A": 1, "B": "2"} if given.startswith("entity") else None}
    other = entities.insert(session, Row, "o").etag
    older = entities.insert(session, Row, "r", given["entity"] or {})
    current = entities.replace(session, Row, "r", given["entity"] or {}, if_match=older.etag)
    if given["entity"] is None:
        entities.delete(session, Row, "r", if_match=current.etag)
    session.commit()
    before = props(session, "r")

    (step,) = vector["steps"]
    names = {"$E1": older.etag, "$E2": current.etag, "$S2": current.etag, "$O": other}
    status, tag = perform(session, step["op"], step["args"], names)
    session.commit()

    statuses, effects = wanted(vector)
    assert status in statuses or (status == 412 and 409 in statuses and "star" in vector["id"])
    after = props(session, "r")
    if status >= 400:
        assert after == before
        return
    if "props_after" in effects and not isinstance(vector["given"], str):
        assert after == effects["props_after"]
    if effects.get("etag_changed") and step["args"].get("props") != {}:  # ours changes nothing
        assert tag not in (None, current.etag) or step["op"] == "delete"


def perform(session: Session, op: str, args: Any, names: dict[str, str]) -> tuple[int, Any]:
    if_match = args.get("If-Match")
    for name, etag in names.items():
        if_match = None if if_match is None else if_match.replace(name, etag)
    demands = {"if_match": if_match, "if_none_match": args.get("If-None-Match")}
    call: Any = {
        "insert": entities.insert,
        "update": entities.replace if if_match is not None else entities.insert_or_replace,
        "delete": entities.delete,
    }.get(op, entities.merge if if_match is not None else entities.insert_or_merge)
    values = () if op == "delete" else (args.get("props", {}),)
    try:
        done = call(session, Row, "r", *values, **demands)
    except OptilockError as error:
        return error.status, None  # type: ignore[attr-defined]
    return (201 if op == "insert" and "Prefer" not in args else 204), done.etag


@pytest.mark.parametrize("vector", BATCHES, ids=lambda vector: vector["id"])
@pytest.mark.engines("sqlite-wal", "postgresql")
def test_several_operations(tables, watched, vector):
    tables(Row)
    session = watched()
    tags = {}
    for key, values in vector["given"]["rows"].items():
        stale = entities.insert(session, Row, key, _texts(values))
        tags[key, "stale"] = stale.etag
        tags[key, "right"] = entities.replace(session, Row, key, _texts(values), if_match="*").etag
    session.commit()
    (step,) = vector["steps"]
    operations = [_operation(one, tags) for one in step["args"]["operations"]]
    statuses, effects = wanted(vector)
    status, failed = 202 if operations else 200, None
    try:
        entities.transaction(session, operations)
    except BatchFailed as error:
        status, failed = error.status or 0, error.index
    session.commit()
    assert status in statuses
    assert failed == effects.get("failed_index")
    rows = effects.get("rows_after", {})
    count = rows.pop("<count>", None)
    assert count is None or count == session.scalar(select(func.count()).select_from(Row))
    for key, values in rows.items():
        assert props(session, key) == _texts(values)


def _texts(values: Any) -> dict[str, Any]:
    return {name: value if name == "A" else str(value) for name, value in values.items()}


def _operation(given: Any, tags: dict[Any, str]) -> Operation:
    do: Any = {
        "create": entities.insert,
        "update": entities.merge,  # the SDK's default
        "replace": entities.replace,
        "delete": entities.delete,
    }[given["op"]]
    values = () if given["op"] == "delete" else (_texts(given["props"]),)
    named = given["if_match"]
    if_match = "*" if named == "star" else tags.get((given["row"], named))
    return Operation(do, Row, given["row"], *values, if_match=if_match)
