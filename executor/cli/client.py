"""The commands' client of the HTTP API.

In: `TURNSTILE_API_URL`, the token (`common.api_token`), paths and JSON. Out: the JSON of the response, or an
error: `ApiRefused` (exit code 1) for a rejection, `ApiUnreachable` (exit code 3) where there is no usable
response.
"""

import contextlib
import functools
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, Field, SecretStr

from turnstile.common.api_token import CA_FILE, TOKEN, TOKEN_FILE
from turnstile.common.api_token import api_token as token_in
from turnstile.common.cli import ENVIRONMENT_ONLY, CommandFailed, bad_input, with_options
from turnstile.common.domain.errors import Code
from turnstile.common.exit_codes import ExitCode
from turnstile.common.nearest import did_you_mean
from turnstile.common.urls import INVALID_API_URL, check_authority, is_api_url, is_loopback, with_tls_hint
from turnstile.executor.callers import CHANNEL_HEADER

Rest = ParamSpec("Rest")
T = TypeVar("T")

_PREFIX: Final = "/api/v1"
# The API responds within 30 s, at the latest with 503.
_TIMEOUT: Final = httpx.Timeout(35.0, connect=5.0)
_NO_ACTION: Final = re.compile(r"\bno action '([^']+)'")
"""In the refusals `unknown_action` and `not_found`."""
_ACTIONS_MAX: Final = 1000
_UNAVAILABLE: Final = (502, 503, 504)
_JSON: Final = {b"Content-Type": b"application/json"}
_OUTAGE_MAX_SECONDS: Final = 30.0
_OUTAGE_RETRY_SECONDS: Final = 0.5


class ApiSettings(BaseModel):
    """Address and credentials of the HTTP API."""

    api_url: str = Field(default="http://127.0.0.1:8000", description="URL of the HTTP API.")
    api_token: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""), description="Bearer token of the HTTP API."
    )
    api_token_file: str = Field(default="", description="File that contains the bearer token.")
    api_ca_file: str = Field(
        default="",
        description="PEM file of the certificate authority of the API. Default: the system's authorities.",
    )


class ApiUnreachable(CommandFailed):
    """There is no usable response: the outcome of a change is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=ExitCode.UNREACHABLE)


class Json(dict[str, Any]):
    """A JSON object of the API."""

    def __missing__(self, field: str) -> NoReturn:
        raise ApiUnreachable(
            f"the response has no field {field!r}: TURNSTILE_API_URL is not the URL of a Turnstile API, "
            "or the API has another version than this command; check TURNSTILE_API_URL"
        )


class ApiRefused(CommandFailed):
    """The API responded with a problem (RFC 9457)."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.code = str(problem["code"])
        self.problem = problem
        super().__init__(f"{self.code}: {problem.get('detail', 'no detail')}", exit_code=ExitCode.FAILED)


def _unauthorized(*, has_token: bool) -> str:
    """Return the remedy where the API accepts no token, or not this one."""
    if has_token:
        return (
            f"the API does not accept the token in {TOKEN} or {TOKEN_FILE}: it is unknown, expired or "
            "revoked; set a valid one"
        )
    return f"the API requires a token; set {TOKEN}, or {TOKEN_FILE} to the path of a file that contains it"


