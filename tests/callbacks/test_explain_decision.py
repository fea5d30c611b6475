"""Decisions are explained in pictures: which there are, what they say, and that they show where the model looks."""

import logging
import sys

import numpy as np
import pytest
import torch
from torch import nn
from toy_explained import INFOS, LooksAtACorner, Segments, batch_of, corner_of, explained

from trw_pipeline.callbacks import explain_decision
from trw_pipeline.callbacks.explain_decision import CallbackExplainDecision
from trw_pipeline.explain.algorithms import ExplainableAlgorithm
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.record import OutputRecord
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.sequences.samplers import SamplerRandom
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.randomness import random_states

GRADIENT, GRAD_CAM = ExplainableAlgorithm.Gradient, ExplainableAlgorithm.GradCAM
GUIDED, MASK = ExplainableAlgorithm.GuidedBackPropagation, ExplainableAlgorithm.MeaningfulPerturbations


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, name of the file -> (sample, relevance, title), without drawing."""
    found = {}

    def note(folder, name, sample, relevance, title, average_filters):
        found[name] = (sample, relevance, title, average_filters)

    monkeypatch.setattr(explain_decision, "export_explanation", note)
    return found


@pytest.mark.slow
def test_there_is_a_picture_for_each_sample_and_algorithm(tmp_path):
    run = explained(CallbackExplainDecision(2), tmp_path, LooksAtACorner(), {"valid": [batch_of(3)]})
    assert sorted(path.name for path in (run / "explained").iterdir()) == sorted(
        f"d_valid_s{number}_bright_{algorithm.name}_image_k0.png"
        for number in range(2)
        for algorithm in ExplainableAlgorithm
    )
    for path in (run / "explained").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("algorithm", ExplainableAlgorithm, ids=lambda algorithm: algorithm.name)
@pytest.mark.parametrize("size", [(32,), (16, 20), (8, 12, 16)])
def test_a_model_that_looks_at_one_corner_is_explained_there(tmp_path, drawn, algorithm, size):
    callback = CallbackExplainDecision(1, algorithm=algorithm)
    explained(callback, tmp_path, LooksAtACorner(len(size)), {"valid": [batch_of(2, size)]})
    [(sample, relevance, _, _)] = drawn.values()
    assert sample.shape == relevance.shape == (1, *size)
    inside = np.zeros(relevance.shape, dtype=bool)
    corner_of(torch.from_numpy(inside)[None])[:] = True
    assert relevance[inside].mean() > 4 * np.abs(relevance[~inside]).mean()
    assert relevance[inside].min() > 0


@pytest.mark.parametrize("algorithm", [GRADIENT, GRAD_CAM, MASK], ids=lambda algorithm: algorithm.name)
def test_a_segmentation_is_explained_where_its_class_is(tmp_path, drawn, algorithm):
    batch = batch_of(1)
    batch["mask"] = (batch["image"][:, 0] > 0.5).long()
    infos = {"d": {"valid": {"output_mappings": {"mask": {"mappinginv": {1: "tumour"}}}}}}
    explained(CallbackExplainDecision(1, algorithm=algorithm), tmp_path, Segments(), {"valid": [batch]}, infos)
    [(_, relevance, title, _)] = drawn.values()
    assert relevance[0, :4, :4].min() > 3 * np.abs(relevance[0, 8:, 8:]).max()
    assert "lesion: said tumour at 16 of 256 points, true is at 16\n" in title
    assert title.endswith("why tumour?")


def test_a_picture_says_what_was_said_and_what_is_true_by_the_names_of_the_classes(tmp_path, drawn):
    batch = batch_of(1)
    batch["is_bright"][0] = 0
    explained(CallbackExplainDecision(1, algorithm=GRADIENT), tmp_path, LooksAtACorner(), {"valid": [batch]})
    # The scores are -2 and 2.
    assert drawn["d_valid_s0_bright_Gradient_image_k0"][2].split("\n") == [
        "d_valid, sample 100: image",
        "bright: said shiny (98%), true is gloomy",
        "gradient: why shiny?",
    ]


def test_the_output_that_is_named_is_explained_and_classes_without_names_are_numbers(tmp_path, drawn):
    callback = CallbackExplainDecision(1, algorithm=GRADIENT, output_name="dark")
    explained(callback, tmp_path, LooksAtACorner(), {"valid": [batch_of(1)]})
    title = drawn["d_valid_s0_dark_Gradient_image_k0"][2]
    assert "dark: said 0 (98%), true is 0\ngradient: why 0?" in title


def test_several_classes_are_explained_the_one_found_first(tmp_path, drawn):
    callback = CallbackExplainDecision(1, algorithm=[GRADIENT], nb_explanations=5)
    explained(callback, tmp_path, LooksAtACorner(), {"valid": [batch_of(1)]})
    assert [name[-2:] for name in drawn] == ["k0", "k1"]
    (_, first, title, _), (_, second, other, _) = drawn.values()
    assert title.endswith("why shiny?")
    assert other.endswith("why gloomy?")
    np.testing.assert_array_equal(first, -second)


@pytest.mark.parametrize(("max_samples", "nb_batches"), [(1, 1), (3, 1), (4, 2), (50, 4)])
def test_no_more_samples_are_explained_and_no_more_batches_read_than_asked_for(
    tmp_path, drawn, max_samples, nb_batches
):
    read = []

    class Split(list):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                read.append(number)
                yield batch

    split = Split([batch_of(3) for _ in range(4)])
    callback = CallbackExplainDecision(max_samples, algorithm=GRADIENT)
    explained(callback, tmp_path, LooksAtACorner(), {"valid": split}, where="callbacks_pre_training_fn")
    assert len(read) == nb_batches + 4  # and those of the evaluation
    numbers = [int(name.split("_s")[1].split("_")[0]) for name in drawn]
    assert numbers == list(range(min(max_samples, 12)))


def test_the_split_is_the_one_asked_for_or_the_first_that_is_not_trained_on_or_that(tmp_path, drawn):
    splits = {"train": [batch_of(1)], "valid": [batch_of(1)], "test": [batch_of(1)]}
    for number, (arguments, left, expected) in enumerate(
        [({}, splits, "valid"), ({"split_name": "test"}, splits, "test"), ({}, {"train": splits["train"]}, "train")]
    ):
        drawn.clear()
        callback = CallbackExplainDecision(1, algorithm=GRADIENT, **arguments)
        explained(callback, tmp_path / str(number), LooksAtACorner(), left)
        assert [name.split("_s0")[0] for name in drawn] == [f"d_{expected}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset_name": "e"}, "the dataset 'e' must be one of"),
        ({"split_name": "none"}, "no split 'none'"),
        ({"output_name": "none"}, r"the output must be one of \['bright', 'dark'\], got 'none'"),
    ],
)
def test_what_is_asked_for_and_not_there_is_refused(tmp_path, drawn, arguments, message):
    with pytest.raises(ValueError, match=message):
        explained(CallbackExplainDecision(**arguments), tmp_path, LooksAtACorner(), {"valid": [batch_of(1)]})


class WithoutConvolution(nn.Module):
    """Vectors; no ReLU, and a second input on which nothing depends."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch):
        return {"y": OutputClassification(self.layer(batch["x"]).tanh(), "t")}


