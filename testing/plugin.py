"""The pytest plugin: private installations and fake clients for tests.

`turnstile` is an installation that is empty at the beginning of each test, `turnstile_fake` a client without
servers. With `turnstile_started` the start hooks are called once for all calls of `run`.

The option `turnstile_actions` of pytest's configuration names the modules of the worker:

    [tool.pytest.ini_options]
    turnstile_actions = ["shop.actions"]

Installed with the package, so it imports nothing before a test uses a fixture.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from turnstile.testing.fake_client import FakeClient
    from turnstile.testing.private_installation import Installation


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addini(
        "turnstile_actions",
        "Modules with actions, for the worker of the fixture `turnstile`.",
        type="args",
        default=[],
    )


@pytest.fixture(scope="session")
def turnstile_settings() -> dict[str, str]:
    """Return environment variables of both services; override this fixture to set some."""
    return {}


@pytest.fixture(scope="session")
def turnstile_installation(
    request: pytest.FixtureRequest, turnstile_settings: dict[str, str]
) -> "Iterator[Installation]":
    """Start an executor and a worker with private servers, for the session. Tests use `turnstile`."""
    # Only if a test uses it.
    from turnstile.localservers import LocalServersError  # noqa: PLC0415
    from turnstile.testing.private_installation import NoActionModules, installation  # noqa: PLC0415

    actions = request.config.getini("turnstile_actions")
    if not actions:
        pytest.fail(
            "turnstile_actions: not set; name the modules with your actions in the configuration of pytest, "
            'in pyproject.toml like this:\n\n[tool.pytest.ini_options]\nturnstile_actions = ["shop.actions"]',
            pytrace=False,
        )
    with ExitStack() as stack:
        try:
            made = stack.enter_context(installation(*actions, settings=turnstile_settings))
        except (NoActionModules, LocalServersError) as error:
            # The text says what to do; a traceback through the services would hide it.
            pytest.fail(str(error), pytrace=False)
        yield made


@pytest.fixture(scope="session")
def turnstile_started() -> "Iterator[None]":
    """Call the start hooks once for all calls of `turnstile.testing.run` in the session."""
    from turnstile.testing.running import started  # noqa: PLC0415  (only if a test uses it)

    with started():
        yield


@pytest.fixture
def turnstile_fake() -> "Iterator[FakeClient]":
    """Let all actions be submitted to a fake client, which records them and runs nothing."""
    from turnstile.testing.fake_client import FakeClient  # noqa: PLC0415  (only if a test uses it)

    with FakeClient() as client:
        yield client


@pytest.fixture
def turnstile(turnstile_installation: "Installation") -> "Iterator[Installation]":
    """Return the installation, without executions and with the definitions of the code.

    All that this process submits in the test goes to it.
    """
    turnstile_installation.reset()
    with turnstile_installation.used():
        yield turnstile_installation
