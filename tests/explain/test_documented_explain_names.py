"""Arguments of explainers and of the model tools: those that are documented, in their order."""

import inspect
from enum import Enum

import pytest
import torch

import trw_pipeline as trw

NEEDED = inspect.Parameter.empty
FINDS = {"model": NEEDED, "inputs": NEEDED}
TYPES = {"types": (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Conv1d), "relative_index": 0}
SOMETHING = object()
"""A default whose value is our own."""

DOCUMENTED = {
    trw.find_tensor_leaves_with_grad: {"tensor": NEEDED},
    trw.find_last_forward_convolution: FINDS | TYPES,
    trw.find_last_forward_types: FINDS | {"types": NEEDED, "relative_index": 0},
    trw.find_first_forward_convolution: FINDS | {"inputs": None} | TYPES,
    trw.FilterFixed: {"kernel": NEEDED, "groups": 1, "padding": 0},
    trw.FilterGaussian: {
        **dict.fromkeys(("input_channels", "nb_dims", "sigma"), NEEDED),
        "kernel_sizes": None,
        "padding": "same",
        "device": None,
    },
    trw.upsample: {"tensor": NEEDED, "size": NEEDED, "mode": "linear"},
    trw.GradCam: {
        "model": NEEDED,
        "find_convolution": trw.find_last_forward_convolution,
        "post_process_output": SOMETHING,
    },
    trw.GradCam.__call__: {"self": NEEDED, "inputs": NEEDED, "target_class_name": None, "target_class": None},
    trw.GuidedBackprop: {"model": NEEDED, "unguided_gradient": False, "post_process_output": SOMETHING},
    trw.GuidedBackprop.update_relus: {"self": NEEDED},
    trw.GuidedBackprop.get_floating_inputs_with_gradients: {"inputs": NEEDED},
    trw.GuidedBackprop.__call__: {"self": NEEDED, "inputs": NEEDED, "target_class": None, "target_class_name": None},
    trw.GuidedBackprop.get_positive_negative_saliency: {"gradient": NEEDED},
    trw.post_process_output_for_gradient_attribution: {"output": NEEDED},
    trw.IntegratedGradients: {
        "model": NEEDED,
        "steps": 100,
        "baseline_inputs": None,
        "use_output_as_target": False,
        "post_process_output": SOMETHING,
    },
    trw.IntegratedGradients.__call__: {
        "self": NEEDED,
        "inputs": NEEDED,
        "target_class_name": None,
        "target_class": None,
    },
    trw.MeaningfulPerturbation: {
        "model": NEEDED,
        "iterations": 150,
        "l1_coeff": 0.01,
        "tv_coeff": 0.2,
        "tv_beta": 3,
        "noise": 0.2,
        "model_output_postprocessing": SOMETHING,
        "mask_reduction_factor": 8,
        "optimizer_fn": SOMETHING,
        "information_removal_fn": trw.default_information_removal_smoothing,
        "export_fn": None,
    },
    trw.MeaningfulPerturbation.__call__: {
        "self": NEEDED,
        "inputs": NEEDED,
        "target_class_name": None,
        "target_class": None,
    },
    trw.CallbackExplainDecision: {
        "max_samples": 10,
        "dirname": "explained",
        "dataset_name": None,
        "split_name": None,
        "algorithm": (
            trw.ExplainableAlgorithm.MeaningfulPerturbations,
            trw.ExplainableAlgorithm.GuidedBackPropagation,
            trw.ExplainableAlgorithm.GradCAM,
            trw.ExplainableAlgorithm.Gradient,
            trw.ExplainableAlgorithm.IntegratedGradients,
        ),
        "output_name": None,
        "nb_explanations": 1,
        "algorithms_kwargs": SOMETHING,
        "average_filters": True,
    },
    trw.CallbackExplainDecision.first_time: {"self": NEEDED, "datasets": NEEDED, "options": NEEDED},
    trw.CallbackTensorboardEmbedding.first_time: {"self": NEEDED, "datasets": NEEDED, "options": NEEDED},
    trw.CallbackExplainDecision.find_output_name: {"outputs": NEEDED, "name": NEEDED},
    trw.default_algorithm_args: {},
    trw.default_information_removal_smoothing: {"image": NEEDED, "blurring_sigma": 5, "blurring_kernel_size": 23},
}


@pytest.mark.parametrize(("documented", "arguments"), DOCUMENTED.items(), ids=lambda v: getattr(v, "__qualname__", ""))
def test_documented_arguments_come_in_their_order_with_their_defaults(documented, arguments):
    found = {p.name: p.default for p in inspect.signature(documented).parameters.values()}
    assert list(found) == list(arguments)
    for name, default in arguments.items():
        assert found[name] is not NEEDED if default is SOMETHING else found[name] == default


def test_documented_kinds():
    assert issubclass(trw.FilterGaussian, trw.FilterFixed)
    assert issubclass(trw.FilterFixed, torch.nn.Module)
    assert issubclass(trw.ExplainableAlgorithm, Enum)
    assert list(trw.ExplainableAlgorithm.__members__) == [
        "GuidedBackPropagation",
        "GradCAM",
        "Gradient",
        "IntegratedGradients",
        "MeaningfulPerturbations",
    ]