def test_algorithms_that_do_not_fit_the_model_are_left_out_with_a_warning_each(tmp_path, drawn, caplog):
    batches = [{"x": torch.randn(2, 4), "unused": torch.randn(2, 4), "t": torch.tensor([0, 1])} for _ in range(2)]
    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        explained(CallbackExplainDecision(), tmp_path, WithoutConvolution(), {"valid": batches}, {})
    assert {name.split("_")[4] for name in drawn} == {"Gradient", "IntegratedGradients"}
    assert {name.split("_")[5] for name in drawn} == {"x"}
    assert [sample.shape for sample, *_ in drawn.values()] == [(1, 4)] * 8
    assert sorted(record.getMessage().split(":")[0] for record in caplog.records) == [
        "no explanation by Grad-CAM",
        "no explanation by guided back-propagation",
    ]


def test_without_captum_the_others_explain_and_the_extra_is_named(tmp_path, drawn, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    algorithms = [GRADIENT, ExplainableAlgorithm.IntegratedGradients]
    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        explained(
            CallbackExplainDecision(1, algorithm=algorithms), tmp_path, LooksAtACorner(), {"valid": [batch_of(1)]}
        )
    assert list(drawn) == ["d_valid_s0_bright_Gradient_image_k0"]
    assert [record.getMessage() for record in caplog.records] == [
        "no explanation by integrated gradients: an explanation by integrated gradients needs an optional library: "
        "pip install 'trw_pipeline[explain]'"
    ]


def test_an_error_of_the_model_is_not_taken_for_an_algorithm_that_does_not_fit(tmp_path, drawn):
    class Fails(LooksAtACorner):
        def forward(self, batch):
            if batch["image"].requires_grad:
                raise ValueError("of the model")
            return super().forward(batch)

    with pytest.raises(ValueError, match="of the model"):
        explained(CallbackExplainDecision(), tmp_path, Fails(), {"valid": [batch_of(1)]})


class OfAGraph(LooksAtACorner):
    """Each sample is a node, and sees its neighbours."""

    def forward(self, batch):
        mixed = torch.einsum("ab,bcyx->acyx", batch["neighbours"].to_dense(), batch["image"])
        return super().forward({**batch, "image": mixed})


@pytest.mark.parametrize("neighbours", [torch.eye(4), torch.eye(4).to_sparse()], ids=["dense", "sparse"])
def test_a_model_that_can_not_judge_a_part_of_a_batch_does_not_end_the_training(tmp_path, drawn, caplog, neighbours):
    datasets = {"valid": [{**batch_of(4), "neighbours": neighbours}]}
    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        explained(CallbackExplainDecision(3, algorithm=GRADIENT), tmp_path, OfAGraph(), datasets)
    [record] = caplog.records
    assert record.getMessage().startswith("nothing to explain: the first 3 samples of a batch can not be judged: ")
    assert not drawn


def test_a_model_without_inputs_of_real_numbers_is_passed_over_with_a_warning(tmp_path, drawn, caplog):
    class OfWords(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 2)

        def forward(self, batch):
            return {"y": OutputClassification(self.embedding(batch["word"]), "t")}

    batch = {"word": torch.tensor([1, 2]), "t": torch.tensor([0, 1])}
    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        explained(CallbackExplainDecision(), tmp_path, OfWords(), {"valid": [batch]})
    assert drawn == {}
    assert [record.getMessage() for record in caplog.records] == [
        "nothing to explain: 'y' depends on no feature of real numbers of the batch"
    ]


@pytest.mark.parametrize("nb_heads", [1, 2])
def test_a_model_without_a_head_to_choose_does_not_end_the_training(tmp_path, drawn, caplog, nb_heads):
    class Records(nn.Module):
        def forward(self, batch):
            return {f"r{number}": OutputRecord(batch["sample_uid"]) for number in range(nb_heads)}

    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        explained(CallbackExplainDecision(), tmp_path, Records(), {"valid": [batch_of(2)] * 3})
    assert drawn == {}
    [record] = caplog.records
    assert "nothing to explain: none of the outputs ['r0'" in record.getMessage()


def test_several_images_are_explained_each_by_itself(tmp_path, drawn):
    class Two(LooksAtACorner):
        def forward(self, batch):
            return super().forward({**batch, "image": batch["image"] + batch["other"]})

    batch = batch_of(1)
    batch["other"] = torch.zeros_like(batch["image"])
    explained(CallbackExplainDecision(1, algorithm=[GRADIENT, GRAD_CAM]), tmp_path, Two(), {"valid": [batch]})
    assert sorted(name.split("_")[-2] for name in drawn) == ["image", "image", "other", "other"]


def test_a_regression_is_explained_where_it_is_named(tmp_path, drawn):
    class Ages(nn.Module):
        def forward(self, batch):
            return {"age": OutputRegression(corner_of(batch["image"]).flatten(1).sum(1), "years")}

    batch = {"image": torch.ones(1, 1, 16, 16), "years": torch.tensor([20.0])}
    callback = CallbackExplainDecision(algorithm=[GRADIENT, MASK], output_name="age")
    explained(callback, tmp_path, Ages(), {"valid": [batch]})
    assert len(drawn) == 2
    for _, relevance, title, _ in drawn.values():
        assert title.split("\n")[1] == "age: said 16, true is 20"
        assert title.endswith("why this score?")
        assert relevance[0, :4, :4].sum() >= relevance[0, 8:, 8:].sum()


def test_arguments_reach_the_explainers_and_the_pictures(tmp_path, drawn):
    seen = []
    kwargs = {MASK: {"iterations": 2, "mask_reduction_factor": 4, "export_fn": lambda *what: seen.append(what)}}
    callback = CallbackExplainDecision(1, "why", algorithm=MASK, algorithms_kwargs=kwargs, average_filters=False)
    run = explained(callback, tmp_path, LooksAtACorner(), {"valid": [batch_of(1)]})
    assert [tuple(mask.shape) for *_, mask in seen] == [(1, 1, 4, 4)] * 2
    assert [average for *_, average in drawn.values()] == [False]
    assert (run / "why").is_dir()


def test_a_mask_has_enough_points_whatever_the_size_of_the_image(tmp_path, drawn):
    seen = []
    kwargs = {MASK: {"iterations": 1, "export_fn": lambda *what: seen.append(tuple(what[3].shape))}}
    for number, side in enumerate((10, 28, 224)):
        callback = CallbackExplainDecision(1, algorithm=MASK, algorithms_kwargs=kwargs)
        explained(callback, tmp_path / str(number), LooksAtACorner(), {"valid": [batch_of(1, (side, side))]})
    assert seen == [(1, 1, 10, 10), (1, 1, 14, 14), (1, 1, 28, 28)]


@pytest.mark.parametrize(("size", "nb_passes"), [((16, 16), 150), ((40, 200, 10), 37), ((48, 64, 64), 20)])
def test_large_inputs_go_through_the_model_fewer_times(tmp_path, drawn, size, nb_passes):
    """3 million points, but at least 20 times."""
    seen = []
    kwargs = {MASK: {"export_fn": lambda *what: seen.append(what[1])}}
    callback = CallbackExplainDecision(1, algorithm=MASK, algorithms_kwargs=kwargs)
    explained(callback, tmp_path, LooksAtACorner(len(size)), {"valid": [batch_of(1, size)]})
    assert len(seen) == nb_passes


def test_callbacks_of_batches_see_what_is_explained_first(tmp_path, drawn):
    def brighten(dataset_name, split_name, batch):
        batch["image"] = batch["image"] + 10

    callback = CallbackExplainDecision(1, algorithm=GRADIENT)
    explained(callback, tmp_path, LooksAtACorner(), {"valid": [batch_of(1)]}, per_batch=brighten)
    assert drawn["d_valid_s0_bright_Gradient_image_k0"][0].min() >= 10


def test_a_chain_and_the_generators_do_not_notice_that_it_is_read(tmp_path, drawn):
    def chain():
        whole = {name: value.numpy() for name, value in batch_of(8).items()}
        return SequenceArray(whole, SamplerRandom()).with_seed(3).batch(3).collate()

    def uids(split):
        return [batch["sample_uid"].tolist() for batch in split]

    options = create_default_options(tmp_path, 1, "cpu")
    options["workflow_options"]["current_logging_directory"] = str(tmp_path)
    read, untouched = chain(), chain()
    first = uids(read)
    assert uids(untouched) == first
    states = random_states()
    callback = CallbackExplainDecision(4, algorithm=GRADIENT)
    callback(options, [], LooksAtACorner(), {}, None, {"d": {"valid": read}}, {}, None)
    assert len(drawn) == 4
    assert str(random_states()) == str(states)
    assert uids(read) == uids(untouched) != first


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_samples": 0}, ValueError, "max_samples must be at least 1, got 0"),
        ({"nb_explanations": 0}, ValueError, "nb_explanations must be at least 1, got 0"),
        ({"algorithm": ["GradCAM"]}, TypeError, "must be ExplainableAlgorithm, one or several, got 'GradCAM'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        CallbackExplainDecision(**arguments)


def test_the_names_of_the_outputs_are_found_as_documented():
    outputs = LooksAtACorner()(batch_of(1))
    assert CallbackExplainDecision.find_output_name(outputs, None) == "bright"
    assert CallbackExplainDecision.find_output_name(outputs, "dark") == "dark"


def test_the_infos_of_this_file_are_those_of_its_models():
    assert INFOS["d"]["valid"]["output_mappings"].keys() < batch_of(1).keys()
