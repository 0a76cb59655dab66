"""Checks of a resource that the probe makes and deletes, and of a POST that is sent twice."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

from optilock.errors import ConfigurationError
from optilock.probe import rules
from optilock.probe.clients import Client, Clients
from optilock.probe.resource import Resource
from optilock.probe.rules import Finding, Outcome

_CREATE = {"If-None-Match": "*"}


class NewResource:
    """An address at which there is nothing yet."""

    def __init__(self, url: str, like: Resource) -> None:
        self.url, self._like = url, like
        self._one, self._two = like.clients.one, like.clients.two
        status = self._look()[0]
        if status not in (404, 410):
            raise ConfigurationError(
                f"--new must name an address without a resource, and its GET was answered {status}."
                " Nothing was written."
            )

    def check(self, *, strict: bool) -> Iterator[Finding]:
        """Create it twice, delete it with and without its ETag, and write it when it is gone."""
        made = self._put(self._one, _CREATE)
        if not 200 <= made < 300:
            found = f"{made}: it was not created"
            yield Finding(Outcome.UNCLEAR, "PUT creates", found, rules.IF_NONE_MATCH)
            return
        try:
            yield self._again(made)
            old = self._look()[1]
            if old is None:
                yield Finding(Outcome.UNCLEAR, "DELETE", "no ETag to send", rules.ETAG)
                return
            yield self._stale_delete(old)
            yield self._unconditional_delete(strict=strict)
            yield self._brought_back(old)
        finally:
            self._remove()

    def _again(self, made: int) -> Finding:
        again = self._put(self._two, _CREATE)
        outcome, found = Outcome.SAFE, f"{made}, then {again}"
        if 200 <= again < 300:
            outcome, found = Outcome.LOSES, f"{made}, then {again}: it replaced the first one"
        elif again != 412:
            outcome = Outcome.NOTE
        return Finding(outcome, "create twice with If-None-Match: *", found, rules.IF_NONE_MATCH)

    def _stale_delete(self, old: str) -> Finding:
        check = "DELETE with a stale ETag"
        moved = self._put(self._one, {"If-Match": old})
        if not 200 <= moved < 300:
            return Finding(Outcome.UNCLEAR, check, f"PUT was answered {moved}", rules.IF_MATCH)
        status = self._delete(old)
        gone = self._gone()
        outcome, found = Outcome.SAFE, str(status)
        if gone:
            outcome, found = Outcome.LOSES, f"{status}: it deleted an edit that it had not seen"
        elif 200 <= status < 300 or status >= 500:
            outcome, found = Outcome.UNCLEAR, f"{status}, and it is still there"
        elif status != 412:
            outcome, found = Outcome.NOTE, f"{status}, not 412"
        if gone:
            self._put(self._one, _CREATE)
        return Finding(outcome, check, found, rules.IF_MATCH)

    def _unconditional_delete(self, *, strict: bool) -> Finding:
        status = self._delete(None)
        outcome, found = Outcome.SAFE, str(status)
        if self._gone():
            outcome = Outcome.LOSES if strict else Outcome.NOTE
            found = f"{status}: a client that forgets it deletes unseen edits"
        return Finding(outcome, "DELETE without a condition", found, rules.REQUIRED)

    def _brought_back(self, old: str) -> Finding:
        check = "PUT with the ETag of what is deleted"
        self._remove()
        if not self._gone():
            return Finding(Outcome.UNCLEAR, check, "DELETE is refused: what was made stays")
        status = self._put(self._two, {"If-Match": old})
        back = not self._gone()
        found = f"{status}: it is there again" if back else str(status)
        outcome = Outcome.LOSES if back else Outcome.SAFE
        return Finding(outcome, check, found, rules.IF_MATCH)

    def _put(self, client: Client, condition: dict[str, str]) -> int:
        like = self._like
        text = like.place.changed(self._renamed(like.first.text), like.place.new())
        fields = {"Content-Type": like.first.kind, **condition}
        return client.send("PUT", self.url, fields, text.encode()).status_code

    def _renamed(self, text: str) -> str:
        """Give the body the new name, if it contains the last part of its address."""
        old, new = (urlsplit(url).path.rpartition("/")[2] for url in (self._like.url, self.url))
        try:
            body = json.loads(text)
        except ValueError:
            stems = old.partition(".")[0], new.partition(".")[0]
            return re.sub(rf"\b{re.escape(stems[0])}\b", stems[1], text)
        for name, value in body.items():
            if str(value) == old:
                body[name] = int(new) if isinstance(value, int) and new.isdigit() else new
        return json.dumps(body)

    def _delete(self, tag: str | None) -> int:
        fields = {} if tag is None else {"If-Match": tag}
        return self._two.send("DELETE", self.url, fields).status_code

    def _look(self) -> tuple[int, str | None]:
        answer = self._one.send("GET", self.url)
        return answer.status_code, answer.headers.get("ETag")

    def _gone(self) -> bool:
        return self._look()[0] in (404, 410)

    def _remove(self) -> None:
        status, tag = self._look()
        if status == 200:
            self._delete(tag)


def check_post(url: str, body: str, clients: Clients, kept: str) -> Iterator[Finding]:
    """Send a POST twice with one key, and delete what it has created (201), but never ``kept``."""
    fields = {"Idempotency-Key": f'"{secrets.token_hex(16)}"', "Content-Type": "application/json"}
    answers = [one.send("POST", url, fields, body.encode()) for one in (clients.one, clients.two)]
    statuses = [answer.status_code for answer in answers]
    places = [
        answer.headers.get("Location") if answer.status_code == 201 else None for answer in answers
    ]
    same = places[0] == places[1] and answers[0].text == answers[1].text
    outcome, found = Outcome.UNCLEAR, f"{statuses[0]}, then {statuses[1]}"
    if answers[0].is_success and (same or statuses[1] in (409, 422)):
        outcome = Outcome.SAFE
    elif all(answer.is_success for answer in answers):
        outcome, found = Outcome.BREAKS, f"{found}: it was done twice"
    if answers[0].is_success and not any(places):
        found += "; what it made stays, because no Location names it"
    yield Finding(outcome, "POST twice with one Idempotency-Key", found, rules.KEY)
    for place in {urljoin(url, place) for place in places if place}:
        at = urlsplit(place)
        old = [urlsplit(one).path.rstrip("/") for one in (url, kept)]
        # Credentials go to no other server.
        if at[:2] == urlsplit(url)[:2] and at.path.rstrip("/") not in old:
            tag = clients.one.send("GET", place).headers.get("ETag")
            clients.one.send("DELETE", place, {"If-Match": tag} if tag else {})
