"""URLs that ends are POSTed to, as strangers write them: checked before anything is stored.

What an address may be is decided where the connection is made (`executor.webhooks.addresses`): a name that is
harmless today may lead anywhere tomorrow.
"""

from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, StringConstraints

_EXAMPLE: Final = "like 'https://example.org/hooks/turnstile'"


def check_callback_url(url: str) -> str:
    """Return `url` if something can be POSTed to it; raises ValueError with the rule otherwise."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError(f"contains blanks or control characters; expected a URL {_EXAMPLE}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"not a URL; expected one {_EXAMPLE}") from None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"expected an http or https URL with a host, {_EXAMPLE}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "a name or password in the URL would be stored and shown; leave it out and check the signature"
        )
    return url


CallbackUrl = Annotated[
    str,
    StringConstraints(pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://", max_length=2048),
    AfterValidator(check_callback_url),
]
