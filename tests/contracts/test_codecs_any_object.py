"""What every codec promises, for objects that nobody thought of: views, dtypes and nests of any kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from codec_trips import BYTES_TRIPS, Marked, Patient, Point, assert_same, by_pickle
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytestmark = pytest.mark.usefixtures("echo", "echo_without_arena")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)
arrays = hnp.arrays(
    dtype=hnp.scalar_dtypes() | hnp.array_dtypes(max_size=3),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12),
)


@pytest.mark.slow
@given(plain)
@settings(deadline=None, max_examples=100)
def test_any_plain_object_makes_the_round_trip(obj):
    assert_same(obj, by_pickle(obj))


@pytest.mark.slow
@given(arrays, st.data())
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_any_view_of_any_array_makes_the_round_trip(array, data):
    view = array[data.draw(hnp.basic_indices(array.shape, allow_newaxis=True))]
    for go in BYTES_TRIPS.values():
        assert_same(view, go(view))


TORCH_DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
]


@st.composite
def tensors(draw):
    """Tensors of any dtype and layout in memory, some of them large, some with a graph."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=24))
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    tensor = (7 * torch.arange(int(np.prod(shape))) % 251).reshape(shape).to(dtype)
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    steps = draw(st.tuples(*[st.integers(1, 3)] * tensor.dim()))
    tensor = tensor[tuple(slice(None, None, step) for step in steps)]
    if draw(st.booleans()):
        tensor = tensor.as_subclass(Marked)
    return tensor.requires_grad_() if dtype.is_floating_point and draw(st.booleans()) else tensor


nested = st.recursive(
    st.none() | st.integers() | st.text() | tensors() | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.builds(Patient, st.text(), inner)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(nested)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_any_nest_of_tensors_and_arrays_makes_the_round_trip(obj):
    for go in BYTES_TRIPS.values():
        assert_same(obj, go(obj))


@pytest.mark.slow
def test_any_nest_of_tensors_and_arrays_makes_the_trip_to_a_process(echo, echo_without_arena):
    @given(nested)
    @settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow], database=None)
    def travel(obj):
        assume(obj is not None)  # no result, for a mapped function
        for executor in (echo, echo_without_arena):
            executor.put(obj)
            assert_same(obj, executor.get(timeout=30).value)

    travel()
