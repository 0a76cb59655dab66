"""Each call on real servers that are not optilock's; waits by their steps, without a clock."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from loopback import Store, lossy, served
from optilock_client import (
    AsyncClient,
    Client,
    ClientError,
    ConditionIgnored,
    MergeConflict,
    NoAnswer,
    NoETag,
    UnexpectedAnswer,
)
from optilock_client.calls import Calls
from optilock_client.memory import Memory

ITEM = "/items/1"
NOW: tuple[int, dict[str, str], bytes] = (503, {"Retry-After": "0"}, b"")


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    with ExitStack() as clients:

        def made(store: Store, port: int | None = None, **options: Any) -> Client:
            address = f"http://127.0.0.1:{port}" if port else store.address
            http = httpx2.Client(base_url=address, trust_env=False)
            return clients.enter_context(Client(http, **options))

        yield made


@pytest.fixture
def strict() -> Iterator[Store]:
    with served("strict") as store:
        yield store


@pytest.fixture
def client(strict: Store, client_of: Callable[..., Client]) -> Client:
    return client_of(strict)


def once_before(store: Store, work: Callable[[], object]) -> None:
    """Let another client do this before the next write."""

    def before() -> None:
        store.before = lambda: None
        work()

    store.before = before


def with_member(name: str, value: Any) -> Callable[[Any], Any]:
    return lambda item: {**item, name: value}


# -- edit ------------------------------------------------------------------------------------------


def test_an_edit_reads_and_writes_with_the_etag(strict: Store, client: Client) -> None:
    tag = strict.tag(ITEM)["ETag"]
    assert client.edit(ITEM, with_member("a", 2)) == {"a": 2, "b": 1} == strict[ITEM]
    (_, _, read, _), (_, _, wrote, _) = strict.requests
    assert strict.methods() == ["GET", "PUT"]
    assert wrote["If-Match"] == tag
    assert read["Accept-Encoding"] == "identity"  # the ETag of what a PUT replaces

    def in_place(item: Any) -> None:
        item["b"] = 3

    client.edit(ITEM, in_place)
    assert strict[ITEM] == {"a": 2, "b": 3}
    strict.requests.clear()
    assert client.edit(ITEM, with_member("b", 3)) == {"a": 2, "b": 3}
    assert strict.methods() == ["GET"]  # there was nothing to write


def test_an_edit_is_merged_and_change_is_called_once(strict: Store, client: Client) -> None:
    strict[ITEM] = {"list": [1], "b": 1}
    once_before(strict, lambda: strict.__setitem__(ITEM, {"list": [1], "b": 2}))
    called = []

    def append(item: Any) -> None:
        called.append(copy := [*item["list"]])
        item["list"] = [*copy, 2]

    assert client.edit(ITEM, append) == {"list": [1, 2], "b": 2} == strict[ITEM]
    assert called == [[1]]
    assert strict.methods() == ["GET", "PUT", "GET", "PUT"]


def test_an_edit_begins_with_what_a_user_has_seen(strict: Store, client: Client) -> None:
    """The user read a minute ago; what is stored now may be read first by the edit itself."""
    seen = client.get(ITEM)
    strict[ITEM] = {"a": 5, "b": 1}
    with pytest.raises(MergeConflict) as caught:
        client.edit(ITEM, with_member("a", 2), seen=seen)
    (conflict,) = caught.value.conflicts
    assert (conflict.path, conflict.base, conflict.mine, conflict.theirs) == (("a",), 1, 2, 5)
    assert caught.value.theirs == strict[ITEM] == {"a": 5, "b": 1}
    assert client.edit(ITEM, with_member("a", 2), seen=caught.value.theirs)["a"] == 2
    settled = client.edit(ITEM, with_member("a", 9), seen=seen, settle=lambda both: both.theirs)
    assert settled["a"] == 2


def test_a_patch_sends_the_changed_members(strict: Store, client: Client) -> None:
    once_before(strict, lambda: strict.__setitem__(ITEM, {"a": 1, "b": 2}))
    client.edit(ITEM, with_member("a", 2), method="PATCH")
    assert strict[ITEM] == {"a": 2, "b": 2}
    assert strict.requests[-1][3] == {"a": 2}
    strict[ITEM] = {"o": {"x": 1, "y": 1}}
    with pytest.raises(ClientError, match="Send it with method='PUT'"):
        client.edit(ITEM, with_member("o", {"x": 1}), method="PATCH")


def test_409_is_merged_if_another_client_was_first_and_raised_if_not(
    strict: Store, client: Client
) -> None:
    strict.canned = [*canned_read(strict), (409, {}, b"")]
    with pytest.raises(UnexpectedAnswer, match="PUT was answered 409") as caught:
        client.edit(ITEM, with_member("a", 2))
    assert caught.value.status == 409
    strict.canned = [*canned_read(strict), (409, {}, b"")]
    strict[ITEM] = {"a": 1, "b": 7}
    assert client.edit(ITEM, with_member("a", 2)) == {"a": 2, "b": 7} == strict[ITEM]


def canned_read(store: Store) -> list[Any]:
    return [(200, store.tag(ITEM), store.items[ITEM].encode())]


@pytest.mark.parametrize("canned", [NOW, (500, {}, b""), (504, {}, b""), None], ids=repr)
def test_an_unclear_answer_is_read_again(strict: Store, client: Client, canned: Any) -> None:
    strict.canned = [*canned_read(strict), canned]
    assert client.edit(ITEM, with_member("a", 2)) == strict[ITEM] == {"a": 2, "b": 1}
    assert strict.methods() == ["GET", "PUT", "GET", "PUT"]


def test_an_edit_whose_answer_was_lost_is_stored_once(
    strict: Store, client_of: Callable[..., Client]
) -> None:
    with lossy(int(strict.address.rpartition(":")[2]), lambda number: number == 2) as line:
        client = client_of(strict, line.port)
        assert client.edit(ITEM, with_member("a", 2)) == {"a": 2, "b": 1}
        assert strict.methods() == ["GET", "PUT", "GET"]


def test_a_conflict_after_a_lost_answer_says_that_it_may_be_the_own_write(
    strict: Store, client_of: Callable[..., Client]
) -> None:
    """A server that stores another form of what it gets."""
    strict.stores = lambda value: {**value, "a": f"<{value['a']}>"}
    with lossy(int(strict.address.rpartition(":")[2]), lambda number: number == 2) as line:
        client = client_of(strict, line.port)
        with pytest.raises(MergeConflict, match="whose answer was lost, may be that change"):
            client.edit(ITEM, with_member("a", 2))
        assert strict[ITEM] == {"a": "<2>", "b": 1}


# -- servers that promise less ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["untagged", "weak"])
def test_a_server_without_strong_etags_gets_no_write_unless_that_is_wanted(
    store: Callable[[str], Store], client_of: Callable[..., Client], kind: str
) -> None:
    lesser = store(kind)
    client = client_of(lesser)
    assert client.get(ITEM) == {"a": 1, "b": 1}
    for call in (lambda: client.edit(ITEM, with_member("a", 2)), lambda: client.delete(ITEM)):
        with pytest.raises(NoETag, match=r"no strong ETag.*Nothing was written"):
            call()
    with pytest.raises(NoETag):
        client.check_conditions(ITEM)
    assert {*lesser.methods()} == {"GET"}
    client.edit(ITEM, with_member("a", 2), unconditional=True)
    assert lesser[ITEM]["a"] == 2
    assert "If-Match" not in lesser.requests[-1][2]
    client.delete(ITEM, unconditional=True)
    assert ITEM not in lesser.items


def test_a_server_that_ignores_if_match_is_found_out_by_asking(
    store: Callable[[str], Store], client_of: Callable[..., Client], client: Client, strict: Store
) -> None:
    """No answer of it shows that it loses the other client's change."""
    lax = store("lax")
    once_before(lax, lambda: lax.__setitem__(ITEM, {"a": 1, "b": 2}))
    careless = client_of(lax)
    careless.edit(ITEM, with_member("a", 2))
    assert lax[ITEM] == {"a": 2, "b": 1}
    with pytest.raises(ConditionIgnored, match="stored a PUT whose If-Match did not match"):
        careless.check_conditions(ITEM)
    assert lax[ITEM] == {"a": 2, "b": 1}
    client.check_conditions(ITEM)
    assert strict[ITEM] == {"a": 1, "b": 1}


