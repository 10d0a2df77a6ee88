"""Explains text that Python could not decode: names of files, arguments of programs."""

from __future__ import annotations

import os
import sys


def undecoded(text: str) -> str | None:
    """Returns the reason why a part of the text could not be decoded, or None if all of it was decoded.

    Python decodes file names and arguments with the encoding of the locale. In a locale without UTF-8, text that is
    valid UTF-8 may then not be readable.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return None
    if _is_utf8(text):
        return (
            f"Python reads it as {sys.getfilesystemencoding()}, because of the locale (LC_ALL, LC_CTYPE or LANG) and "
            "PYTHONUTF8=0; set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        )
    return "it is not valid UTF-8"


def _is_utf8(text: str) -> bool:
    try:
        os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return False
    return True
