"""`executor doctor`: what is wrong with the servers and this host, each with its remedy."""

import asyncio
import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

import typer

from turnstile.common.cli import with_options
from turnstile.common.exit_codes import ExitCode
from turnstile.common.settings import read_settings
from turnstile.executor.cli.client import Json
from turnstile.executor.cli.output import Columns, JsonOption, counted, print_json, print_line, print_table
from turnstile.executor.doctor.examine import examine
from turnstile.executor.doctor.findings import FAILED
from turnstile.executor.settings import ExecutorSettings, ManagementSettings

_COLUMNS: Final[Columns] = {"STATUS": "status", "CHECK": "check", "FINDING": "sentence"}


class DoctorSettings(ManagementSettings, ExecutorSettings):
    """The settings of `executor serve`, and the management API."""


@with_options(
    DoctorSettings,
    functools.partial(read_settings, DoctorSettings),
    only=("database_url", "amqp_url", "queue_type", "database_connections", "management_url"),
)
def doctor(settings: DoctorSettings, *, as_json: JsonOption = False) -> None:
    """Check database, broker and this host; name a remedy for each fault.

    Reads the settings of 'executor serve', changes nothing, and ends within 15 s. May run at any time, on any
    host that runs an executor. Exit code 0: nothing failed, though there may be warnings; 1: a check failed.
    """
    management_url = settings.management_url.get_secret_value()
    with _without_log():
        findings = asyncio.run(examine(settings, management_url=management_url, environment=os.environ))
    rows = [Json(asdict(finding)) for finding in findings]
    failed, warnings = (sum(each.status == s for each in findings) for s in (FAILED, "warning"))
    if as_json:
        for row in rows:
            print_json(row, on_one_line=True)
    else:
        print_table(_COLUMNS, rows, empty="No checks")
        print_line("")
        print_line(f"{failed} failed, {counted(warnings, 'warning')}")
    if failed:
        raise typer.Exit(ExitCode.FAILED)


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep lines of the log, which say the same, out of the output."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
