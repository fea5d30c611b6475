"""A training that is repeated."""

import pytest
import torch
from toy_trainer import Net, datasets, fitting_in, sgd, trainer

from trw_pipeline.repeat import run_trainer_repeat
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.options import create_default_options


def repeated(folder, fitted_by=None, **arguments):
    options = create_default_options(folder, 1, "cpu")
    fitted_by = trainer() if fitted_by is None else fitted_by
    return run_trainer_repeat(fitted_by, options, datasets, lambda options: Net(), sgd, **arguments)


@pytest.mark.parametrize("nb_runs", [1, 3])
def test_each_training_has_its_folder_and_the_last_one_is_returned(tmp_path, nb_runs):
    model, result = repeated(tmp_path, run_prefix="mine", number_of_training_runs=nb_runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"mine_r{number}" for number in range(nb_runs)]
    assert result["options"]["workflow_options"]["trainer_run"] == nb_runs - 1
    assert isinstance(model, Net)


def test_a_function_is_called_before_each_training(tmp_path):
    calls = []

    def inputs():
        calls.append("training")
        return datasets()

    run_trainer_repeat(
        trainer(),
        create_default_options(tmp_path, 0, "cpu"),
        inputs,
        lambda options: Net(),
        sgd,
        number_of_training_runs=3,
        post_init_fn=lambda: calls.append("init"),
    )
    assert calls == ["init", "training"] * 3


def test_ten_times_by_default_with_the_documented_arguments(tmp_path):
    seen = []

    class Notes(Trainer):
        def fit(self, *arguments, **keywords):
            seen.append((arguments[4:], keywords))
            return super().fit(*arguments, **keywords)

    def loss(dataset_name, batch, loss_terms):
        return 0.0

    def creator(datasets, losses_fn):
        return {name: losses_fn for name in datasets}

    repeated(
        tmp_path,
        Notes(callbacks_per_epoch_fn=None, callbacks_post_training_fn=None),
        losses_fn=loss,
        loss_creator=creator,
        eval_every_X_epoch=2,
        with_final_evaluation=False,
    )
    keywords = {"eval_every_X_epoch": 2, "seed": None, "with_final_evaluation": False}
    assert seen == [((loss, creator, "default"), keywords)] * 10


def test_with_a_seed_the_trainings_differ_and_each_can_be_had_alone(tmp_path):
    models = []

    def model_fn(options):
        models.append(Net())
        return models[-1]

    options = create_default_options(tmp_path, 1, "cpu")
    run_trainer_repeat(trainer(), options, datasets, model_fn, sgd, number_of_training_runs=3, seed=5)
    alone, _ = fitting_in(tmp_path)(trainer(), num_epochs=1, seed=6)
    weights = [model.inner.weight for model in models]
    assert [torch.equal(weight, alone.inner.weight) for weight in weights] == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"number_of_training_runs": 0}, ValueError, "number_of_training_runs must be at least 1, got 0"),
        ({"number_of_training_runs": 2.0}, TypeError, "number_of_training_runs must be an int, got 2.0"),
        ({"resume": "runs"}, ValueError, "resume"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(tmp_path, arguments, error, named):
    with pytest.raises(error, match=named):
        repeated(tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []
