"""`executor queue`: how a line stands, who waits in it and who holds its slots (P10)."""

from tests.integration.cli.conftest import CommandLines


def submitted(system: CommandLines, ref: str, count: int) -> list[int]:
    ended = [system.executor("submit", ref, "--json") for _ in range(count)]
    return [each.json["id"] for each in ended]


def test_a_line_shows_its_holders_and_its_places_in_order(system: CommandLines, ref: str) -> None:
    holder, *waiting = submitted(system, ref, 4)
    found = system.executor("queue", "line", ref, "--json").json
    assert [each["id"] for each in found["holders"]] == [holder]
    assert [(each["position"], each["id"]) for each in found["items"]] == list(enumerate(waiting, start=1))
    shown = system.executor("queue", "line", ref)
    assert [line.split()[0] for line in shown.out.splitlines() if line] == [
        "HOLDS", str(holder), "POSITION", "1", "2", "3",
    ]  # fmt: skip


def test_a_long_line_says_that_there_is_more(system: CommandLines, ref: str) -> None:
    _, first, second = submitted(system, ref, 3)
    page = system.executor("queue", "line", ref, "--limit", "1", "--json").json
    assert [each["id"] for each in page["items"]] == [first]
    rest = system.executor("queue", "line", ref, "--cursor", page["next_cursor"], "--json").json
    assert ([each["id"] for each in rest["items"]], rest["next_cursor"]) == ([second], None)
    assert "there are more" in system.executor("queue", "line", ref, "--limit", "1").err


def test_a_queue_with_nobody_in_it_says_so(system: CommandLines, ref: str) -> None:
    shown = system.executor("queue", "line", ref).out
    assert "no slot is held" in shown
    assert "nobody waits" in shown
    assert "there is no action 'no.such'" in system.executor("queue", "line", "no.such").err
