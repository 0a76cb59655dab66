"""What workers log: numbers, names and kinds of errors; no body, receipt or text of an error."""

from __future__ import annotations

import logging

from optilock.queue.messages import Message

__all__ = ["failed", "lost", "no_answer"]

_log = logging.getLogger("optilock.queue")


def failed(queue: str, message: Message, error: BaseException) -> None:
    _log.warning(
        "The handler of the queue %s failed on message %s (delivery %s): %s",
        queue,
        message.id,
        message.receives,
        type(error).__name__,
    )


def lost(queue: str, number: int) -> None:
    _log.warning(
        "Message %s of the queue %s was handled, and is somebody else's by now: its visibility"
        " timeout was over.",
        number,
        queue,
    )


def no_answer(queue: str, error: BaseException) -> None:
    _log.warning("The queue %s does not answer: %s", queue, type(error).__name__)
