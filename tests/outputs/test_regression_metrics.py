import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from split_figures import figures

from trw_pipeline.outputs.regression_metrics import (
    MetricMeanAbsoluteError,
    MetricR2,
    MetricRootMeanSquaredError,
    default_regression_metrics,
)

METRICS = [MetricMeanAbsoluteError(), MetricRootMeanSquaredError(), MetricR2()]
numbers = arrays(np.float32, st.tuples(st.integers(2, 12), st.just(2)), elements=st.floats(-100, 100, width=32))


def of_numbers(metric, output, truth, batch_size=None):
    output = torch.as_tensor(output)
    return figures(metric, output, torch.as_tensor(truth), output=output, batch_size=batch_size)


@pytest.mark.slow
@settings(deadline=None)
@given(numbers, st.floats(0.1, 2), st.integers(1, 5))
def test_errors_are_those_of_scikit_learn_however_samples_are_cut_into_batches(truth, factor, batch_size):
    output = (truth * factor + 1).astype(np.float32)
    exact = truth.astype(np.float64), output.astype(np.float64)
    for metric, oracle in (
        (METRICS[0], mean_absolute_error(*exact)),
        (METRICS[1], math.sqrt(np.mean((exact[0] - exact[1]) ** 2))),
    ):
        [value] = of_numbers(metric, output, truth, batch_size).values()
        assert value == pytest.approx(oracle, rel=1e-9)


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_r2_is_that_of_scikit_learn(shape, offset, batch_size):
    generator = np.random.default_rng(0)
    truth = generator.normal(size=shape) + offset
    output = truth + 0.3 * generator.normal(size=shape)
    assert of_numbers(MetricR2(), output, truth, batch_size) == {"r2": pytest.approx(r2_score(truth, output), rel=1e-6)}
    [error] = of_numbers(METRICS[1], output, truth, batch_size).values()
    assert error == pytest.approx(root_mean_squared_error(truth.ravel(), output.ravel()), rel=1e-6)


@pytest.mark.slow
def test_r2_of_images_is_that_of_torchmetrics_over_the_numbers_of_each_column():
    from torchmetrics.regression import R2Score

    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(6, 2, 4, 3, generator=generator).double()
    output = truth + 0.5 * torch.randn(6, 2, 4, 3, generator=generator).double()
    oracle = R2Score()
    oracle.set_dtype(torch.float64)
    oracle.update(*(values.movedim(1, -1).reshape(-1, 2) for values in (output, truth)))
    assert of_numbers(MetricR2(), output, truth, 4) == {"r2": pytest.approx(oracle.compute().item(), rel=1e-6)}


def test_by_hand():
    output, truth = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 3.0, 2.0])
    assert of_numbers(METRICS[0], output, truth, 2) == {"mean absolute error": 4 / 3}
    assert of_numbers(METRICS[1], output, truth, 2) == {"root mean squared error": pytest.approx(math.sqrt(10 / 3))}
    assert of_numbers(METRICS[2], output, truth, 2) == {"r2": pytest.approx(1 - 10 / 2)}


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 / 3])
def test_a_truth_that_is_constant_has_no_r2(value):
    truth = torch.full((50,), value)
    assert of_numbers(MetricR2(), truth + 1, truth, 3) == {}


def test_a_column_that_is_constant_takes_no_part():
    truth = torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    output = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]])
    assert of_numbers(MetricR2(), output, truth, 2) == {"r2": pytest.approx(1 - 1 / 2)}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: type(metric).__name__)
def test_nan_is_seen(metric):
    [value] = of_numbers(metric, torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])).values()
    assert math.isnan(value)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: type(metric).__name__)
def test_no_sample_no_figure(metric):
    assert metric.figures({}) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_do_not_overflow(dtype):
    output, truth = torch.full((300,), 300.0, dtype=dtype), torch.zeros(300, dtype=dtype)
    assert of_numbers(METRICS[0], output, truth) == {"mean absolute error": 300.0}
    assert of_numbers(METRICS[1], output, truth) == {"root mean squared error": 300.0}


def test_defaults_are_made_anew():
    first, second = default_regression_metrics(), default_regression_metrics()
    first.clear()
    assert [type(metric) for metric in second] == [MetricMeanAbsoluteError, MetricR2]
