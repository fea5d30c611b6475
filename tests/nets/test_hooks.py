import pytest
import torch
from torch import nn

from trw_pipeline.nets.hooks import CleanAddedHooks

KINDS = [
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
]


def model():
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2), nn.ReLU()))


def run(module):
    module(torch.randn(4, 3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_that_were_added_are_removed_and_those_from_before_stay(kind):
    net = model()
    calls = []
    getattr(net[1][0], kind)(lambda *args: calls.append("before"))
    with CleanAddedHooks(net):
        for module in (net, net[0], net[1][0]):
            getattr(module, kind)(lambda *args: calls.append("added"))
        run(net)
        assert sorted(calls) == ["added"] * 3 + ["before"]
    calls.clear()
    run(net)
    assert calls == ["before"]


def test_hooks_with_arguments_and_those_that_are_always_called_leave_nothing_behind():
    net = model()

    def nb_hooks():
        return [{name: len(value) for name, value in vars(one).items() if "hooks" in name} for one in net.modules()]

    before = nb_hooks()
    with CleanAddedHooks(net):
        net[0].register_forward_hook(lambda *args, **kwargs: None, with_kwargs=True, always_call=True)
        net[0].register_forward_pre_hook(lambda *args, **kwargs: None, with_kwargs=True)
        run(net)
    assert [
        {name: len(value) for name, value in vars(one).items() if "hooks" in name} for one in net.modules()
    ] == before


def test_an_error_passes_through_and_the_hooks_are_gone():
    net = model()

    def fail():
        with CleanAddedHooks(net):
            net.register_forward_hook(lambda *args: None)
            raise RuntimeError("as it was raised")

    with pytest.raises(RuntimeError, match="as it was raised"):
        fail()
    assert not any(any(ids.values()) for ids in CleanAddedHooks.record_hooks(net))


def test_a_hook_that_was_removed_within_is_no_matter():
    net = model()
    with CleanAddedHooks(net) as context:
        handle = net.register_forward_hook(lambda *args: None)
        handle.remove()
    handle.remove()
    assert context.model is net


def test_a_module_that_joined_within_is_cleaned_too():
    net = model()
    with CleanAddedHooks(net):
        net.append(nn.ReLU())
        net[2].register_forward_hook(lambda *args: None)
    assert CleanAddedHooks.record_hooks(net)[0][net[2]] == set()


def test_contexts_nest():
    net = model()
    with CleanAddedHooks(net):
        outer = net.register_forward_hook(lambda *args: None)
        with CleanAddedHooks(net):
            net.register_forward_hook(lambda *args: None)
        assert CleanAddedHooks.record_hooks(net)[0][net] == {outer.id}


def test_hooks_are_recorded_by_module_and_direction():
    net = model()
    forward = {net[0].register_forward_hook(lambda *args: None).id, net[0].register_forward_pre_hook(print).id}
    backward = {net[1].register_full_backward_hook(lambda *args: None).id}
    ahead, back = CleanAddedHooks.record_hooks(net)
    assert set(ahead) == set(back) == set(net.modules())
    assert {module: ids for module, ids in ahead.items() if ids} == {net[0]: forward}
    assert {module: ids for module, ids in back.items() if ids} == {net[1]: backward}
