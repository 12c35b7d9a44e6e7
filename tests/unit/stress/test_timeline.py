"""The picture of a run has a bar for each run at its instants, in a row for each slot."""

from dataclasses import replace
from xml.etree import ElementTree

from tests.unit.stress.histories import Life, fault, hand_made
from turnstile.stress.recording import Outcome, RunEnd
from turnstile.stress.report.timeline import timeline
from turnstile.stress.scenario import FaultKind

_BARS = "{http://www.w3.org/2000/svg}rect[{http://www.w3.org/2000/svg}title]"


def bars(picture: str | None) -> list[tuple[str, int, str]]:
    """Return label, row and fill of each bar, from left to right."""
    assert picture is not None
    found = ElementTree.fromstring(picture).findall(_BARS)
    rows = sorted({int(each.attrib["y"]) for each in found})
    in_order = sorted(found, key=lambda each: float(each.attrib["x"]))
    return [(each[0].text or "", rows.index(int(each.attrib["y"])), each.attrib["fill"]) for each in in_order]


def test_each_run_is_a_bar_in_the_row_of_its_slot() -> None:
    lives = [
        Life(id=1, since=0, granted=0, ended=100),
        Life(id=2, since=0, granted=10, ended=300, worker=1),
        Life(id=3, since=0, granted=150, ended=400),
    ]
    shown = bars(timeline(hand_made(*lives, limit=2)))
    assert [(label, row) for label, row, _ in shown] == [
        ("execution 1, worker process 1", 0),
        ("execution 2, worker process 2", 1),
        ("execution 3, worker process 1", 0),
    ]
    colours = [fill for *_, fill in shown]
    assert colours[0] == colours[2] != colours[1]


def test_what_a_fault_cut_off_is_hatched_and_its_slot_pale_until_it_runs_again() -> None:
    cut = Life(id=1, since=0, granted=0, stop=1000, ended=4000, worker=1, outcome=Outcome.RECLAIMED)
    lives = [
        replace(cut, run_end=RunEnd.KILLED),
        Life(id=1, since=4000, granted=4100, ended=4200, attempt=2),
    ]
    recording = hand_made(*lives, faults=(fault(FaultKind.KILL_WORKER, 1000, 2000),))
    picture = timeline(recording)
    assert picture is not None
    assert bars(picture) == [
        ("execution 1, worker process 2", 0, "url(#lost)"),
        ("slot still held", 0, "#fae8dd"),
        ("execution 1, worker process 1", 0, "#0072b2"),
    ]
    assert picture.count("<line") == 1


def test_without_a_run_there_is_no_picture() -> None:
    assert timeline(hand_made(Life(id=1, since=0))) is None
