"""Every part runs at a tiny size."""

import pytest

from benchmarks import system
from benchmarks.command import PARTS
from benchmarks.report import markdown
from benchmarks.system import Sizes
from tests.support.sources import Servers

TINY = Sizes(executions=40, queued=5, submits=3, depths=(100, 200), turns=5, waiting=40, messages=200)


@pytest.mark.parametrize("part", PARTS)
async def test_a_part_measures_every_row(servers: Servers, part: str) -> None:
    sections = await PARTS[part](
        system.Servers(postgresql=servers.postgresql, rabbitmq=servers.rabbitmq), TINY
    )
    assert all(row.cells for section in sections for row in section.rows)
    assert markdown(sections)
