"""How many more samples does a reservoir hold in the same memory when it compresses them, and what does a draw cost?

Method. A reservoir is filled with volumes under `max_reservoir_bytes`, then drawn from at random, one result at a time,
in one process and one thread. A draw is counted in seconds of its CPU, and without compression is a copy. Contenders
alternate, and what a draw costs more, or how many more are held, is taken between two measurements of one round, before
the median over rounds (`harness.py`). Every volume is compared with the original as the reservoir fills.

    ct          int16 (32, 256, 256), 4 MB, like a CT: air at -1024 around an ellipse of smooth tissue with noise
    mni         uint8 (197, 233, 189), 8.7 MB: the T1 template of MNI, 1 mm, as nilearn has it
    diffusion   uint16 (128, 128, 10), 0.3 MB: the slices without gradient that dipy has

Goals: ct with zstd: at least 3.5 times more volumes, at most 2 ms a draw.

    python -m benchmarks.bench_reservoir [--quick] [--rounds 5] [--json PATH] [--only ct,mni,diffusion]
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison import Column, Comparison, Goal, run
from benchmarks.harness import Figures
from trw_pipeline import Compression, SamplerRandom, SequenceArray

PLAIN, LZ4, ZSTD, NO_SHUFFLE = "as they are", "lz4", "zstd", "zstd, no shuffle"
WAYS: dict[str, Any] = {PLAIN: None, LZ4: "lz4", ZSTD: "zstd", NO_SHUFFLE: Compression("zstd", 1, None)}
NB_HELD = 8
"""So many volumes as they are fit into the memory."""


@cache
def ct() -> list[np.ndarray]:
    """Draws four volumes, int16 (32, 256, 256)."""
    rng = np.random.default_rng(0)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in (32, 256, 256)), indexing="ij")
    inside = (x / 0.95) ** 2 + (y / 0.8) ** 2 < 1
    volumes: list[np.ndarray] = []
    for _ in range(4):
        a, b, c = rng.uniform(2, 6, 3)
        tissue = 40 + 60 * np.sin(a * x) * np.cos(b * y) * np.cos(c * z) + rng.normal(0, 8, x.shape)
        volumes.append(np.where(inside, tissue, -1024).astype(np.int16))
    return volumes


def read(package: str, file: str) -> list[np.ndarray]:
    """Reads a volume as it lies in its file."""
    import nibabel

    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.origin is not None, f"{package} has no folder"
    image: Any = nibabel.load(Path(spec.origin).parent / file)  # pyright: ignore[reportPrivateImportUsage]
    return [np.ascontiguousarray(image.dataobj.get_unscaled())]


def measure(volumes: list[np.ndarray], compression: Any, nb_draws: int) -> Figures:
    """Fills a reservoir, checks what it gives, and draws."""
    nb_bytes = volumes[0].nbytes

    def load(batch: dict[str, Any]) -> dict[str, Any]:
        return {"volume": volumes[int(batch["x"][0]) % len(volumes)][None], "x": batch["x"]}

    sampler = SamplerRandom(replacement=True, nb_samples_to_generate=nb_draws)
    chain = SequenceArray({"x": np.arange(1000)}).with_seed(0)
    with chain.async_reservoir(
        1000,
        load,
        reservoir_sampler=sampler,
        backend="inline",
        compression=compression,
        max_reservoir_bytes=int((NB_HELD + 0.5) * nb_bytes),
    ) as reservoir:
        figures: dict[str, Any] = {"replaced": 0}
        while not figures["replaced"]:
            (drawn,) = next(iter(reservoir))
            if not np.array_equal(drawn["volume"][0], volumes[int(drawn["x"][0]) % len(volumes)]):
                raise RuntimeError("a volume came back as another one")
            figures = next(figures for figures in reservoir.statistics().values() if "size" in figures)
        draws = iter(reservoir)
        next(draws)
        start = time.process_time()
        nb = sum(1 for _ in draws)
        draw_s = (time.process_time() - start) / nb
    held = figures["size"]
    return {
        "held": held,
        "ratio": held * nb_bytes / figures["size_bytes"],
        "draw_ms": 1000 * draw_s,
        "samples_per_s": 1 / draw_s,
    }


def draws(title: str, volumes_of: Callable[[], list[np.ndarray]], goals: list[Goal], quick: bool) -> Comparison:
    """One kind of volumes."""
    volumes = volumes_of()
    return Comparison(
        f"{title}, in the memory of {NB_HELD}",
        {name: partial(measure, volumes, compression, 20 if quick else 300) for name, compression in WAYS.items()},
        [
            Column("held", "held", median_only=True),
            Column("x as they are", "held", PLAIN, median_only=True),
            Column("ratio", "ratio", median_only=True),
            Column("ms a draw", "draw_ms"),
            Column("x a copy", "draw_ms", PLAIN),
            Column("samples/s", "samples_per_s"),
        ],
        goals,
    )


CT_GOALS = [Goal(ZSTD, "held", at_least=3.5, base=PLAIN), Goal(ZSTD, "draw_ms", at_most=2)]
MNI = "datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
COMPARISONS: dict[str, Callable[[bool], Comparison]] = {
    "ct": partial(draws, "like a CT, int16, 4 MB", ct, CT_GOALS),
    "mni": partial(draws, "MNI T1, uint8, 8.7 MB", partial(read, "nilearn", MNI), []),
    "diffusion": partial(
        draws, "diffusion MRI, uint16, 0.3 MB", partial(read, "dipy", "data/files/S0_10slices.nii.gz"), []
    ),
}

if __name__ == "__main__":
    run("benchmarks.bench_reservoir", COMPARISONS)
