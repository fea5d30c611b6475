"""What is installed is what is in the checkout: a wheel, in a clean environment, outside of it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SCRIPT = """
import numpy as np
import trw_pipeline
from trw_pipeline import SamplerSequential, SequenceArray

assert "site-packages" in trw_pipeline.__file__, trw_pipeline.__file__
numbers = SequenceArray({"x": np.arange(10)}, SamplerSequential())
chain = numbers.map(lambda batch: {"x": batch["x"] ** 2}, nb_workers=2).batch(4)
with chain:
    print([batch["x"].tolist() for batch in chain])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_chain_with_two_workers_runs_from_an_installed_wheel(tmp_path):
    def run(*command: str | Path) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    [wheel] = tmp_path.glob("*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(("tests", "benchmarks"))]
    wanted = {f"trw_pipeline/{name}" for name in ("py.typed", "reporting/page.css", "reporting/page.js")}
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run(python, tmp_path / "script.py").strip() == "[[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]"
    assert "train" in run(tmp_path / "env" / "bin" / "trw-pipeline", "--help")
