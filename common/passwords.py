"""Blanks passwords in text that we did not write: a server's error, a library's, a command line."""

import re
from typing import Final

_OF_URL: Final = re.compile(r"""(://[^\s/:@"']*:)[^\s/"']*@""")


def without_passwords(text: str) -> str:
    """Return `text` with the password of every URL in it blanked."""
    return _OF_URL.sub(r"\1***@", text) if "://" in text else text
