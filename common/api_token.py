"""The bearer token of a caller of the HTTP API: from the environment or a file, never from an argument.

Every user of a machine can read the arguments of its processes. In: `TURNSTILE_API_TOKEN`, or the file that
`TURNSTILE_API_TOKEN_FILE` names, as secrets are mounted. Out: the token, checked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

TOKEN: Final = "TURNSTILE_API_TOKEN"
TOKEN_FILE: Final = "TURNSTILE_API_TOKEN_FILE"
CA_FILE: Final = "TURNSTILE_API_CA_FILE"
"""The authority that signed the API's certificate, where the system does not trust it."""


def api_token(environment: Mapping[str, str]) -> str | None:
    """Return the token, or None where none is set; raises ValueError without the token in its text."""
    token, name = environment.get(TOKEN, ""), TOKEN
    path = environment.get(TOKEN_FILE, "")
    if not token and path:
        name = TOKEN_FILE
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"{name}: {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{name}: {path}: not text in UTF-8") from None
        if not token:
            raise ValueError(f"{name}: {path}: there is no token in it")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError(f"{name}: not a token; expected printable ASCII without spaces")
    return token or None
