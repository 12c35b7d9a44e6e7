"""The log of one attempt is bounded, and its pieces laid side by side are the log."""

from hypothesis import given
from hypothesis import strategies as st

from turnstile.worker.attempt_log import LogTail


def test_what_was_taken_and_confirmed_is_not_in_the_rest() -> None:
    log = LogTail(1000)
    log.write(b"one\n")
    first = log.take()
    assert first is not None
    log.confirm()
    log.write(b"two\n")
    rest = log.rest()
    assert (first.start, first.text, rest.start, rest.text) == (0, "one\n", 4, "two\n")
    assert log.end(6) == "e\ntwo\n"


def test_a_piece_whose_fate_is_unknown_is_said_again_as_it_was_and_is_part_of_the_rest() -> None:
    log = LogTail(1000)
    log.write(b"one\n")
    first = log.take()
    log.write(b"two\n")
    assert log.take() is first
    assert (log.rest().start, log.rest().text) == (0, "one\ntwo\n")


def test_nothing_new_is_no_piece() -> None:
    log = LogTail(1000)
    assert log.take() is None
    log.write(b"one\n")
    log.take()
    log.confirm()
    assert log.take() is None


def test_a_character_that_is_half_written_waits_for_its_other_half() -> None:
    log = LogTail(1000)
    log.write("aé".encode()[:-1])
    piece = log.take()
    assert piece is not None
    assert piece.text == "a"
    log.confirm()
    log.write("é".encode()[-1:])
    assert (log.rest().start, log.rest().text) == (1, "é")


def test_the_last_part_is_kept_and_a_line_says_how_much_was_cut() -> None:
    log = LogTail(10)
    log.write(b"0123456789" * 10)
    piece = log.take()
    assert piece is not None
    assert piece.text == "[90 bytes before this were cut]\n0123456789"
    log.confirm()
    assert log.rest().start == len(piece.text)
    assert log.rest().text == ""


@given(
    st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(["take", "confirm"])), max_size=40),
)
def test_pieces_laid_side_by_side_are_the_log(steps: list[bytes | str]) -> None:
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
