"""What a classifier did, in numbers: arrays in, a dict of statistics out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from trw_pipeline.outputs.auroc import auroc


def classification_report(
    prediction_scores: np.ndarray,
    trues: Sequence[int] | np.ndarray,
    class_mapping: Mapping[int, str] | None = None,
    *,
    predictions: Sequence[int] | np.ndarray | None = None,
) -> dict[str, Any]:
    """Sum up a classification.

    A ratio whose denominator is 0 (a precision where nothing was found) is NaN.

    Args:
        prediction_scores: `(N, C)`, one score for each class; the highest is the prediction.
        trues: `(N,)` integers in [0, C), the true classes.
        class_mapping: class -> its name, such as `mappinginv`. None: classes are named by their number.
        predictions: `(N,)` integers in [0, C), what was predicted. None: the class with the highest score.

    Returns:
        - `accuracy`, and the same under its documented name `accuracty`: share of the predictions that are right;
        - `confusion_matrix`: `(C, C)` int64, rows are the true classes, columns the predicted ones;
        - `sklearn_report`: a text table of precision, recall, F1 and number of samples of each class that is in truth
          or predictions, with their means and their means weighted by the number of samples. The layout is that of
          scikit-learn, which is not needed;
        - `error_0`, ..., `error_<C-1>`: share of the samples of a class that were predicted as another;
        - for two classes also, of class 1 against class 0, the rates `tpr` (`sensitivity`), `tnr` (`specificity`),
          `ppv`, `npv`, `fpr`, `fnr` and `pdr` (of what was found, the share that is not there), and `auroc`.

    Raises:
        ValueError: the shapes do not fit, there is no sample, or a class is not in [0, C).
    """
    scores, truth = np.asarray(prediction_scores), np.asarray(trues)
    if scores.ndim != 2 or truth.shape != scores.shape[:1] or not len(truth):
        raise ValueError(
            f"prediction_scores must be (N, C) and trues (N,), N at least 1, got {scores.shape} and {truth.shape}"
        )
    nb_classes = scores.shape[1]
    found = scores.argmax(1) if predictions is None else np.asarray(predictions)
    if found.shape != truth.shape:
        raise ValueError(f"predictions must be (N,) like trues, got {found.shape} and {truth.shape}")
    for name, classes in (("trues", truth), ("predictions", found)):
        if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= nb_classes:
            raise ValueError(
                f"{name} must be integers in [0, {nb_classes}), got {classes.dtype} {np.unique(classes)[:10]}"
            )
    matrix = np.bincount(truth * nb_classes + found, minlength=nb_classes**2).reshape(nb_classes, nb_classes)
    report: dict[str, Any] = {"accuracy": float(np.trace(matrix) / len(truth))}
    report["accuracty"] = report["accuracy"]
    report["confusion_matrix"] = matrix
    report["sklearn_report"] = _table(matrix, class_mapping or {})
    report |= {f"error_{index}": _ratio(row.sum() - row[index], row.sum()) for index, row in enumerate(matrix)}
    if nb_classes == 2:
        report |= _binary(matrix) | {"auroc": auroc(truth, scores[:, 1] - scores[:, 0])}
    return report


def report_text(
    report: Mapping[str, Any], class_mapping: Mapping[int, str] | None = None, most_classes: int = 40
) -> str:
    """Write a report as text.

    Args:
        report: what `classification_report` gave.
        class_mapping: class -> its name. None: classes are named by their number.
        most_classes: with more classes than these, the text has no confusion matrix.

    Returns:
        The figures, the table of the classes, the errors that are most frequent, and the confusion matrix.
    """
    names = class_mapping or {}
    matrix: np.ndarray = report["confusion_matrix"]
    figures = {name: value for name, value in report.items() if isinstance(value, float) and "error_" not in name}
    del figures["accuracty"]  # the same again
    parts = ["\n".join(f"{name}: {value:.4f}" for name, value in figures.items()), report["sklearn_report"].rstrip()]
    if errors := _typical_errors(matrix, names):
        parts.append("\n".join(["typical errors:", *errors]))
    if len(matrix) <= most_classes:
        parts.append(_matrix_table(matrix, names))
    return "\n\n".join(parts) + "\n"


def _typical_errors(matrix: np.ndarray, names: Mapping[int, str]) -> list[str]:
    """A line for each of the ten errors that are most frequent."""
    wrong = matrix - np.diag(np.diag(matrix))
    most_frequent = np.argsort(-wrong, axis=None, kind="stable")[:10]
    return [
        f"  {wrong[true, found]:>6} of {matrix[true].sum()}: {names.get(true, str(true))} taken for "
        f"{names.get(found, str(found))}"
        for true, found in ((int(place) // len(wrong), int(place) % len(wrong)) for place in most_frequent)
        if wrong[true, found]
    ]


def _matrix_table(matrix: np.ndarray, names: Mapping[int, str]) -> str:
    titles = [f"{index} {names[index]}" if index in names else str(index) for index in range(len(matrix))]
    width = max(map(len, titles))
    column = max(len(str(matrix.max())), len(str(len(matrix) - 1)))
    lines = ["confusion matrix, a row for each true class, a column for each predicted one:"]
    lines.append(" " * width + "  " + " ".join(f"{index:>{column}}" for index in range(len(matrix))))
    for title, row in zip(titles, matrix, strict=True):
        lines.append(f"{title:<{width}}  " + " ".join(f"{count:>{column}}" for count in row))
    return "\n".join(lines)


@overload
def list_classes_from_mapping(mappinginv: None, default_name: str = "unknown") -> None: ...


@overload
def list_classes_from_mapping(mappinginv: Mapping[int, str], default_name: str = "unknown") -> list[str]: ...


def list_classes_from_mapping(mappinginv: Mapping[int, str] | None, default_name: str = "unknown") -> list[str] | None:
    """List the names of classes 0 ... N by their number.

    Args:
        mappinginv: class -> name; N is the highest class in it. Or None.
        default_name: name of a class that it has not.

    Returns:
        The names; empty for an empty mapping. None for None.
    """
    if mappinginv is None:
        return None
    return [mappinginv.get(index, default_name) for index in range(max(mappinginv, default=-1) + 1)]


def _binary(matrix: np.ndarray) -> dict[str, float]:
    (tn, fp), (fn, tp) = matrix
    ratios = {
        "tpr": _ratio(tp, tp + fn),
        "tnr": _ratio(tn, tn + fp),
        "ppv": _ratio(tp, tp + fp),
        "npv": _ratio(tn, tn + fn),
        "fpr": _ratio(fp, fp + tn),
        "fnr": _ratio(fn, fn + tp),
        "pdr": _ratio(fp, fp + tp),
    }
    return ratios | {"sensitivity": ratios["tpr"], "specificity": ratios["tnr"]}


def _table(matrix: np.ndarray, names: Mapping[int, str]) -> str:
    """A row for each class that is there or was found, then the accuracy and the two means."""
    true, found, hits = matrix.sum(1), matrix.sum(0), np.diag(matrix)
    there = [index for index in range(len(matrix)) if true[index] or found[index]]
    # As in scikit-learn, here a ratio that is not defined is 0, so that it counts in the means.
    figures = np.array(
        [[hits[c] / max(found[c], 1), hits[c] / max(true[c], 1), 2 * hits[c] / (true[c] + found[c])] for c in there]
    )
    weights = true[there]
    rows = [(names.get(c, str(c)), figures[row], true[c]) for row, c in enumerate(there)]
    means = [
        ("macro avg", figures.mean(0), true.sum()),
        ("weighted avg", np.average(figures, axis=0, weights=weights), true.sum()),
    ]
    width = max(len(name) for name, *_ in [*rows, *means])
    lines = [f"{'':>{width}}  {'precision':>9} {'recall':>9} {'f1-score':>9} {'support':>9}", ""]
    lines += [_line(name, width, values, support) for name, values, support in rows]
    accuracy = f"{hits.sum() / true.sum():.2f}"
    lines += ["", f"{'accuracy':>{width}}  {'':>9} {'':>9} {accuracy:>9} {true.sum():>9}"]
    lines += [_line(name, width, values, support) for name, values, support in means]
    return "\n".join(lines) + "\n"


def _line(name: str, width: int, values: np.ndarray, support: int) -> str:
    return f"{name:>{width}}  " + " ".join(f"{value:>9.2f}" for value in values) + f" {support:>9}"


def _ratio(numerator: int, denominator: int) -> float:
    return float(numerator / denominator) if denominator else float("nan")
