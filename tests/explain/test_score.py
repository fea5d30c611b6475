"""What is explained: the output, the class and its weights."""

import pytest
import torch

from trw_pipeline.explain.score import (
    chosen_output,
    class_weights,
    post_process_output_for_gradient_attribution,
    post_process_output_id,
    score,
)
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.outputs.segmentation import OutputSegmentation

LOGITS = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 1.0]])
HEADS = {
    "embedding": OutputEmbedding(torch.zeros(2, 4)),
    "mask": OutputSegmentation(torch.zeros(2, 2, 3), "m"),
    "y": OutputClassification(LOGITS, "t"),
    "z": OutputClassification(LOGITS + 1, "t"),
}


def choose(outputs, name=None, post_process=post_process_output_id):
    return chosen_output(outputs, name, post_process)


def test_the_first_classification_is_chosen_then_the_first_segmentation_then_what_is_alone():
    assert choose(HEADS)[0] == "y"
    assert choose({name: HEADS[name] for name in ("embedding", "mask")})[0] == "mask"
    assert choose({"embedding": HEADS["embedding"]})[0] == "embedding"
    assert choose(LOGITS) == ("default_output", LOGITS)


def test_an_output_that_is_named_is_chosen():
    name, tensor = choose(HEADS, "z")
    assert name == "z"
    assert torch.equal(tensor, LOGITS + 1)


def test_the_probabilities_of_a_classification_are_those_of_softmax():
    name, tensor = choose(HEADS, None, post_process_output_for_gradient_attribution)
    assert name == "y"
    assert torch.equal(tensor, LOGITS.softmax(1))
    assert post_process_output_for_gradient_attribution(HEADS["mask"]) is HEADS["mask"].output


def test_a_number_for_each_sample_is_a_single_column():
    assert choose(torch.ones(4))[1].shape == (4, 1)


@pytest.mark.parametrize(
    ("outputs", "name", "error", "message"),
    [
        (HEADS, "w", ValueError, r"must be one of \['embedding', 'mask', 'y', 'z'\], got 'w'"),
        ({"a": torch.ones(1), "b": torch.ones(1)}, None, ValueError, r"none of the outputs \['a', 'b'\] is a class"),
        ({"y": torch.ones(2, dtype=torch.int64)}, None, ValueError, r"none of the outputs \['y'\] is a class"),
        (LOGITS, "y", ValueError, "a single tensor, so there is no output 'y'"),
        ([LOGITS], None, TypeError, "must give a tensor or a mapping of outputs, got list"),
        ({"y": "text"}, "y", TypeError, "must be an Output or a tensor, got str"),
    ],
)
def test_what_can_not_be_chosen_is_refused(outputs, name, error, message):
    with pytest.raises(error, match=message):
        choose(outputs, name)


def test_the_score_is_the_logit_of_the_class_that_is_found():
    assert score(LOGITS, class_weights(LOGITS)).tolist() == [3.0, 5.0]


@pytest.mark.parametrize("target", [[2, 1], torch.tensor([2, 1])])
def test_the_score_is_the_logit_of_the_class_asked_for(target):
    assert score(LOGITS, class_weights(LOGITS, target)).tolist() == [2.0, 0.0]
    assert score(LOGITS, class_weights(LOGITS, 0)).tolist() == [1.0, 5.0]


@pytest.mark.parametrize("target", [3, -1, [0, 3], [0], 1.5, [[0], [1]]])
def test_a_class_that_is_not_there_is_refused(target):
    with pytest.raises(ValueError, match="target_class must be"):
        class_weights(LOGITS, target)


@pytest.mark.parametrize("target", ["square", ["circle", "square"], {0: 1}])
def test_what_is_no_class_is_refused_by_name(target):
    with pytest.raises(TypeError, match="target_class must be an int, or one for each sample, got"):
        class_weights(LOGITS, target)


#                      class 0             class 1             class 2           found
SEGMENTED = torch.tensor(
    [
        [[9.0, 0.0, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0]],  # 0 2 0 0
        [[0.0, 0.0, 0.0, 9.0], [3.0, 0.0, 4.0, 0.0], [0.0, 5.0, 0.0, 0.0]],  # 1 2 1 0
        [[9.0, 8.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]],  # 0 0 0 0
    ]
)


def test_a_segmentation_is_summed_over_the_points_of_its_largest_class_but_the_background():
    assert score(SEGMENTED, class_weights(SEGMENTED)).tolist() == [5.0, 7.0, 30.0]


def test_a_class_of_a_segmentation_that_is_found_nowhere_is_summed_over_all_points():
    assert score(SEGMENTED, class_weights(SEGMENTED, 1)).tolist() == [0.0, 7.0, 10.0]
