"""Makes text of strangers harmless for a terminal: it can neither drive it nor look like lines of ours.

Escaped are control characters, line separators, invisible characters, and those that turn the direction of
writing, which make text look like something that it is not. Used for logs and for what commands print.
"""

import re
from typing import Final

_JOINERS_APART: Final = "\u200b\u200e\u200f"  # the joiners between them are part of words and emojis
_UNSHOWABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e"
    f"{_JOINERS_APART}"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: str, *, keep: str = "") -> str:
    """Return `text` with escapes for what a terminal would not show as it is; `keep`: characters to leave."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSHOWABLE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def escaped_json(text: str) -> str:
    """Return JSON text that says the same and can be shown on a terminal."""
    return _UNSHOWABLE.sub(lambda found: found[0] if found[0] in "\n\r\t" else _escape_json(found[0]), text)


def _escape_json(character: str) -> str:
    # Beyond 16 bits JSON writes two halves.
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def _escape(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