def test_428_is_explained(strict: Store, client: Client) -> None:
    strict.canned = [(200, {}, b'{"a": 1}')]
    with pytest.raises(UnexpectedAnswer, match="stores no write without If-Match"):
        client.edit(ITEM, with_member("a", 2), unconditional=True)


@pytest.mark.parametrize(
    ("canned", "words"),
    [
        ((302, {"Location": "/login"}, b""), "redirect, perhaps to a login"),
        ((200, {}, b"<h1>Log in</h1>"), "no JSON"),
        ((204, {}, b""), "no JSON"),
        ((404, {}, b""), "nothing there"),
        ((418, {}, b"pot"), r"Read the answer in \.body"),
        ((501, {}, b""), "The server failed"),
    ],
    ids=["redirect", "page", "empty", "404", "418", "501"],
)
def test_an_answer_that_is_no_representation_is_raised(
    strict: Store, client: Client, canned: Any, words: str
) -> None:
    strict.canned = [canned]
    with pytest.raises(UnexpectedAnswer, match=words) as caught:
        client.edit(ITEM, with_member("a", 2))
    assert (caught.value.status, caught.value.body) == (canned[0], canned[2])
    strict.canned = [*canned_read(strict), (303, {"Location": ITEM}, b"")]
    with pytest.raises(UnexpectedAnswer, match="PUT was answered 303"):
        client.edit(ITEM, with_member("a", 2))
    assert strict[ITEM] == {"a": 1, "b": 1}


