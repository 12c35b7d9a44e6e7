"""An address that cannot be listened on: the error names the setting that is wrong, host or port."""

import socket

import pytest

from turnstile.common.command_line import EXIT_USAGE, CommandFailed
from turnstile.common.http_server import listen


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a..b"])
def test_a_host_of_another_machine_is_named_by_its_own_setting(host: str) -> None:
    with pytest.raises(CommandFailed, match=f"TURNSTILE_HTTP_HOST: cannot listen on {host}: ") as failed:
        listen(host, 0, settings="TURNSTILE_HTTP")
    assert failed.value.exit_code == EXIT_USAGE
    assert "an address of this machine" in failed.value.message
    assert "PORT" not in failed.value.message


def test_a_port_that_is_taken_is_named_by_its_own_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandFailed, match=r"TURNSTILE_HTTP_PORT: .*choose another port"):
            listen("127.0.0.1", port, settings="TURNSTILE_HTTP")
