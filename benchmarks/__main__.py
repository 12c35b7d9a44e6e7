"""`python -m benchmarks`."""

import typer

from benchmarks.command import bench

typer.run(bench)
