"""One batch of tensors out of the features of one dict, or of many.

What the values of one feature, one for each sample, become:

    Python bools                            torch.bool, (N,)
    Python ints                             torch.int64, (N,)
    Python floats                           torch's default float, (N,)
    Python complex numbers                  the complex twin of torch's default float, (N,)
    NumPy scalars, arrays and tensors       their own dtype, float16, bfloat16, uint8, uint16 and complex too;
      without dimensions                      (N,)
    arrays and tensors of one shape         their own dtype, (N, ...)
    several of these dtypes                 the dtype that holds them all (`tensors.promoted`), in whatever order they
                                              come: bools beside ints are ints, ints beside floats are floats
    arrays of a dtype torch has not         a NumPy array: text, bytes, dates, objects, long doubles
    anything else, numbers beside it too    a list: str, np.str_, bytes, Path, None, tuples, lists, dataclasses, ...

Arrays and tensors beside anything else in one feature are an error, as are different shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trw_pipeline.batches.length import feature_names, require_mapping

if TYPE_CHECKING:
    from trw_pipeline.batches.device import Device

# What joins features imports torch, so it is imported at the first call: a worker whose function comes from a module
# that also builds sequences must not pay for torch because of us.


def default_collate_fn(
    batch: Any,
    device: Device,
    pin_memory: bool = False,
    non_blocking: bool = False,
    *,
    shared_features: Collection[str] = (),
) -> dict[str, Any]:
    """Makes one batch of tensors out of a dict of features, or out of a list of such dicts.

    Args:
        batch: a dict, which goes to `collate_dicts`; or a list of dicts, which goes to `collate_list_of_dicts`. Lists
            of dicts within that list (a reservoir draws such) are spliced in, one level deep.
        device: where the tensors are made; None is the CPU.
        pin_memory: copy through page-locked memory; does nothing where CUDA is not available.
        non_blocking: do not wait for the copies from pinned memory to the device.
        shared_features: names of features that hold one value for the whole batch.

    Returns:
        A plain dict; its values are described there.

    Raises:
        TypeError: `batch` is neither a mapping nor a list or tuple of mappings.
        ValueError: the samples do not fit together, or there are none.
    """
    if isinstance(batch, Mapping):
        return collate_dicts(batch, device, pin_memory, non_blocking, shared_features=shared_features)
    if not isinstance(batch, (list, tuple)):
        raise TypeError(f"a batch to collate must be a mapping or a list of mappings, got {type(batch).__name__}")
    batches: list[Any] = []
    for element in batch:
        if isinstance(element, (list, tuple)):
            batches.extend(element)
        else:
            batches.append(element)
    return collate_list_of_dicts(batches, device, pin_memory, non_blocking, shared_features=shared_features)


def collate_dicts(
    batch: Mapping[str, Any],
    device: Device,
    pin_memory: bool = False,
    non_blocking: bool = False,
    *,
    shared_features: Collection[str] = (),
) -> dict[str, Any]:
    """Turns the features of one dict into tensors.

    >>> collate_dicts({"target": [0, 1], "name": ["a", "b"], "source": "mnist"}, device=None)
    {'target': tensor([0, 1]), 'name': ['a', 'b'], 'source': 'mnist'}

    Args:
        batch: feature name -> value; it is not changed.
        device: where the tensors are made; None is the CPU.
        pin_memory: copy through page-locked memory; does nothing where CUDA is not available.
        non_blocking: do not wait for the copies from pinned memory to the device. Copies to the CPU always wait.
        shared_features: names of features that hold one value for the whole batch: their lists stay lists.

    Returns:
        A plain dict with the features of `batch` in their order. Arrays and tensors become tensors on the device;
        lists, holding one value for each sample, become what the table at the top of this file says. Everything
        else is unchanged, but for the arrays and tensors in nested mappings, which move to the device too. On the CPU
        a tensor may share the memory of a writable array, or be the same tensor.

    Raises:
        TypeError: `batch` is not a mapping, or `shared_features` is one string.
        ValueError: arrays in one list differ in shape, or lie beside values of another kind; or a Python int does not
            fit int64. The message names the feature, the samples and their `sample_uid`.
    """
    require_mapping(batch, "a batch to collate")
    shared = feature_names(shared_features)
    from trw_pipeline.batches.joining import gathered_features

    return gathered_features(batch, shared, device, pin_memory, non_blocking)


def collate_list_of_dicts(
    batches: Sequence[Mapping[str, Any]],
    device: Device,
    pin_memory: bool = False,
    non_blocking: bool = False,
    *,
    shared_features: Collection[str] = (),
) -> dict[str, Any]:
    """Joins dicts of features, each one sample or a batch of samples, into one batch of tensors.

    >>> collate_list_of_dicts([{"x": np.zeros((2, 3)), "id": 7}, {"x": np.ones((1, 3)), "id": 8}], device=None)
    {'x': tensor([[0., 0., 0.],
            [0., 0., 0.],
            [1., 1., 1.]], dtype=torch.float64), 'id': tensor([7, 8])}

    Args:
        batches: at least one dict; all have the same features. None is changed.
        device: where the tensors are made; None is the CPU.
        pin_memory: copy through page-locked memory; does nothing where CUDA is not available.
        non_blocking: do not wait for the copies from pinned memory to the device. Copies to the CPU always wait.
        shared_features: names of features that hold one value for the whole batch.

    Returns:
        A plain dict with the features of the first dict in their order:

        - arrays and tensors of at least one dimension are concatenated along axis 0;
        - lists are chained, and the chain becomes what the table at the top of this file says;
        - numbers, text, None and other objects count once for each dict: a tensor of shape (len(batches),), or a list;
        - mappings are joined in the same way into a dict; its features are called "a.b" in errors;
        - a callable that is the same object in all dicts is kept, different ones become a list;
        - a shared feature is kept once, from the first dict; its arrays and tensors move to the device.

        Tensors, arrays and lists are copies, never the memory of the input, even out of a list of one dict. Objects
        that end up in a list are passed on as they are.

    Raises:
        TypeError: `batches` is not a list or tuple of mappings, or `shared_features` is one string.
        ValueError: there are no dicts; a feature is not in all of them; shapes do not fit; kinds of values are mixed
            in one feature; or a Python int does not fit int64. The message names the feature, the samples and their
            `sample_uid`.
    """
    if not isinstance(batches, (list, tuple)):
        raise TypeError(f"batches to collate must be a list of mappings, got {type(batches).__name__}")
    if not batches:
        raise ValueError("batches to collate must hold at least one sample, got an empty list")
    for batch in {type(batch): batch for batch in batches}.values():
        require_mapping(batch, "each batch to collate")
    from trw_pipeline.batches.joining import joined_features

    return joined_features(batches, feature_names(shared_features), device, pin_memory, non_blocking)


def default_collate_list_of_dicts(
    batches: Sequence[Mapping[str, Any]], *, shared_features: Collection[str] = ()
) -> dict[str, Any]:
    """Does `collate_list_of_dicts` on the CPU: how `batch` and `rebatch` join samples unless told otherwise."""
    return collate_list_of_dicts(batches, None, shared_features=shared_features)
