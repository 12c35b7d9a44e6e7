"""Logs of running attempts: bounded, and published piece by piece."""

from hypothesis import given
from hypothesis import strategies as st

from turnstile.worker.logs import LogPiece, LogTail


def test_the_last_part_is_kept_and_a_line_says_how_much_was_cut() -> None:
    log = LogTail(10)
    log.write(b"0123456789" * 10)
    text = "[90 bytes before this were cut]\n0123456789"
    assert log.take() == LogPiece(start=0, text=text)
    log.confirm()
    assert log.rest() == LogPiece(start=len(text), text="")


@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(["take", "confirm"])), max_size=40))
def test_the_concatenation_of_all_pieces_is_the_log(steps: list[bytes | str]) -> None:
    log, written = LogTail(10_000), b""
    confirmed = ""
    taken = None
    for step in steps:
        match step:
            case bytes():
                log.write(step)
                written += step
            case "take":
                taken = log.take()
            case _ if taken is not None:
                assert taken.start == len(confirmed)
                confirmed += taken.text
                log.confirm()
                taken = None
            case _:
                pass
    rest = log.rest()
    assert rest.start == len(confirmed)
    assert confirmed + rest.text == written.decode("utf-8", "replace").replace("\0", "\ufffd")
