"""The documentation builds without a warning, and its reference is what the code says."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_page_is_built_without_a_warning_and_reached_from_the_first(tmp_path: Path) -> None:
    # A page that no list of contents names would be a warning, and so a failure.
    # Furo takes a third of the time of a build, and no warning is its own.
    options = ("-q", "-W", "--keep-going", "-E", "-D", "html_theme=basic")
    command = (sys.executable, "-m", "sphinx", *options, "docs", str(tmp_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(tmp_path).with_suffix("") for path in tmp_path.rglob("*.html")}


def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "generate", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "docs")}
    subprocess.run(command, cwd=ROOT / "docs", env=environment, check=True, timeout=110)
    kept = {path.name: path.read_text() for path in (ROOT / "docs/reference").iterdir()}
    assert kept == {path.name: path.read_text() for path in tmp_path.iterdir()}, "run: make reference"
