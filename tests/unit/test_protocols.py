"""Reading what a client sends, byte by byte: when does it wait for an answer?"""

from __future__ import annotations

import pytest

from optilock import ConfigurationError
from optilock.testing import wire
from optilock.testing.protocols import MySQL, PostgreSQL


def untyped(code: int, body: bytes = b"") -> bytes:
    return (8 + len(body)).to_bytes(4) + code.to_bytes(4) + body


def typed(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (4 + len(body)).to_bytes(4) + body


SSL_REQUEST = untyped(80877103)
STARTUP = untyped(196608, b"user\0me\0\0")
PARSE_BIND_EXECUTE = typed(b"P", b"SELECT Q") + typed(b"B", b"S") + typed(b"E", b"Q")


def packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


@pytest.mark.parametrize(
    ("sent", "requests"),
    [
        (STARTUP, 0),
        (SSL_REQUEST + STARTUP + typed(b"p", b"secret"), 0),
        (STARTUP + typed(b"Q", b"BEGIN\0"), 1),
        (STARTUP + PARSE_BIND_EXECUTE + typed(b"S"), 1),
        (STARTUP + PARSE_BIND_EXECUTE * 1000 + typed(b"S"), 1),
        (STARTUP + (PARSE_BIND_EXECUTE + typed(b"S")) * 3, 3),
        (STARTUP + typed(b"Q", b"COMMIT\0") + typed(b"X"), 1),
    ],
    ids=["login", "login with ssl", "query", "extended", "pipeline", "three", "goodbye"],
)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_client_of_postgresql_waits_after_a_query_and_after_a_sync(sent, requests, piece) -> None:
    assert counted(PostgreSQL(), sent, piece) == requests


@pytest.mark.parametrize(
    ("sent", "requests"),
    [
        (packet(1, b"login"), 0),
        (packet(1, b"login") + packet(3, b"secret"), 0),
        (packet(0, b"\x03BEGIN"), 1),
        (packet(0, b"\x03BEGIN") + packet(0, b"\x03" + bytes(70_000)), 2),
        (packet(0, b"\x03" + bytes(70_000)) + packet(1, b"the rest"), 1),
        (packet(0, b"\x19\0\0\0\0") + packet(0, b"\x01"), 0),
        (packet(0, b""), 0),
    ],
    ids=["login", "password", "query", "two", "long", "goodbye", "empty"],
)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_client_of_mariadb_waits_after_a_command(sent, requests, piece) -> None:
    assert counted(MySQL(), sent, piece) == requests


def counted(reader, sent: bytes, piece: int) -> int:
    pieces = (sent[at : at + piece] for at in range(0, len(sent), piece))
    return sum(reader.requests(data) for data in pieces)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///app.db", "knows postgresql, mysql, mariadb"),
        ("postgresql+psycopg:///app", "without a host"),
    ],
)
def test_what_does_not_go_over_a_readable_line_is_refused(url, says) -> None:
    with pytest.raises(ConfigurationError, match=says), wire(url):
        pass
