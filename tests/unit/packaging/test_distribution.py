"""The wheel: every package with its data files and types, and no tests, benchmarks or examples."""

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "turnstile"


def test_the_wheel_contains_every_file_of_its_packages_and_no_others() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    packages = [path.name for path in SOURCE.iterdir() if path.is_symlink()]
    for package in packages:
        tree = (path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix != ".pyc")
        files = {f"turnstile/{path.relative_to(ROOT).as_posix()}" for path in tree}
        assert files
        assert files <= packed
    assert {name.split("/")[0] for name in packed} == {"turnstile"}
    entries = {name.split("/")[1] for name in packed}
    assert entries == {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert not entries & {"tests", "benchmarks", "examples"}
