import pytest
import torch

from trw_pipeline.outputs.output import Output
from trw_pipeline.typing import default_sample_uid_name


class Plain(Output):
    def evaluate_batch(self, batch, is_training):
        return {"loss": self.output.mean()}


def test_a_head_must_say_how_it_judges():
    with pytest.raises(TypeError, match="evaluate_batch"):
        Output(torch.zeros(1), None)


def test_cleanup_lets_go_of_the_graph():
    head = Plain(torch.ones(3, requires_grad=True) * 2, None)
    head.loss_term_cleanup({})
    assert head.output is None


def test_a_head_has_no_figures_unless_it_says_so():
    assert Plain(torch.zeros(1), None).extract_history({"loss": 1.0}) == {}


def test_documented_arguments_and_names():
    head = Plain(torch.zeros(1), None, True, "patient")
    assert (head.collect_output, head.sample_uid_name) == (True, "patient")
    assert (Output.output_ref_tag, default_sample_uid_name) == ("output_ref", "sample_uid")
