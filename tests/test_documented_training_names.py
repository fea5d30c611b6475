"""The names, arguments and defaults of training that are documented: those of the reference, in its order."""

from __future__ import annotations

import inspect

import pytest
import torch

import trw_pipeline as trw

NEEDED = inspect.Parameter.empty
"""The argument has no default."""

SOMETHING = object()
"""There is a default, which the reference does not write down, or makes at import; here it is made for each object."""

HEAD = {
    "criterion_fn": SOMETHING,
    "collect_output": True,
    "collect_only_non_training_output": False,
    "metrics": SOMETHING,
    "loss_reduction": SOMETHING,
    "weight_name": None,
    "loss_scaling": 1.0,
    "output_postprocessing": SOMETHING,
    "sample_uid_name": "sample_uid",
}


def of_head(target: str, *names: str, **changed: object) -> dict[str, object]:
    return {"output": NEEDED, target: NEEDED, **{name: (HEAD | changed)[name] for name in names}}


def of_split(*middle: str) -> dict[str, object]:
    names = ("device", "dataset_name", "split_name", "split", *middle, "model", "loss_fn", "history")
    return dict.fromkeys(names, NEEDED)


def of_optimizer(*names: str, **defaults: object) -> dict[str, object]:
    return dict.fromkeys(("datasets", "model", *names), NEEDED) | defaults


FIT = {
    "options": NEEDED,
    "inputs_fn": NEEDED,
    "model_fn": NEEDED,
    "optimizers_fn": NEEDED,
    "losses_fn": trw.default_sum_all_losses,
    "loss_creator": trw.create_losses_fn,
    "run_prefix": "default",
}

CALLBACK = dict.fromkeys(
    ("self", "options", "history", "model", "losses", "outputs", "datasets", "datasets_infos", "callbacks_per_batch"),
    NEEDED,
)

