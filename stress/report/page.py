"""A run as one page for people: the verdict first, then the figures, then each stage with its pictures.

In: a `RunReport` and its pictures. Out: HTML that loads nothing: styles and pictures are inside, and there is
no script. What it looks like stands in `page.html.j2` and `page.css`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from turnstile.stress.report import wording
from turnstile.stress.report.plots.style import Picture
from turnstile.stress.report.run_report import RunReport, StageReport
from turnstile.stress.stage import Load

_TEMPLATE: Final = "page.html.j2"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSection:
    """What the page says of one stage."""

    report: StageReport
    load: str
    limit: str
    rows: tuple[tuple[str, str], ...]
    pictures: tuple[Picture, ...]


def as_html(report: RunReport, of_run: Sequence[Picture], of_stages: Sequence[Sequence[Picture]]) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("turnstile.stress.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["recovery_row"] = wording.recovery_row
    sections = [
        StageSection(
            report=stage,
            load=_load(stage.stage.load),
            limit=wording.limit(stage.recording),
            rows=tuple(_rows(stage)),
            pictures=tuple(pictures),
        )
        for stage, pictures in zip(report.stages, of_stages, strict=True)
    ]
    return environment.get_template(_TEMPLATE).render(
        report=report,
        sections=sections,
        pictures=tuple(of_run),
        say=wording,
    )


def _load(load: Load) -> str:
    parts = [
        f"{wording.counted(load.executions, 'execution')} of {wording.counted(load.actions, 'action')}",
        f"{wording.counted(load.keys, 'concurrency key')} each" if load.keys else "",
        f"taking {load.mix}",
        wording.counted(load.submitters, "submitter"),
        "as fast as the broker takes them" if load.rate is None else f"{load.rate:.3g} requests a second",
    ]
    return ", ".join(part for part in parts if part)


def _rows(report: StageReport) -> Iterator[tuple[str, str]]:
    figures = report.figures
    rate = wording.rate(figures.executions_per_second)
    yield "Ended", f"{figures.ended:,} in {wording.seconds(figures.seconds)}: {rate}"
    yield "Requests confirmed by the broker", wording.rate(figures.sent_per_second)
    yield "Most held, most running in one queue", f"{figures.most_held:,}, {figures.most_running:,}"
    for name, spread in (
        ("Hand-over on a full queue", figures.hand_over),
        ("of it: end to grant", figures.end_to_grant),
        ("Grant to start", figures.grant_to_start),
        ("Request to answer", figures.answer),
    ):
        if spread is not None:
            yield name, f"{wording.spread(spread)} ({spread.count:,})"
    if figures.idle_share is not None:
        yield "Slots empty while somebody waited", wording.share(figures.idle_share)
    if figures.started_out_of_order is not None and report.stage.limit != 1:
        said = wording.share(figures.started_out_of_order)
        yield "Granted in order, started side by side", f"{said} started after a later one"
