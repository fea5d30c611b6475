"""Transforms and subjects of TorchIO in a chain: they draw from torch, which is seeded for each item."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports what others have deprecated
    import torchio

pytestmark = pytest.mark.slow
NB, EPOCHS = 5, 2


def subject_of(batch):
    image = torchio.ScalarImage(tensor=torch.as_tensor(batch["x"]))
    return torchio.Subject(image=image, number=int(batch["sample_uid"][0]))


def chain(*transforms, **workers):
    split = {"x": np.zeros((NB, 4, 4, 4), np.float32)}
    return SequenceArray(split, SamplerSequential()).with_seed(1).map([subject_of, *transforms], **workers)


def test_subjects_pass_and_workers_change_nothing():
    transform = torchio.Compose([torchio.RandomNoise(), torchio.RandomFlip(axes=(0, 1, 2))])
    epochs = []
    for workers in ({}, {"nb_workers": 2, "start_method": "fork"}):
        with chain(transform, **workers) as sequence:
            for _ in range(EPOCHS):
                subjects = list(sequence)
                assert all(isinstance(subject, torchio.Subject) for subject in subjects)
                assert [subject["number"] for subject in subjects] == list(range(NB))
                epochs.append([subject["image"].data.numpy() for subject in subjects])
    assert np.array_equal(epochs[:EPOCHS], epochs[EPOCHS:])
    assert len({x.tobytes() for epoch in epochs[:EPOCHS] for x in epoch}) == EPOCHS * NB
