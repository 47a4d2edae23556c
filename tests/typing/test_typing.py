"""The client's types, by the checkers themselves: exactly the planted errors are found."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SAMPLES = HERE / "samples.py"
PLANTED = {
    number
    for number, line in enumerate(SAMPLES.read_text().splitlines(), 1)
    if line.endswith("# wrong")
}


def complaints(output: str) -> set[int]:
    return {int(line) for line in re.findall(r"samples\.py:(\d+):(?:\d+)?.*?error", output)}


def test_mypy_accepts_the_samples_but_for_the_planted_errors(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml",
         "--cache-dir", str(ROOT / ".mypy_cache"), str(SAMPLES)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert complaints(done.stdout) == PLANTED, done.stdout + done.stderr


def test_pyright_agrees(tmp_path: Path):
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "samples.py").write_text(SAMPLES.read_text())
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = subprocess.run(
        [pyright, "--pythonpath", sys.executable, "-p", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "samples.py" not in done.stdout:
        pytest.skip(f"pyright does not run here: {(done.stderr or done.stdout)[-300:]}")
    assert complaints(done.stdout) == PLANTED, done.stdout
