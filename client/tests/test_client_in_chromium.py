"""The module for browsers, in Chromium: the vectors of the merge, and each call on real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import Store, lossy, served
from test_client_merging import VECTORS

from tests.support.chromium import chromium, window

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "docs" / "_static" / "optilock-client.mjs"
FORM = b"""<!doctype html><title>Form</title><form>
<input type=hidden name=seen value=first><input type=hidden name=csrf value=first>
<input name=title value=Start><input type=password name=secret>
<input type=checkbox name=public checked><textarea name=body>Text</textarea>
<select name=kinds multiple><option>a<option>b<option>c</select></form>"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def strict() -> Iterator[Store]:
    with served("strict") as store:
        yield prepared(store)


def prepared(store: Store) -> Store:
    store.files = {
        "/optilock-client.mjs": ("text/javascript", MODULE.read_bytes()),
        "/": ("text/html", FORM),
        "/favicon.ico": ("image/png", b""),
    }
    return store


@pytest.fixture
def page(browser: Any, strict: Store) -> Iterator[Any]:
    yield opened(browser, strict.address)
    for context in browser.contexts:
        context.close()


def opened(browser: Any, address: str) -> Any:
    page = window(browser, address)
    page.goto("/")
    return page


def run(page: Any, code: str, given: Any = None) -> Any:
    """Run the code with the names of the module; an error is its class, its facts and its text."""
    return page.evaluate(
        """async ([code, given]) => {
            const names = await import("/optilock-client.mjs");
            const keys = Object.keys(names);
            const work = new Function(...keys, "given", `return (async () => { ${code} })()`);
            try { return await work(...keys.map((key) => names[key]), given); }
            catch (error) {
                const { name, message } = error;
                return {...error, response: null, cause: null, error: name, text: message};
            }
        }""",
        [code, given],
    )


def sent(store: Store) -> list[str]:
    return [method for method, path, *_ in store.requests if path.startswith("/items")]


def test_a_merge_has_the_results_of_the_vectors(page: Any) -> None:
    code = """return given.map(({base, mine, theirs}) => {
        const found = merge(base, mine, theirs);
        return JSON.stringify([found.merged, found.conflicts.map(({path}) => path)]);
    })"""
    texts = page.evaluate(
        """async ([code, text]) => {
            const { merge } = await import("/optilock-client.mjs");
            return new Function("merge", "given", code)(merge, JSON.parse(text));
        }""",
        [code, json.dumps(VECTORS)],
    )
    for vector, text in zip(VECTORS, texts, strict=True):
        merged, paths = json.loads(text)
        assert paths == vector.get("conflicts", []), vector["name"]
        if "merged" in vector:
            assert merged == vector["merged"], vector["name"]


def test_an_edit_is_merged_and_change_is_called_once(strict: Store, page: Any) -> None:
    strict["/items/1"] = {"list": [1], "b": 1}

    def theirs() -> None:
        strict.before = lambda: None
        strict["/items/1"] = {"list": [1], "b": 2}

    strict.before = theirs
    code = """let calls = 0;
        const value = await edit("/items/1", (item) => { calls++; item.list.push(2); });
        return [calls, value];"""
    assert run(page, code) == [1, {"list": [1, 2], "b": 2}]
    assert strict["/items/1"] == {"list": [1, 2], "b": 2}
    assert sent(strict) == ["GET", "PUT", "GET", "PUT"]


def test_a_conflict_has_three_values_and_can_be_settled(strict: Store, page: Any) -> None:
    strict["/items/1"] = {"a": 5, "b": 1}
    code = """const seen = {a: 1, b: 1};
        return edit("/items/1?token=1", (item) => ({...item, a: 2}), {seen, ...given});"""
    told = run(page, code, {})
    assert told["error"] == "MergeConflict"
    assert told["conflicts"] == [{"path": ["a"], "base": 1, "mine": 2, "theirs": 5}]
    assert "token" not in told["text"]
    assert sent(strict) == ["GET"]
    settled = code.replace("...given", "settle: ({mine, theirs}) => mine + theirs")
    assert run(page, settled) == {"a": 7, "b": 1} == strict["/items/1"]


def test_unclear_answers_are_asked_again_and_a_post_keeps_its_key(strict: Store, page: Any) -> None:
    unclear: list[Any] = [(503, {"Retry-After": "0"}, b""), (409, {"Retry-After": "0"}, b"")]
    strict.canned = unclear * 2
    code = "return (await once('/items', {goods: 'tea'})).status"
    assert run(page, code) == 201
    keys = {
        headers["Idempotency-Key"] for method, _, headers, _ in strict.requests if method == "POST"
    }
    assert len(keys) == 1
    assert [*strict.items] == ["/items/1", "/items/2"]
    strict.canned = [(503, {"Retry-After": "61"}, b"")]
    told = run(page, code)
    assert (told["error"], told["status"], bool(told["key"])) == ("UnexpectedAnswer", 503, True)


