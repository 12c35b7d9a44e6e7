"""The way from a command to the HTTP API.

In: `TURNSTILE_API_URL` and the token (`common.api_token`), paths and JSON. Out: JSON as the API gave it, or
the two ways to fail: `ApiRefused` (exit code 1) and `ApiUnreachable` (3), each with what to do about it.
"""

import contextlib
import functools
import ssl
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Concatenate, Final, NoReturn, ParamSpec
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, Field, SecretStr

from turnstile.common.api_token import CA_FILE, TOKEN, TOKEN_FILE
from turnstile.common.api_token import api_token as token_in
from turnstile.common.command_line import (
    ENVIRONMENT_ONLY,
    EXIT_FAILED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    CommandFailed,
    with_options,
)
from turnstile.common.tls import check_authority, explained

Rest = ParamSpec("Rest")

_PREFIX: Final = "/api/v1"
# The API answers within 30 s, or says that it cannot.
_TIMEOUT: Final = httpx.Timeout(35.0, connect=5.0)
_NOBODY_HOME: Final = (502, 503, 504)
_JSON: Final = {b"Content-Type": b"application/json"}


class ApiSettings(BaseModel):
    """Where the HTTP API is, and the way in."""

    api_url: str = Field(default="http://127.0.0.1:8000", description="The HTTP API.")
    api_token: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""), description="Bearer token, where the API wants one."
    )
    api_token_file: str = Field(default="", description="A file that holds the bearer token.")
    api_ca_file: str = Field(
        default="", description="The authority that signed the API's certificate, in PEM; none: the system's."
    )


class ApiUnreachable(CommandFailed):
    """There was no answer, or none of use: whether a change happened is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=EXIT_UNREACHABLE)


class Json(dict[str, Any]):
    """An object of the API, as it came."""

    def __missing__(self, field: str) -> NoReturn:
        # Another program, or a version we cannot read: either way not what we were sent to.
        raise ApiUnreachable(
            f"the answer has no field {field!r}, so it is not one of this version of Turnstile; "
            "look at TURNSTILE_API_URL"
        )


class ApiRefused(CommandFailed):
    """The API answered with a problem (RFC 9457)."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.code = str(problem["code"])
        self.problem = problem
        super().__init__(f"{self.code}: {problem.get('detail', 'no detail')}", exit_code=EXIT_FAILED)


class Api:
    """One command's connection; kept open between its calls."""

    def __init__(self, url: str, token: str, *, trust: ssl.SSLContext | None = None) -> None:
        self._url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self._url + _PREFIX,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=_TIMEOUT,
            verify=True if trust is None else trust,
            # Proxies of the environment are for other machines, not for this one.
            trust_env=not _is_loopback(url),
        )

    def get(
        self,
        path: str,
        query: Mapping[str, str | int | Sequence[str] | None] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Json:
        """Read; parts of the query that are None are left out."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        timeout = _TIMEOUT if timeout_seconds is None else httpx.Timeout(timeout_seconds)
        return self._ask("GET", path, params=given, timeout=timeout)

    def post(self, path: str, body: bytes = b"{}", *, key: str | None = None) -> Json:
        """Ask for something; `body` is JSON, `key` an idempotency key."""
        keyed = {} if key is None else {b"Idempotency-Key": key.encode(errors="surrogateescape")}
        return self._ask("POST", path, content=body, headers={**_JSON, **keyed})

    def put(self, path: str, body: bytes) -> Json:
        """Store; `body` is JSON."""
        return self._ask("PUT", path, content=body, headers=_JSON)

    def patch(self, path: str, body: bytes) -> Json:
        """Change; `body` is JSON."""
        return self._ask("PATCH", path, content=body, headers=_JSON)

    def delete(self, path: str, query: Mapping[str, str]) -> Json:
        """Delete."""
        return self._ask("DELETE", path, params=query)

    def close(self) -> None:
        """End the connection."""
        self._http.close()

    def _ask(self, method: str, path: str, **request: Any) -> Json:
        try:
            answer = self._http.request(method, path, **request)
        except UnicodeEncodeError:
            raise CommandFailed("the arguments are not text in UTF-8", exit_code=EXIT_USAGE) from None
        except UnicodeError:
            raise CommandFailed(
                "TURNSTILE_API_URL: its host is no name of a host; expected one like http://127.0.0.1:8000",
                exit_code=EXIT_USAGE,
            ) from None
        except httpx.HTTPError as error:
            reason = explained(str(error), authority=CA_FILE) or type(error).__name__
            raise ApiUnreachable(
                f"{self._url}: the API cannot be reached: {reason}; start it "
                "with 'executor serve', or say where it is: TURNSTILE_API_URL=http://host:port"
            ) from None
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> Json:
        try:
            content = answer.json(object_hook=Json)
        except ValueError:
            content = None
        match content:
            case {"code": str(), "detail": detail} if answer.status_code in _NOBODY_HOME:
                raise ApiUnreachable(f"{self._url}: the API cannot do it just now: {detail}")
            case {"code": str()} if answer.is_error:
                raise ApiRefused(content)
            case Json() if answer.is_success:
                return content
            case _:
                raise ApiUnreachable(
                    f"{self._url}: answered {answer.status_code}, but not as the API of Turnstile would; "
                    "look at TURNSTILE_API_URL"
                )


def connect(
    *,
    api_url: str | None = None,
    api_token: str | None = None,
    api_token_file: str | None = None,
    api_ca_file: str | None = None,
) -> Api:
    """Return a connection, not opened yet; raises CommandFailed for a setting that cannot be one."""
    url = ApiSettings().api_url if api_url is None else api_url
    try:
        token = token_in({TOKEN: api_token or "", TOKEN_FILE: api_token_file or ""}) or ""
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    if not _is_base_url(url):
        raise CommandFailed(
            "TURNSTILE_API_URL: not the address of an API; expected one like http://127.0.0.1:8000, "
            "without user and password",
            exit_code=EXIT_USAGE,
        )
    try:
        return Api(url, token, trust=_trust(api_ca_file))
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        raise CommandFailed(f"TURNSTILE_API_URL, or a proxy: {error}", exit_code=EXIT_USAGE) from None


def with_api(command: Callable[Concatenate[Api, Rest], None]) -> Callable[..., None]:
    """Give a command the options of the API, and a connection as its first argument."""

    @functools.wraps(command)
    def connected(api: Api, /, *args: Rest.args, **given: Rest.kwargs) -> None:
        with contextlib.closing(api):
            command(api, *args, **given)

    return with_options(ApiSettings, connect)(connected)


def _trust(ca_file: str | None) -> ssl.SSLContext | None:
    if not ca_file:
        return None
    try:
        check_authority({CA_FILE: ca_file}, CA_FILE)
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    return ssl.create_default_context(cafile=ca_file)


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_number = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and is_number


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
