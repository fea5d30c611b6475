"""How long does an import take, and what does it bring with it?

Each contender is a program of its own, with warm files: milliseconds from its first line to its last, and the modules
that were loaded by then. The door loads a name when it is asked for, so its own line costs next to nothing; a chain
brings NumPy and ZeroMQ, and only what trains brings torch. Plots, TensorBoard, ONNX and captum come when they are used.

Medians (least to greatest) of eleven rounds, while other programs kept both cores busy:

                                        ms  modules
    -------------------  -----------------  -------
    import numpy           77.9 (37.1-128)      122
    import trw_pipeline   6.56 (2.45-6.64)       12
    a chain                  190 (131-368)      388
    import torch         1,520 (658-1,850)    1,080
    a trainer            1,220 (784-2,570)    1,390

Machine: 2 cores of an AMD EPYC (virtual), Linux 6.18, Python 3.11.7, torch 2.13.0+cpu. Goals: the door at most 50 ms,
a trainer at most 1.5 x torch itself.

    python -m benchmarks.bench_import [--rounds 11]
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from benchmarks.comparison import Column, Comparison, Goal, run
from benchmarks.harness import Figures

DOOR, CHAIN, TRAINER, TORCH = "import trw_pipeline", "a chain", "a trainer", "import torch"

PROGRAMS = {
    "import numpy": "import numpy",
    DOOR: "import trw_pipeline",
    CHAIN: "from trw_pipeline import JobExecutor, SequenceArray",
    TORCH: "import torch",
    TRAINER: "from trw_pipeline import OutputClassification, SequenceArray, Trainer",
}

LIGHT = ("matplotlib", "scipy", "sklearn", "pandas", "tensorboard", "onnx", "captum", "PIL")
"""What nobody who trains without it should wait for."""

MEASURED = """
import json, sys, time
before, start = len(sys.modules), time.perf_counter()
{program}
took_s = time.perf_counter() - start
heavy = sorted(sys.modules.keys() & set({light!r}))
print(json.dumps({{"ms": 1e3 * took_s, "modules": len(sys.modules) - before, "heavy": heavy}}))
"""


def measure(program: str) -> Figures:
    """Runs an import in a program of its own.

    Raises:
        RuntimeError: it brought a library that is not needed.
    """
    source = MEASURED.format(program=program, light=LIGHT)
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)
    heavy = figures.pop("heavy")
    if heavy and "trw_pipeline" in program:
        raise RuntimeError(f"{program!r} must load none of these, and loads {heavy}")
    return figures


def imports(quick: bool) -> Comparison:
    """Compares them; `quick` changes nothing."""
    return Comparison(
        title="Milliseconds of an import, and the modules that come with it",
        contenders={name: partial(measure, program) for name, program in PROGRAMS.items()},
        columns=[Column("ms", "ms"), Column("modules", "modules", median_only=True)],
        goals=[Goal(DOOR, "ms", at_most=50), Goal(TRAINER, "ms", at_most=1.5, base=TORCH)],
    )


if __name__ == "__main__":
    run("benchmarks.bench_import", {"imports": imports})