def test_an_edit_whose_answer_was_lost_is_stored_once(strict: Store, browser: Any) -> None:
    losing: list[int] = []
    with lossy(int(strict.address.rpartition(":")[2]), lambda number: number in losing) as line:
        page = opened(browser, f"http://127.0.0.1:{line.port}")
        run(page, "return null")  # the module is there
        losing.append(line.count + 2)
        code = "return edit('/items/1', (item) => ({...item, a: 2}))"
        assert run(page, code) == {"a": 2, "b": 1} == strict["/items/1"]
        assert line.lost == 1
    assert sent(strict).count("GET") == 2
    for context in browser.contexts:
        context.close()


@pytest.mark.parametrize("kind", ["untagged", "weak"])
def test_a_server_without_strong_etags_gets_no_write_unless_that_is_wanted(
    browser: Any, kind: str
) -> None:
    with served(kind) as store:
        page = opened(browser, prepared(store).address)
        code = "return edit('/items/1', (item) => ({...item, a: 2}), given)"
        assert run(page, code, {})["error"] == "NoETag"
        assert sent(store) == ["GET"]
        assert run(page, code, {"unconditional": True}) == {"a": 2, "b": 1} == store["/items/1"]
        for context in browser.contexts:
            context.close()


def test_api_carries_the_version_that_was_read_or_written(strict: Store, page: Any) -> None:
    code = """const first = await api("PUT", "/items/1", {a: 2});
        await api("GET", "/items/1");
        const second = await api("PUT", "/items/1", {a: 2});
        const third = await api("DELETE", "/items/1");
        return [first.status, second.status, third.status];"""
    assert run(page, code) == [428, 200, 204]


def test_a_login_page_is_no_answer_to_an_edit(strict: Store, page: Any) -> None:
    code = "return edit('/items/1', (item) => ({...item, a: 2}))"
    read = (200, strict.tag("/items/1"), b'{"a": 1, "b": 1}')
    for canned in ([(302, {"Location": "/"}, b"")], [read, (302, {"Location": "/"}, b"")]):
        strict.canned = [*canned]
        told = run(page, code)
        assert told["error"] == "UnexpectedAnswer"
        assert "login" in told["text"]
    strict.canned = [(200, {}, b"<h1>Log in</h1>")]
    assert run(page, code)["error"] == "UnexpectedAnswer"
    assert strict["/items/1"] == {"a": 1, "b": 1}


def test_typed_text_comes_back_after_a_login_with_the_version_that_it_was_typed_for(
    strict: Store, page: Any
) -> None:
    keep = "keep(document.forms[0], 'edit 1')"
    run(page, keep)
    page.fill("[name=title]", "Typed")
    page.fill("[name=secret]", "hunter2")
    page.uncheck("[name=public]")
    page.select_option("[name=kinds]", ["a", "c"])
    assert "hunter2" not in page.evaluate("JSON.stringify(sessionStorage)")
    kind, content = strict.files["/"]
    strict.files["/"] = (kind, content.replace(b"first", b"second"))
    page.goto("/?login")
    page.goto("/")
    assert page.input_value("[name=title]") == "Start"
    run(page, keep)
    values = "[...document.forms[0].elements].map((one) => one.value)"
    assert page.evaluate(values) == ["first", "second", "Typed", "", "on", "Text", "a"]
    assert not page.is_checked("[name=public]")
    chosen = "[...document.forms[0].kinds.selectedOptions].map((one) => one.value)"
    assert page.evaluate(chosen) == ["a", "c"]
    run(page, "forget('edit 1')")
    page.goto("/")
    run(page, keep)
    assert page.input_value("[name=title]") == "Start"


def test_the_examples_of_the_page_run_as_printed(strict: Store, page: Any) -> None:
    text = (ROOT / "docs" / "how-to" / "web" / "clients.md").read_text("utf-8")
    (code,) = [part.split("```")[0] for part in text.split("```js\n")[1:]]
    strict["/pages/1"] = {"title": "Start", "body": "Text"}
    _, _, work = code.partition('"./optilock-client.mjs";\n')
    assert run(page, work) is None
    assert strict["/pages/1"] == {"title": "Home", "body": "Text"}
    assert [*strict.items][-1] == "/items/3"  # the order
