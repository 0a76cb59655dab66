"""The two clients: each sends requests and waits, as the steps of :mod:`.calls` ask."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import httpx2

from optilock_client.calls import Answer, Calls, Change, Method, Steps
from optilock_client.memory import Memory
from optilock_client.merging import ABSENT, Settle

__all__ = ["AsyncClient", "Client"]

T = TypeVar("T")


class Client:
    """Calls an API without overwriting what it has not read.

    ::

        with Client(httpx2.Client(base_url="https://wiki.example", auth=...)) as client:
            client.edit("/pages/1", lambda page: {**page, "title": "Home"})

    ``http`` has the address, the credentials and the timeouts; it is closed with this client.
    Redirects are not followed. A call sends at most ``attempts`` times, and waits at most
    ``longest_wait`` seconds when the server asks for a wait. The last ``remembered`` resources that
    were read are kept with their ETags.
    """

    def __init__(
        self,
        http: httpx2.Client,
        *,
        attempts: int = 10,
        longest_wait: float = 60,
        remembered: int = 256,
    ) -> None:
        self._http = http
        self._calls = Calls(http, attempts, longest_wait, Memory(remembered))

    def get(self, url: str) -> Any:
        """Read a resource. Its version is the one that ``delete`` demands."""
        return self._run(self._calls.get(url)).value

    def edit(
        self,
        url: str,
        change: Change,
        *,
        seen: Any = ABSENT,
        settle: Settle | None = None,
        method: Method = "PUT",
        unconditional: bool = False,
    ) -> Any:
        """Change a resource, and keep what other clients change at the same time.

        Args:
            url: The resource.
            change: Takes a copy of what was read. It returns the new value, or changes the copy and
                returns nothing. It is called once: what it made is merged with a newer version.
            seen: What your user has seen, and ``change`` begins with. By default it is read now.
            settle: Decides a member that both have changed.
            method: ``"PATCH"`` sends the changed members only.
            unconditional: Write a resource without a strong ETag, too. The last write wins.

        Returns:
            The value that is stored, as far as this client has sent or read it.

        Raises:
            MergeConflict: Both have changed the same member, and there is no ``settle``.
            NoETag: The server gives no strong ETag. Nothing was written.
            NoAnswer: The server cannot be reached.
            UnexpectedAnswer: The server refused, or other clients were first each time.
        """
        return self._run(self._calls.edit(url, change, seen, settle, method, unconditional))

    def once(self, url: str, json: Any, *, key: str | None = None) -> httpx2.Response:
        """POST, with one ``Idempotency-Key`` for all attempts.

        A server that knows such keys does the work once. Pass the ``key`` of an error to go on.
        """
        return self._run(self._calls.once(url, json, key))

    def delete(self, url: str, *, unconditional: bool = False) -> None:
        """Delete the version that this client has read or written last."""
        self._run(self._calls.delete(url, unconditional))

    def check_conditions(self, url: str) -> None:
        """Raise ``ConditionIgnored`` if the server does not compare ``If-Match`` of a PUT.

        It sends what is stored there, with another ETag. Choose a resource that no one else edits.
        """
        self._run(self._calls.check_conditions(url))

    def _run(self, steps: Steps[T]) -> T:
        answer: Answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, float):
                time.sleep(step)
                answer = None
                continue
            try:
                answer = self._http.send(step, follow_redirects=False)
            except httpx2.UnsupportedProtocol:
                raise
            except httpx2.RequestError as error:
                answer = error

    def __enter__(self) -> Self:
        self._http.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.__exit__(kind, error, trace)


class AsyncClient:
    """:class:`Client` for async programs, with the same calls and options."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        *,
        attempts: int = 10,
        longest_wait: float = 60,
        remembered: int = 256,
    ) -> None:
        self._http = http
        self._calls = Calls(http, attempts, longest_wait, Memory(remembered))

    async def get(self, url: str) -> Any:
        """See :meth:`Client.get`."""
        return (await self._run(self._calls.get(url))).value

    async def edit(
        self,
        url: str,
        change: Change,
        *,
        seen: Any = ABSENT,
        settle: Settle | None = None,
        method: Method = "PUT",
        unconditional: bool = False,
    ) -> Any:
        """See :meth:`Client.edit`."""
        return await self._run(self._calls.edit(url, change, seen, settle, method, unconditional))

    async def once(self, url: str, json: Any, *, key: str | None = None) -> httpx2.Response:
        """See :meth:`Client.once`."""
        return await self._run(self._calls.once(url, json, key))

    async def delete(self, url: str, *, unconditional: bool = False) -> None:
        """See :meth:`Client.delete`."""
        await self._run(self._calls.delete(url, unconditional))

    async def check_conditions(self, url: str) -> None:
        """See :meth:`Client.check_conditions`."""
        await self._run(self._calls.check_conditions(url))

    async def _run(self, steps: Steps[T]) -> T:
        answer: Answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, float):
                await anyio.sleep(step)
                answer = None
                continue
            try:
                answer = await self._http.send(step, follow_redirects=False)
            except httpx2.UnsupportedProtocol:
                raise
            except httpx2.RequestError as error:
                answer = error

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)
