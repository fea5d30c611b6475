"""A worker process imports what the function imports, and nothing heavy on our account."""

from __future__ import annotations

import pytest

from trw_pipeline.executors.start import PRELOAD

HEAVY = (
    "torch",
    "matplotlib",
    "rich",
    "typer",
    "blosc2",
    "multiprocessing.pool",
    "trw_pipeline.executors.job_executor",
)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_has_imported_nothing_heavy(program, method):
    """The parent has: what a worker imports does not come from there."""
    result = program(f"""
        import sys
        import torch
        from trw_pipeline.executors.job_executor import JobExecutor

        def imported(x):
            import sys
            return sorted(sys.modules)

        with JobExecutor(1, imported, start_method={method!r}) as executor:
            executor.put(1)
            print(*executor.get(timeout=60).value, sep="\\n")
        """).finish()
    modules = set(result.stdout.split())
    assert "trw_pipeline.executors.worker" in modules
    assert modules & set(HEAVY) == set()


def test_a_worker_imports_what_its_function_needs(executor_of):
    def use_a_library(x):
        import sys
        import wave

        return wave.__name__ in sys.modules

    executor = executor_of(1, use_a_library)
    executor.put(1)
    assert executor.get(timeout=30).value


@pytest.mark.slow
def test_a_worker_that_reads_samples_has_imported_nothing_heavy(program, tmp_path):
    """Nor what reads rows of files: the functions of ours that travel to it stand in light modules."""
    result = program(f"""
        import sys
        import numpy as np
        from trw_pipeline import SequenceArray, SequenceDataset

        class Modules:
            def __len__(self):
                return 1
            def __getitem__(self, i):
                import sys
                return {{"modules": sorted(sys.modules)}}

        def modules(batch):
            import sys
            return {{"modules": [sorted(sys.modules)]}}

        np.save({str(tmp_path / "a.npy")!r}, np.zeros((1, 1 << 20)))
        rows = np.load({str(tmp_path / "a.npy")!r}, mmap_mode="r")
        mapped = SequenceArray({{"x": rows}}).map(modules, nb_workers=1)
        for sequence in (SequenceDataset(Modules(), nb_workers=1), mapped):
            with sequence:
                print(*next(iter(sequence))["modules"][0], sep="\\n")
        """).finish()
    assert result.stderr == ""
    modules = set(result.stdout.split())
    assert {"trw_pipeline.sequences.samples", "trw_pipeline.sequences.file_rows"} <= modules
    assert modules & set(HEAVY) == set()


def test_the_fork_server_imports_nothing_heavy_in_advance(program):
    result = program(f"""
        import importlib, sys
        for name in {PRELOAD!r}:
            importlib.import_module(name)
        print([name for name in {HEAVY!r} if name in sys.modules])
        """).finish()
    assert result.stdout == "[]\n"


def test_importing_the_executor_imports_no_torch(program):
    result = program("""
        import sys
        import trw_pipeline, trw_pipeline.executors.job_executor
        print("torch" in sys.modules, "matplotlib" in sys.modules)
        """).finish()
    assert result.stdout == "False False\n"
