"""Makes text from outside safe to log and to print: passwords are blanked, control characters escaped.

Escaped are control characters, line separators, invisible characters, and those that change the direction of
writing: such text can neither control a terminal nor imitate our lines.
"""

import re
from typing import Final

_URL_PASSWORD: Final = re.compile(r"""(://[^\s/:@"']*:)[^\s/"']*@""")
_NOT_JOINERS: Final = "\u200b\u200e\u200f"  # the joiners between them are part of words and emojis
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e"
    f"{_NOT_JOINERS}"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def redact_passwords(text: str) -> str:
    """Return `text` with the password of every URL in it blanked."""
    return _URL_PASSWORD.sub(r"\1***@", text) if "://" in text else text


def escaped(text: str, *, keep: str = "") -> str:
    """Return `text` with unprintable characters escaped, except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def escaped_json(text: str) -> str:
    """Return equivalent JSON text without unprintable characters."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\n\r\t" else _escape_json(found[0]), text)


def _escape_json(character: str) -> str:
    # JSON writes a character beyond 16 bits as two surrogates.
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def _escape(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
