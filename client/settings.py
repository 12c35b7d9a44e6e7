"""The settings of a client, from the environment.

In: `TURNSTILE_AMQP_URL` and the variables of the API. Out: what `AsyncClient` takes; `InvalidSetting` names
the variable and the remedy. With `TURNSTILE_API_URL` alone, the client uses HTTP alone.
"""

from collections.abc import Mapping
from typing import Any, Final

from turnstile.client.errors import InvalidSetting
from turnstile.common.api_token import CA_FILE, api_token
from turnstile.common.domain.durations import parse_duration
from turnstile.common.known_settings import warn_of_unknown_settings
from turnstile.common.urls import INVALID_API_URL, amqp_urls, check_authority, is_api_url

_AMQP_URL: Final = "TURNSTILE_AMQP_URL"
_API_URL: Final = "TURNSTILE_API_URL"
_BYTES_MAX: Final = "TURNSTILE_PARAMETERS_BYTES_MAX"
ANSWER_TIMEOUT: Final = "TURNSTILE_ANSWER_TIMEOUT"
_WARNED: Final[set[str]] = set()
"""Unknown variables that were logged: a program may make many clients."""


def client_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword arguments of a client; raises InvalidSetting. An empty variable is not set.

    A variable `TURNSTILE_*` that nothing reads is logged as `unknown_setting`, once in a process.
    """
    warn_of_unknown_settings(environment, warned=_WARNED)
    given = {name: value for name, value in environment.items() if value}
    amqp_url, http_url, ca_file = given.get(_AMQP_URL), given.get(_API_URL), given.get(CA_FILE)
    if amqp_url is None and http_url is None:
        raise InvalidSetting(
            f"{_API_URL}: not set, and neither is {_AMQP_URL}; set the URL of the HTTP API, like "
            f"{_API_URL}=http://127.0.0.1:8000, or of the broker, or both"
        )
    if http_url is not None and not is_api_url(http_url):
        raise InvalidSetting(f"{_API_URL}: {INVALID_API_URL}")
    try:
        token = api_token(given)
    except ValueError as error:
        raise InvalidSetting(str(error)) from None
    _check(_AMQP_URL, amqp_urls, amqp_url)
    _check("", lambda path: check_authority({CA_FILE: path}, CA_FILE), ca_file)
    settings: dict[str, Any] = {
        "amqp_url": amqp_url,
        "http_url": http_url,
        "token": token,
        "ca_file": ca_file,
    }
    if (size := given.get(_BYTES_MAX)) is not None:
        if not (size.isascii() and size.isdigit()):
            raise InvalidSetting(f"{_BYTES_MAX}: expected a number of bytes, that of the executors")
        settings["parameters_bytes_max"] = int(size)
    if (timeout := given.get(ANSWER_TIMEOUT)) is not None:
        _check(ANSWER_TIMEOUT, parse_duration, timeout)
        settings["answer_timeout"] = timeout
    return settings


def _check(name: str, check: Any, value: str | None) -> None:
    if value is None:
        return
    try:
        check(value)
    except ValueError as error:
        raise InvalidSetting(f"{name}: {error}" if name else str(error)) from None
