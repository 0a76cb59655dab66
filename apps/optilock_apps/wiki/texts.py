"""The names and texts that a page can have.

A name stands in an address, so it has letters (with their accents and vowel signs), digits, and a
few signs between them. A text has lines that end in one newline, however the browser has sent them
(HTML has both, CR and LF).
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["LONGEST", "LONGEST_NAME", "BadText", "author_of", "name_of", "text_of"]

#: Characters.
LONGEST, LONGEST_NAME = 100_000, 100

#: Of a name as it was sent: no character of a name has more parts.
_LONGEST_SENT = 4 * LONGEST_NAME
_NAME = re.compile(r"\w[\w .,'()-]*")
#: Control characters, those that turn text around, and halves of a character.
_UNSEEN = ("Cc", "Cf", "Cs")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class BadText(ValueError):
    """A name or a text that no page can have; ``status`` is the one of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


def name_of(given: str) -> str:
    """Return the name without white space around it.

    Raises:
        BadText: no page can have the name.
    """
    name = given.strip()
    if len(name) <= _LONGEST_SENT:  # for many accents of one letter the next line takes minutes
        name = unicodedata.normalize("NFC", name)
    if len(name) > LONGEST_NAME:
        raise BadText(f"The name of a page has at most {LONGEST_NAME} characters.")
    if not _NAME.fullmatch(name[:1] + _without_marks(name[1:])):
        raise BadText(
            "The name of a page begins with a letter or a digit; between letters and digits there"
            " can be spaces and the signs . , ' - _ ( )."
        )
    return name


def _without_marks(name: str) -> str:
    """Accents and vowel signs belong to the letter before them, and are none themselves."""
    return "".join(sign for sign in name if not unicodedata.category(sign).startswith("M"))


def author_of(given: str) -> str:
    """Return the signature of an editor, in one line; "": there is none.

    Raises:
        BadText: it is too long, or has an invalid character.
    """
    author = " ".join(given.split())
    if len(author) > LONGEST_NAME or any(unicodedata.category(one) in _UNSEEN for one in author):
        raise BadText(f"A signature has at most {LONGEST_NAME} characters, all of them visible.")
    return author


def text_of(given: str) -> str:
    """Return the text, each line ended by a newline.

    Raises:
        BadText: it is too long (413), or has an invalid character (400).
    """
    text = given.replace("\r\n", "\n").replace("\r", "\n")
    if _NO_TEXT.search(text):
        raise BadText("The text holds a NUL, or half of a character: no database stores that.")
    if len(text) > LONGEST:
        raise BadText(
            f"The text has {len(text):,} characters, and a page at most {LONGEST:,}.", status=413
        )
    return text