DOCUMENTED = {
    trw.create_default_options: {"logging_directory": None, "num_epochs": 50, "device": None},
    trw.Trainer: {
        "callbacks_per_batch_fn": None,
        "callbacks_per_batch_loss_terms_fn": None,
        "callbacks_per_epoch_fn": trw.default_per_epoch_callbacks,
        "callbacks_pre_training_fn": trw.default_pre_training_callbacks,
        "callbacks_post_training_fn": trw.default_post_training_callbacks,
        "trainer_callbacks_per_batch": trw.trainer_callbacks_per_batch,
        "run_epoch_fn": trw.epoch_train_eval,
    },
    trw.Trainer.fit: {"self": NEEDED, **FIT, "with_final_evaluation": True, "eval_every_X_epoch": 1},
    trw.Trainer.save_model: {"model": NEEDED, "result": NEEDED, "path": NEEDED},
    trw.Trainer.load_model: {"path": NEEDED, "with_result": False, "device": None},
    trw.run_trainer_repeat: {
        "trainer": NEEDED,
        **FIT,
        "eval_every_X_epoch": 1,
        "number_of_training_runs": 10,
        "post_init_fn": None,
    },
    trw.epoch_train_eval: {
        **dict.fromkeys(("options", "datasets", "optimizers", "model", "losses", "schedulers", "history"), NEEDED),
        **dict.fromkeys(("callbacks_per_batch", "callbacks_per_batch_loss_terms", "run_eval"), NEEDED),
        "eval_loop_fn": trw.eval_loop,
        "train_loop_fn": trw.train_loop,
    },
    trw.eval_loop: of_split() | {"callbacks_per_batch": None, "callbacks_per_batch_loss_terms": None},
    trw.train_loop: of_split("optimizer")
    | {"callbacks_per_batch": NEEDED, "callbacks_per_batch_loss_terms": NEEDED, "apply_backward": True},
    trw.create_losses_fn: {"datasets": NEEDED, "generic_loss": NEEDED},
    trw.default_sum_all_losses: dict.fromkeys(("dataset_name", "batch", "loss_terms"), NEEDED),
    trw.create_optimizers_fn: of_optimizer("optimizer_fn", scheduler_fn=None),
    trw.create_sgd_optimizers_fn: of_optimizer("learning_rate", momentum=0.9, weight_decay=0, scheduler_fn=None),
    trw.create_adam_optimizers_fn: of_optimizer("learning_rate", weight_decay=0, scheduler_fn=None),
    trw.create_sgd_optimizers_scheduler_step_lr_fn: of_optimizer(
        "learning_rate", "step_size", "gamma", weight_decay=0, momentum=0.9
    ),
    trw.create_adam_optimizers_scheduler_step_lr_fn: of_optimizer(
        "learning_rate", "step_size", "gamma", weight_decay=0
    ),
    trw.create_scheduler_step_lr: {"optimizer": NEEDED, "step_size": 30, "gamma": 0.1},
    trw.set_optimizer_learning_rate: {"optimizer": NEEDED, "learning_rate": NEEDED},
    trw.Output: {"output": NEEDED, "criterion_fn": NEEDED, "collect_output": False, "sample_uid_name": None},
    trw.OutputClassification: of_head(
        "classes_name",
        *[name for name in HEAD if name != "sample_uid_name"],
        "maybe_optional",
        "sample_uid_name",
        maybe_optional=False,
    ),
    trw.OutputRegression: of_head("target_name", *HEAD),
    trw.OutputSegmentation: of_head(
        "target_name",
        "criterion_fn",
        "collect_only_non_training_output",
        "metrics",
        "loss_reduction",
        "weight_name",
        "loss_scaling",
        "collect_output",
        "output_postprocessing",
        "sample_uid_name",
        collect_only_non_training_output=True,
    ),
    trw.OutputEmbedding: {"output": NEEDED, "clean_loss_term_each_batch": False, "sample_uid_name": "sample_uid"},
    trw.OutputRecord: {"output": NEEDED},
    trw.Output.evaluate_batch: {"self": NEEDED, "batch": NEEDED, "is_training": NEEDED},
    trw.Output.extract_history: {"self": NEEDED, "outputs": NEEDED},
    trw.Output.loss_term_cleanup: {"self": NEEDED, "loss_term": NEEDED},
    trw.Callback.__call__: CALLBACK,
    trw.CallbackEpochSummary: {"logger": SOMETHING, "track_best_so_far": True},
    trw.CallbackActivationStatistics: {"dataset_name": None, "split_name": "train", "logger_fn": SOMETHING},
    trw.CallbackLearningRateRecorder: {"dirname": "lr_recorder"},
    trw.CallbackLearningRateFinder: {
        "nb_samples_per_learning_rate": 1000,
        "learning_rate_start": 1e-6,
        "learning_rate_stop": 10.0,
        "learning_rate_mul": 1.2,
        "dataset_name": None,
        "split_name": None,
        "dirname": "lr_finder",
        "identify_learning_rate_section": trw.default_identify_learning_rate_section,
        "set_new_learning_rate": False,
        "param_maximum_loss_ratio": 0.8,
    },
    trw.CallbackExportConvolutionKernel: {
        "export_frequency": 500,
        "dirname": "convolution_kernels",
        "find_convolution_fn": trw.find_first_forward_convolution,
        "dataset_name": None,
        "split_name": None,
        "export_filter_fn": trw.default_export_filter,
    },
    trw.default_pre_training_callbacks: {
        "logger": SOMETHING,
        "with_lr_finder": False,
        "with_export_augmentations": True,
    },
    trw.default_per_epoch_callbacks: {
        "logger": SOMETHING,
        "with_worst_samples_by_epoch": True,
        "with_activation_statistics": False,
        "convolutional_kernel_export_frequency": None,
    },
    trw.CallbackModelSummary: {"logger": SOMETHING, "dataset_name": None, "split_name": None},
    trw.model_summary: {"model": NEEDED, "batch": NEEDED, "logger": NEEDED},
    trw.CallbackSaveLastModel: {"model_name": "last"},
    trw.CallbackExportHistory: {"export_dirname": "history", "metrics_to_report": SOMETHING},
    trw.CallbackClearTensorboardLog: {},
    trw.CallbackTensorboardRecordHistory: {},
    trw.CallbackTensorboardRecordModel: {"dataset_name": None, "split_name": None, "onnx_folder": "onnx"},
    trw.CallbackTensorboardEmbedding: {
        "embedding_name": NEEDED,
        "dataset_name": None,
        "split_name": None,
        "image_name": None,
        "maximum_samples": 2000,
        "keep_features_fn": SOMETHING,
    },
    trw.CallbackExportBestHistory: {"filename": "best_history.txt", "metric_to_discard": SOMETHING},
    trw.CallbackExportClassificationReport: dict.fromkeys(
        ("with_confusion_matrix", "with_ROC", "with_history", "with_report"), True
    ),
    trw.CallbackDataSummary: {"logger": SOMETHING, "collect_stats": True},
    trw.CallbackExportAugmentations: {
        "nb_samples": 10,
        "nb_augmentation": 5,
        "dirname": "augmentations",
        "split_name": None,
        "uid_name": "sample_uid",
        "keep_samples": False,
    },
    trw.CallbackExportClassificationErrors: {"max_samples": 100, "discard_train": True, "dirname": "errors"},
    trw.CallbackExportSamples: {
        "max_samples": 20,
        "dirname": "samples",
        "loss_terms_inclusion": None,
        "feature_exclusions": None,
        "dataset_exclusions": None,
        "split_exclusions": None,
    },
    trw.CallbackSkipEpoch: {"nb_epochs": NEEDED, "callbacks": NEEDED},
    trw.CallbackWorstSamplesByEpoch: {
        "split_names": None,
        "output_name": None,
        "dataset_name": None,
        "dirname": "worst_samples_by_epoch",
        "sort_samples_by_loss_error": True,
        "worst_k_samples": 1000,
        "export_top_k_samples": 50,
        "uids_name": "sample_uid",
        "output_of_interest": (trw.OutputClassification, trw.OutputSegmentation, trw.OutputRegression),
    },
    trw.CallbackWorstSamplesByEpoch.first_time: dict.fromkeys(("self", "datasets", "outputs"), NEEDED),
    trw.CallbackWorstSamplesByEpoch.sort_split_data: {
        "errors_by_sample": NEEDED,
        "worst_k_samples": NEEDED,
        "discard_first_n_epochs": 0,
    },
    trw.CallbackWorstSamplesByEpoch.export_stats: dict.fromkeys(
        ("self", "model", "losses", "datasets", "datasets_infos", "options", "callbacks_per_batch"), NEEDED
    ),
    trw.CallbackZipSources: {
        "folders_to_record": NEEDED,
        "extensions": SOMETHING,
        "filename": "sources.zip",
        "max_width": 200,
    },
    trw.default_classification_metrics: {},
    trw.default_regression_metrics: {},
    trw.default_segmentation_metrics: {},
    trw.auroc: {"trues": NEEDED, "found_1_scores": NEEDED},
    trw.classification_report: {"prediction_scores": NEEDED, "trues": NEEDED, "class_mapping": None},
    trw.list_classes_from_mapping: {"mappinginv": NEEDED, "default_name": "unknown"},
    trw.as_rgb_image: {"value": NEEDED},
    trw.as_image_ui8: {"image": NEEDED, "min_value": None, "max_value": None},
    trw.export_image: {"image": NEEDED, "path": NEEDED},
    trw.export_figure: {"path": NEEDED, "name": NEEDED, "maximum_length": 259, "dpi": 300},
    trw.plot_group_histories: dict.fromkeys(("root", "history_values", "title", "xlabel", "ylabel"), NEEDED)
    | {"max_nb_plots_per_group": 5, "colors": SOMETHING},
    trw.plot_roc: dict.fromkeys(("export_path", "trues", "found_scores_1", "title"), NEEDED)
    | {"label_name": None, "colors": None},
    trw.boxplots: dict.fromkeys(("export_path", "features_trials", "title", "xlabel", "ylabel"), NEEDED)
    | {
        "meanline": False,
        "plot_trials": True,
        "scale": "linear",
        "y_range": None,
        "rotate_x": None,
        "showfliers": False,
        "maximum_chars_per_line": 50,
        "title_line_height": 0.055,
    },
    trw.confusion_matrix: dict.fromkeys(("export_path", "classes_predictions", "classes_trues"), NEEDED)
    | {
        "classes": None,
        "normalize": False,
        "title": "Confusion matrix",
        "cmap": "plasma",
        "display_numbers": True,
        "maximum_chars_per_line": 50,
        "rotate_x": None,
        "rotate_y": None,
        "display_names_x": True,
        "sort_by_decreasing_sample_size": True,
        "excludes_classes_with_samples_less_than": None,
        "main_font_size": 16,
        "sub_font_size": 8,
        "normalize_unit_percentage": False,
    },
    trw.LossDiceMulticlass: {"normalization_fn": torch.nn.Sigmoid, "eps": 0.0001},
    trw.LossDiceMulticlass.forward: {"self": NEEDED, "output": NEEDED, "target": NEEDED},
    trw.create_or_recreate_folder: {"path": NEEDED, "nb_tries": 3, "wait_time_between_tries": 2.0},
    trw.safe_filename: {"string": NEEDED},
    trw.find_default_dataset_and_split_names: {
        "datasets": NEEDED,
        "default_dataset_name": None,
        "default_split_name": None,
        "train_split_name": None,
    },
    trw.time_it: {"time_name": None, "log": None},
    trw.time_it.__call__: {"self": NEEDED, "fn": NEEDED},
    trw.CleanAddedHooks: {"model": NEEDED},
    trw.CleanAddedHooks.__exit__: dict.fromkeys(("self", "type", "value", "traceback"), NEEDED),
    trw.CleanAddedHooks.record_hooks: {"module_source": NEEDED},
    trw.get_device: {"module": NEEDED, "batch": None},
    trw.to_value: {"v": NEEDED},
    trw.len_batch: {"batch": NEEDED},
    trw.transfer_batch_to_device: {"batch": NEEDED, "device": NEEDED, "non_blocking": False},
    trw.default_collate_fn: {"batch": NEEDED, "device": NEEDED, "pin_memory": False, "non_blocking": False},
    trw.collate_dicts: {"batch": NEEDED, "device": NEEDED, "pin_memory": False, "non_blocking": False},
    trw.collate_list_of_dicts: {"batches": NEEDED, "device": NEEDED, "pin_memory": False, "non_blocking": False},
}