class Api:
    """The HTTP connection of one command."""

    def __init__(self, url: str, token: str, *, trust: ssl.SSLContext | None = None) -> None:
        self._url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self._url + _PREFIX,
            headers={CHANNEL_HEADER: "cli", **({"Authorization": f"Bearer {token}"} if token else {})},
            timeout=_TIMEOUT,
            verify=True if trust is None else trust,
            # HTTP_PROXY does not apply to loopback.
            trust_env=not is_loopback(urlsplit(url).hostname or ""),
        )

    def get(
        self,
        path: str,
        query: Mapping[str, str | int | Sequence[str] | None] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Json:
        """Send GET; parts of the query that are None are left out."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        timeout = _TIMEOUT if timeout_seconds is None else httpx.Timeout(timeout_seconds)
        return self._request("GET", path, params=given, timeout=timeout)

    def get_tagged(self, path: str, *, timeout_seconds: float) -> tuple[Json, str | None]:
        """Send GET; return the response and its ETag."""
        response = self._sent("GET", path, timeout=httpx.Timeout(timeout_seconds))
        return self._read(response), response.headers.get("etag")

    def post(
        self,
        path: str,
        body: bytes = b"{}",
        *,
        key: str | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Json:
        """Send POST; `body` is JSON, `key` an idempotency key."""
        keyed = {} if key is None else {b"Idempotency-Key": key.encode(errors="surrogateescape")}
        return self._request("POST", path, content=body, headers={**_JSON, **keyed}, params=query)

    def put(self, path: str, body: bytes) -> Json:
        """Send PUT; `body` is JSON."""
        return self._request("PUT", path, content=body, headers=_JSON)

    def patch(self, path: str, body: bytes, *, if_match: str | None = None) -> Json:
        """Send PATCH; `body` is JSON. With `if_match` it is refused unless this is still the ETag."""
        condition = {} if if_match is None else {b"If-Match": if_match.encode()}
        return self._request("PATCH", path, content=body, headers={**_JSON, **condition})

    def delete(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Send DELETE."""
        return self._request("DELETE", path, params=query)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _request(self, method: str, path: str, **request: Any) -> Json:
        return self._read(self._sent(method, path, **request))

    def _sent(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **request)
        except UnicodeEncodeError:
            raise bad_input("the arguments are not valid UTF-8") from None
        except UnicodeError:
            raise bad_input(
                "TURNSTILE_API_URL: invalid host name; expected a URL like http://127.0.0.1:8000"
            ) from None
        except httpx.HTTPError as error:
            reason = with_tls_hint(str(error), authority=CA_FILE) or type(error).__name__
            raise ApiUnreachable(
                f"{self._url}: the API cannot be reached: {reason}; start it with 'executor serve', "
                "or set its URL: TURNSTILE_API_URL=http://host:port"
            ) from None

    def _nearest_action(self, detail: str) -> str:
        """Return which action was meant where this refusal says that there is none, else nothing."""
        unknown = _NO_ACTION.search(detail)
        if unknown is None:
            return ""
        try:
            known = [each["ref"] for each in self.get("/actions", {"limit": _ACTIONS_MAX})["items"]]
        except CommandFailed:
            return ""
        return did_you_mean(unknown[1], known)

    def _read(self, response: httpx.Response) -> Json:
        try:
            content = response.json(object_hook=Json)
        except ValueError:
            content = None
        match content:
            case {"code": str(), "detail": detail} if response.status_code in _UNAVAILABLE:
                raise ApiUnreachable(f"{self._url}: the API is unavailable: {detail}")
            case {"code": Code.UNAUTHORIZED} if response.is_error:
                has_token = "Authorization" in self._http.headers
                raise ApiRefused({**content, "detail": _unauthorized(has_token=has_token)})
            case {"code": str(), "detail": str(detail)} if response.is_error:
                raise ApiRefused({**content, "detail": detail + self._nearest_action(detail)})
            case {"code": str()} if response.is_error:
                raise ApiRefused(content)
            case Json() if response.is_success:
                return content
            case _:
                raise ApiUnreachable(
                    f"{self._url}: the response (status {response.status_code}) is not one of the "
                    "Turnstile API; check TURNSTILE_API_URL"
                )


def connect(
    *,
    api_url: str | None = None,
    api_token: str | None = None,
    api_token_file: str | None = None,
    api_ca_file: str | None = None,
) -> Api:
    """Return a client that connects at its first request; raises CommandFailed for an invalid setting."""
    url = ApiSettings().api_url if api_url is None else api_url
    try:
        token = token_in({TOKEN: api_token or "", TOKEN_FILE: api_token_file or ""}) or ""
    except ValueError as error:
        raise bad_input(str(error)) from None
    if not is_api_url(url):
        raise bad_input(f"TURNSTILE_API_URL: {INVALID_API_URL}")
    try:
        return Api(url, token, trust=_trust(api_ca_file))
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        raise bad_input(f"TURNSTILE_API_URL or a proxy setting: {error}") from None


def with_api(command: Callable[Concatenate[Api, Rest], None]) -> Callable[..., None]:
    """Give a command the options of the API, and a client as its first argument."""

    @functools.wraps(command)
    def connected(api: Api, /, *args: Rest.args, **given: Rest.kwargs) -> None:
        with contextlib.closing(api):
            command(api, *args, **given)

    return with_options(ApiSettings, connect)(connected)


class OutageRetry:
    """Repeats requests while the API is down, once a first one has succeeded."""

    def __init__(self, *, has_succeeded: bool = False, deadline: float = float("inf")) -> None:
        self._has_succeeded = has_succeeded
        self._deadline = deadline

    def call(self, request: Callable[[], T]) -> T:
        """Return the result of `request`; raises ApiUnreachable after 30 s of outage or at the deadline."""
        give_up_at = min(time.monotonic() + _OUTAGE_MAX_SECONDS, self._deadline)
        while True:
            try:
                result = request()
            except ApiUnreachable:
                if not self._has_succeeded or time.monotonic() >= give_up_at:
                    raise
                time.sleep(_OUTAGE_RETRY_SECONDS)
            else:
                self._has_succeeded = True
                return result


def _trust(ca_file: str | None) -> ssl.SSLContext | None:
    if not ca_file:
        return None
    try:
        check_authority({CA_FILE: ca_file}, CA_FILE)
    except ValueError as error:
        raise bad_input(str(error)) from None
    return ssl.create_default_context(cafile=ca_file)