def test_a_write_that_is_only_accepted_is_not_told_as_stored(strict: Store, client: Client) -> None:
    strict.canned = [*canned_read(strict), (202, {}, b"")]
    with pytest.raises(UnexpectedAnswer, match=r"PUT was answered 202\. The server may store"):
        client.edit(ITEM, with_member("a", 2))
    strict.canned = [(202, {}, b"")]
    with pytest.raises(UnexpectedAnswer, match="DELETE was answered 202"):
        client.delete(ITEM)


# -- get, once, delete -----------------------------------------------------------------------------


def test_a_resource_that_has_not_changed_is_not_sent_again(strict: Store, client: Client) -> None:
    first, second = client.get(ITEM), client.get(ITEM)
    assert first == second
    assert first is not second
    first["a"] = "changed by the program"
    assert client.get(ITEM) == second
    assert strict.requests[-1][2]["If-None-Match"] == strict.tag(ITEM)["ETag"]
    strict[ITEM] = {"a": 3}
    assert client.get(ITEM) == {"a": 3}


def test_the_memory_is_bounded(strict: Store, client_of: Callable[..., Client]) -> None:
    client = client_of(strict, remembered=2)
    for number in range(4):
        strict[f"/items/{number}"] = number
        client.get(f"/items/{number}")
    with pytest.raises(NoETag):
        client.delete("/items/1")
    client.delete("/items/2")
    assert "/items/2" not in strict.items


def test_a_post_is_sent_again_with_its_key_and_done_once(strict: Store, client: Client) -> None:
    in_use = (409, {"Retry-After": "0"}, b"")
    strict.canned = [NOW, in_use, (429, {"Retry-After": "0"}, b"")]
    answer = client.once("/items", {"goods": "tea"})
    assert (answer.status_code, answer.headers["Location"]) == (201, "/items/2")
    (key,) = {headers["Idempotency-Key"] for _, _, headers, _ in strict.requests}
    assert key[0] == key[-1] == '"'
    assert len(strict.items) == 2
    strict.canned = [(422, {}, b"")]
    with pytest.raises(UnexpectedAnswer, match="Idempotency-Key is of another request"):
        client.once("/items", {"goods": "gold"}, key="mine")
    with pytest.raises(ValueError, match="printable ASCII"):
        client.once("/items", {}, key='"')


def test_a_post_whose_answers_are_lost_is_done_once_and_can_be_sent_again(
    strict: Store, client_of: Callable[..., Client]
) -> None:
    with lossy(int(strict.address.rpartition(":")[2]), lambda number: number < 4) as line:
        client = client_of(strict, line.port, attempts=2)
        with pytest.raises(NoAnswer, match=r"key=error\.key") as caught:
            client.once("/items", {"goods": "tea"})
        assert caught.value.key
        answer = client.once("/items", {"goods": "tea"}, key=caught.value.key)
        assert answer.headers["Location"] == "/items/2"
    assert len(strict.requests) == 4
    assert len(strict.items) == 2


