"""`executor actions apply` that is cut off says what it did, and a limit is read as it stands."""

import pytest
import typer

from tests.integration.cli.conftest import CommandLines
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.command_line import EXIT_UNREACHABLE
from turnstile.executor.cli.action_changes import _limit
from turnstile.executor.cli.connection import Api, ApiUnreachable, Json

_FILE = "[{ref: kept}, {ref: one}, {ref: two}, {ref: three}]"


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API that goes away while it stores the action `two`."""

    def put(_: Api, path: str, body: bytes) -> Json:
        if path == "/actions/two":
            raise ApiUnreachable("it went away")
        return Json()

    kept = Json(ActionDefinition(ref="kept").model_dump(mode="json"))
    monkeypatch.setattr(Api, "get", lambda *_, **__: Json(items=[kept], next_cursor=None))
    monkeypatch.setattr(Api, "put", put)


@pytest.mark.usefixtures("cut_off")
def test_an_apply_that_is_cut_off_reports_what_it_did(alone: CommandLines) -> None:
    ended = alone.executor("actions", "apply", "-", "--json", stdin=_FILE)
    assert ended.exit_code == EXIT_UNREACHABLE
    assert [(action["ref"], action["step"]) for action in ended.json["actions"]] == [
        ("kept", "keep"),
        ("one", "create"),
    ]
    assert ended.err == (
        "it went away\ntwo: unknown whether it was changed; what comes before it was done, what comes "
        "behind it was not begun; the file can be applied again\n"
    )


@pytest.mark.parametrize(("text", "limit"), [("0000000004", 4), ("0", 0), ("000", 0), ("none", -1)])
def test_a_limit_is_read_to_its_end(text: str, limit: int) -> None:
    assert _limit(text) == limit


@pytest.mark.parametrize("text", ["1000001", "10000000000", "0001000001", "-1", "", "9" * 5000])
def test_a_limit_beyond_all_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        _limit(text)
