"""Training ends when a metric gets no better, and not before."""

import math

import pytest
from toy_trainer import SCORE as PATH
from toy_trainer import Scores, fitting_in, trainer

from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping
from trw_pipeline.training.callback import Callback


def nb_epochs(tmp_path, values, *stoppers):
    """Trains at most as many epochs as there are values."""
    _, result = fitting_in(tmp_path)(
        trainer(Scores(values), *stoppers), num_epochs=len(values), with_final_evaluation=False
    )
    return len(result["history"])


@pytest.mark.parametrize(
    ("values", "arguments", "expected"),
    [
        ([5, 4, 3, 2, 1], {"patience": 1}, 5),
        ([5, 4, 4, 3, 3, 3, 3], {"patience": 2}, 6),
        ([5, 6, 7, 8], {"patience": 2}, 3),
        ([1, 2, 3, 3, 9], {"patience": 1, "mode": "max"}, 4),
        ([5, 4.6, 4.2, 3.8], {"patience": 2, "min_delta": 0.5}, 4),  # 4.2 is better than 5 by more than 0.5
        ([5, 4.9, 4.8, 4.7], {"patience": 2, "min_delta": 0.5}, 3),
        ([5, 4.5, 3], {"patience": 1, "min_delta": 0.5}, 2),  # by exactly that is not by more
        ([5, math.nan, math.nan, 1], {"patience": 2}, 3),
        ([math.nan, 5, 4, 3], {"patience": 2}, 4),
        ([5, None, None, None, 6, None, 7, 1], {"patience": 2}, 7),
        ([-math.inf, -math.inf, 0], {"patience": 2}, 3),
    ],
)
def test_it_ends_after_so_many_evaluations_without_improvement(tmp_path, values, arguments, expected):
    assert nb_epochs(tmp_path, values, CallbackEarlyStopping(PATH, **arguments)) == expected


def test_of_several_the_first_to_give_up_ends_the_training(tmp_path):
    patient, hasty = CallbackEarlyStopping(PATH, 5), CallbackEarlyStopping(PATH, 2)
    assert nb_epochs(tmp_path, [3] * 9, hasty, patient) == 3


def test_a_metric_that_is_not_there_is_named(tmp_path):
    """LOOP-5."""
    stopping = CallbackEarlyStopping(("d", "valid", "y", "dice"), 2)
    with pytest.raises(ValueError, match=r"no metric \('d', 'valid', 'y', 'dice'\).*'classification error'"):
        nb_epochs(tmp_path, [None, None], stopping)


@pytest.mark.parametrize("cut", range(1, 6))
def test_it_goes_on_from_its_state(tmp_path, cut):
    values = [5, 4, 4, 3, 3, 3, 3]
    first, second = CallbackEarlyStopping(PATH, 2), CallbackEarlyStopping(PATH, 2)
    assert nb_epochs(tmp_path, values[:cut], first) == cut
    state = first.state_dict()

    class Resumes(Callback):
        def on_fit_start(self, run):
            second.load_state_dict(state)

    assert cut + nb_epochs(tmp_path, values[cut:], second, Resumes()) == 6


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"patience": 1, "mode": "best"}, "mode must be 'min' or 'max', got 'best'"),
        ({"patience": 1, "min_delta": -1.0}, "min_delta must be at least 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        CallbackEarlyStopping(PATH, **arguments)


def test_a_wrong_path_is_refused():
    with pytest.raises(ValueError, match="metric must be"):
        CallbackEarlyStopping(("valid", "loss"), 1)