def test_a_delete_is_of_the_version_that_was_read(
    strict: Store, client: Client, client_of: Callable[..., Client]
) -> None:
    client.get(ITEM)
    strict[ITEM] = {"a": "theirs"}
    with pytest.raises(UnexpectedAnswer, match=r"412.*Read it again"):
        client.delete(ITEM)
    with pytest.raises(NoETag, match=r"Call get\(\) first"):
        client.delete(ITEM)
    client.edit(ITEM, with_member("a", 2))
    client.delete(ITEM)  # its own version
    assert strict.items == {}
    for kind in ("strict", "lax"):  # 412 and 404 of what is gone
        with (
            served(kind) as store,
            lossy(int(store.address.rpartition(":")[2]), lambda number: number == 2) as line,
        ):
            other = client_of(store, line.port)
            other.get(ITEM)
            other.delete(ITEM)
            assert store.items == {}


@pytest.mark.anyio
async def test_the_async_client_has_the_same_calls(strict: Store) -> None:
    async with AsyncClient(httpx2.AsyncClient(base_url=strict.address, trust_env=False)) as client:
        assert await client.get(ITEM) == {"a": 1, "b": 1}
        once_before(strict, lambda: strict.__setitem__(ITEM, {"a": 1, "b": 2}))
        assert await client.edit(ITEM, with_member("a", 2)) == {"a": 2, "b": 2}
        await client.check_conditions(ITEM)
        strict.canned = [None, NOW]
        assert (await client.once("/items", {"goods": "tea"})).status_code == 201
        await client.delete(ITEM)
        assert [*strict.items] == ["/items/2"]


# -- waits and errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_a_call_waits_as_long_as_the_server_asks(status: int) -> None:
    with httpx2.Client(base_url="http://x") as http:
        steps = Calls(http, 3, 60, Memory(1)).once("/items", {}, None)
        assert isinstance(next(steps), httpx2.Request)
        waited = steps.send(httpx2.Response(status, headers={"Retry-After": "7"}))
        assert isinstance(waited, float)
        assert 7 <= waited < 8
        assert isinstance(next(steps), httpx2.Request)
        with pytest.raises(UnexpectedAnswer) as caught:
            steps.send(httpx2.Response(status, headers={"Retry-After": "61"}))
        assert caught.value.retry_after == 61


def test_errors_show_no_secret_and_no_body_and_can_be_pickled(
    strict: Store, client_of: Callable[..., Client]
) -> None:
    client = client_of(strict)
    address = strict.address.replace("//", "//user:pass%77ord@") + ITEM + "?token=s3cret#part"
    found: list[ClientError] = []
    strict[ITEM] = {"a": "value of another user", "b": 1}
    with pytest.raises(MergeConflict) as conflict:
        client.edit(address, with_member("a", "mine"), seen={"a": 1, "b": 1})
    client.get(address)
    strict[ITEM] = {"a": 2}
    with pytest.raises(UnexpectedAnswer) as refused:
        client.delete(address)
    assert b"of another user" in refused.value.body
    with pytest.raises(NoETag) as untagged:
        client.delete(address)
    strict.canned = [None, None]
    with pytest.raises(NoAnswer) as silent:
        client_of(strict, attempts=2).once(address, {"secret": "of mine"}, key="k-1")
    found += [conflict.value, refused.value, untagged.value, silent.value]
    for error in found:
        assert str(error).startswith(("edit(http://127", "delete(http://127", "once(http://127"))
        assert ITEM + ")" in str(error)
        for word in ("user:", "%77", "password", "token", "s3cret", "of another", "mine", "part"):
            assert word not in str(error) + repr(error), (word, error)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert isinstance(silent.value.__cause__, httpx2.RequestError)
    assert silent.value.key == "k-1"


def test_a_wrong_address_is_not_tried_again() -> None:
    with Client(httpx2.Client()) as client, pytest.raises(httpx2.UnsupportedProtocol):
        client.get("ftp://example.org/items/1")
