"""What a reservoir keeps: in memory of its own, and with `compression` in several times less of it, without a loss."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from trw_pipeline.executors.compressed import Compressed
from trw_pipeline.executors.compression import Compression
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
MNI = ("nilearn", "datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz", "u1")
VOLUMES = {
    "MNI T1, 1 mm": MNI,
    "diffusion MRI": ("dipy", "data/files/S0_10slices.nii.gz", "<u2"),
    "anisotropic voxels": ("dipy", "data/files/aniso_vox.nii.gz", "<i2"),
    "big-endian anatomy": ("nibabel", "tests/data/anatomical.nii", ">i2"),
    "functional, 4D": ("nibabel", "tests/data/functional.nii", "<i2"),
}


def load(batch):
    """A volume as it lies in its file: dtype, byte order and all."""
    import nibabel

    spec = importlib.util.find_spec(batch["package"][0])  # which does not import it
    image = nibabel.load(Path(spec.origin).parent / batch["file"][0])
    return {"volume": np.ascontiguousarray(image.dataobj.get_unscaled())[None], "sample_uid": batch["sample_uid"]}


def source(*volumes):
    split = {"package": [v[0] for v in volumes], "file": [v[1] for v in volumes]}
    return SequenceArray(split, SamplerSequential()).with_seed(0)


def figures(sequence):
    return next(figures for figures in sequence.statistics().values() if "size" in figures)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["process", "thread", "inline"])
def test_real_volumes_come_back_as_they_lie_in_their_files(backend):
    chain = source(*VOLUMES.values())
    with chain.async_reservoir(5, load, 5, compression="zstd", backend=backend) as sequence:
        found = {int(drawn[0]["sample_uid"][0]): drawn[0]["volume"] for drawn in sequence}
    for uid, (package, file, dtype) in enumerate(VOLUMES.values()):
        expected = load({"package": [package], "file": [file], "sample_uid": [uid]})["volume"]
        assert found[uid].dtype == expected.dtype == np.dtype(dtype)
        assert found[uid].dtype.byteorder == np.dtype(dtype).byteorder
        np.testing.assert_array_equal(found[uid], expected)
        assert found[uid].flags.writeable


@pytest.mark.slow
def test_a_budget_of_memory_holds_several_times_more_of_a_real_volume():
    """12 mm3 of brain in 8.7 MB; a budget of 30 MB holds three of them as they are."""

    def size(**options):
        with source(MNI).async_reservoir(
            40, load, 1, backend="inline", max_reservoir_bytes=30_000_000, **options
        ) as sequence:
            for _ in range(10):
                next(iter(sequence))
            assert figures(sequence)["size_bytes"] <= 30_000_000
            return sequence.reservoir_size()

    assert size() == 3
    assert size(compression=Compression("zstd")) >= 3 * 3


def ramp(batch):
    return {"x": batch["x"], "volume": np.full((1, 300_000), int(batch["x"][0]), np.int32)}


def numbers(nb=50):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential())


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_what_is_kept_holds_no_shared_memory(compression):
    """24 results of 1.2 MB are kept, and the arena has places for those that are on their way."""
    with numbers().async_reservoir(24, ramp, 24, max_jobs_at_once=2, compression=compression) as sequence:
        for _ in range(3):
            for drawn in sequence:
                assert (drawn[0]["volume"] == drawn[0]["x"][0]).all()
        room = sequence._reservoir.executor.pool._recruiter.room
        assert room.arena.nb_bytes < 8 * 1_400_000
        assert figures(sequence)["bytes_frames"] < 4 * 1_200_000  # the first ones, whose size nobody knew


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_size_bytes_is_what_is_kept(compression):
    with numbers().async_reservoir(4, ramp, 4, compression=compression, backend="inline") as sequence:
        list(sequence)
        size = figures(sequence)["size_bytes"]
        values = [entry.value for entry in sequence._reservoir.entries.by_age()]
    assert all(isinstance(value, Compressed) for value in values) == (compression is not None)
    if compression is None:
        assert 4 * 1_200_000 < size < 4 * 1_201_000
    else:
        assert 0 < size == sum(value.nb_bytes for value in values) < 4 * 120_000


def test_errors_and_reports_name_the_function_of_the_user():
    with numbers().async_reservoir(4, ramp, compression="lz4", backend="inline") as sequence:
        list(sequence)
        assert list(sequence.statistics()) == ["0:SequenceArray", "1:ramp", "consumer"]
        assert "ramp" in repr(sequence)
        assert "Compress" not in repr(sequence) + sequence.report()


def test_writing_into_what_was_drawn_does_not_change_what_is_kept():
    with numbers().async_reservoir(2, ramp, 2, compression="lz4", backend="inline") as sequence:
        for drawn in sequence:
            drawn[0]["volume"][:] = -1
        assert [drawn[0]["volume"].max() for drawn in sequence] == [1, 2]


def test_what_was_drawn_and_is_held_is_not_used_again():
    with numbers().async_reservoir(3, ramp, 3, compression="lz4", backend="inline") as sequence:
        held = [drawn[0] for _ in range(4) for drawn in sequence]
        assert all((one["volume"] == one["x"][0]).all() for one in held)


def test_a_smaller_version_compresses_nothing():
    smaller = numbers().async_reservoir(3, ramp, 3, compression="lz4", backend="inline").subsample_uids([7, 5], "x")
    assert [int(drawn[0]["x"][0]) for drawn in smaller] == [7, 5]


def test_a_sampler_sees_results_as_the_function_made_them():
    seen = []

    class Largest(SamplerSequential):
        def initializer(self, data_source, *, rng=None):
            seen.extend(int(result["x"][0]) for result in data_source)
            super().initializer(data_source, rng=rng)

    chain = numbers().async_reservoir(3, ramp, 3, compression="lz4", backend="inline", reservoir_sampler=Largest())
    with chain as sequence:
        next(iter(sequence))
        assert seen == [0, 1, 2]
        assert figures(sequence)["served"] == 1