@pytest.mark.parametrize(("documented", "arguments"), DOCUMENTED.items(), ids=lambda v: getattr(v, "__qualname__", ""))
def test_documented_arguments_come_in_their_order_with_their_defaults(documented, arguments):
    parameters = inspect.signature(documented).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD}
    assert list(positional) == list(arguments)
    for name, default in arguments.items():
        if default is SOMETHING:
            assert positional[name] is not NEEDED
        else:
            assert positional[name] == default


@pytest.mark.parametrize("documented", DOCUMENTED, ids=lambda v: getattr(v, "__qualname__", ""))
def test_what_is_new_is_keyword_only_and_has_a_default(documented):
    parameters = inspect.signature(documented).parameters.values()
    assert all(p.default is not NEEDED for p in parameters if p.kind == p.KEYWORD_ONLY)


@pytest.mark.parametrize("kind", [trw.OutputClassification, trw.OutputRegression, trw.OutputSegmentation])
def test_heads_have_the_documented_base_and_methods(kind):
    assert issubclass(kind, trw.Output)
    for name in ("evaluate_batch", "extract_history", "loss_term_cleanup"):
        expected = list(inspect.signature(getattr(trw.Output, name)).parameters)
        assert list(inspect.signature(getattr(kind, name)).parameters) == expected


def test_the_documented_tags():
    assert trw.Output.output_ref_tag == "output_ref"
    assert trw.default_sample_uid_name == "sample_uid"
    assert issubclass(trw.OutputEmbedding, trw.Output)
    assert issubclass(trw.OutputRecord, trw.Output)
    assert issubclass(trw.LossDiceMulticlass, torch.nn.Module)


CALLED_AS_DOCUMENTED = [
    kind
    for kind in (getattr(trw, name) for name in trw.__all__ if name.startswith("Callback"))
    if kind.__call__ is not trw.Callback.__call__
]


@pytest.mark.parametrize("kind", CALLED_AS_DOCUMENTED)
def test_callbacks_are_called_as_documented(kind):
    assert issubclass(kind, trw.Callback)
    parameters = inspect.signature(kind.__call__).parameters
    assert list(parameters)[:-1] == list(CALLBACK)
    assert list(parameters.values())[-1].kind == inspect.Parameter.VAR_KEYWORD
