"""Keeps a run: its figures for programs, one page for people, and the pictures as files.

In: a `RunReport`. Out: `report.json`, `report.html` and `pictures/*.png` in a folder.
"""

from pathlib import Path
from typing import Final

from turnstile.stress.report.document import as_json
from turnstile.stress.report.page import as_html
from turnstile.stress.report.plots.gallery import pictures_of, pictures_of_run
from turnstile.stress.report.run_report import RunReport

JSON: Final = "report.json"
PAGE: Final = "report.html"
PICTURES: Final = "pictures"


def write_report(folder: Path, report: RunReport) -> None:
    """Write all files of a report; what an earlier one left under the same names is replaced."""
    pictures = folder / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    # First what cannot fail: whatever comes of the pictures, the figures are kept.
    (folder / JSON).write_bytes(as_json(report))
    of_run = pictures_of_run(report)
    of_stages = [pictures_of(stage) for stage in report.stages]
    for stale in pictures.glob("*.png"):
        stale.unlink()
    for picture in (*of_run, *(each for stage in of_stages for each in stage)):
        (pictures / f"{picture.name}.png").write_bytes(picture.png)
    (folder / PAGE).write_text(as_html(report, of_run, of_stages), encoding="utf-8")
