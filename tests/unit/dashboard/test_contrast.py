"""The colours of both schemes have the contrast of WCAG 2.2, level AA."""

import re

import pytest

from turnstile.executor.dashboard.files import static_files

CSS = static_files()["page.css"].content.decode()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
)
TEXTS = [
    *((ink, ground) for ink in ("ink", "faint", "accent") for ground in ("ground", "raised")),
    ("ink", "sunk"),
    ("bad", "ground"),
    ("bad", "raised"),
    ("on-accent", "accent"),
    *((word, f"{word}-ground") for word in ("good", "warm", "bad", "accent")),
]
GRAPHICS = [("fill", "raised"), ("full", "raised"), ("faint", "raised")]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_enough_contrast(scheme: dict[str, str]) -> None:
    ratios = {pair: contrast(scheme[pair[0]], scheme[pair[1]]) for pair in TEXTS}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_bars_have_enough_contrast(scheme: dict[str, str]) -> None:
    ratios = {pair: contrast(scheme[pair[0]], scheme[pair[1]]) for pair in GRAPHICS}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 3} == {}


def test_both_schemes_have_the_same_colours() -> None:
    assert LIGHT.keys() == DARK.keys()
