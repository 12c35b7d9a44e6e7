"""A log that is not read blocks nothing, and says what it lost."""

import contextlib
import logging
import os
import threading

from turnstile.common.telemetry.log_sink import LogSink


def test_lines_for_a_pipe_that_is_not_read_are_dropped_and_counted() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read) as reader:
        sink = LogSink(stream, bytes_max=300_000)
        sink.setFormatter(logging.Formatter("%(message)s %(count)s", defaults={"count": ""}))
        filled = _fill(write)
        for number in range(1000):
            sink.handle(logging.makeLogRecord({"msg": f"{number:03} {'x' * 1000}"}))
        dropped = sink.dropped
        assert 500 < dropped < 1000
        assert {next(reader) for _ in range(filled)} == {"\n"}
        seen = [next(reader) for _ in range(1000 - dropped + 1)]
        seen.remove(f"log_lines_dropped {dropped}\n")
        assert [line[:3] for line in seen] == [f"{number:03}" for number in range(1000 - dropped)]
        sink.handle(logging.makeLogRecord({"msg": "again"}))
        assert next(reader) == "again \n"
        sink.flush()


def test_a_closed_reader_and_a_record_that_cannot_be_formatted_stop_nothing() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        sink = LogSink(stream)
        sink.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",), "name": "some"}))
        assert os.read(read, 1000) == b"log_record_lost logger=some error_type=TypeError\n"
        os.close(read)
        sink.handle(logging.makeLogRecord({"msg": "lost"}))
        sink.flush()
        (thread,) = [each for each in threading.enumerate() if each.name == "log" and each is sink._thread]
        assert thread.is_alive()


def test_a_forked_process_writes_its_lines() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read) as reader:
        sink = LogSink(stream)
        sink.handle(logging.makeLogRecord({"msg": "first"}))
        sink.flush()
        pid = os.fork()
        if pid == 0:
            sink.handle(logging.makeLogRecord({"msg": "forked"}))
            sink.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        assert [next(reader), next(reader)] == ["first\n", "forked\n"]


def _fill(descriptor: int) -> int:
    """Write empty lines until a pipe is full; return how many."""
    written = 0
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            written += os.write(descriptor, b"\n" * 4096)
    os.set_blocking(descriptor, True)
    return written
