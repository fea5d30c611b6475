"""A model that is evaluated in the midst of its training trains on as if nobody had looked."""

import copy

import pytest
import torch
from toy_training import CPU, Net, batches, train

from trw_pipeline.training.callback import Callback, create_hook_table
from trw_pipeline.training.prediction import evaluate, predict
from trw_pipeline.training.run import Run


class Looks(Callback):
    """Evaluates the model at each moment of this hook; `look` is what it does then."""

    def __init__(self, look):
        self.look = look
        self.nb_looks = 0

    def note(self, run):
        self.nb_looks += 1
        self.look(run.model)


def looking(hook, look):
    kind = type("LooksAt", (Looks,), {hook: lambda self, run: self.note(run)})
    return kind(look)


def fails(model):
    with pytest.raises(ValueError, match="truth"):
        evaluate(model, [{"x": torch.ones(2, 3)}])


LOOKS = {
    "evaluate": lambda model: evaluate(model, batches(7, 3, seed=1)),
    "predict": lambda model: predict(model, batches(7, 3, seed=1)),
    "an evaluation that fails": fails,
}


@pytest.mark.parametrize("hook", ["on_split_start", "on_batch_start", "on_step_start", "on_batch_end"])
@pytest.mark.parametrize("look", LOOKS)
def test_weights_statistics_and_figures_are_those_of_a_training_nobody_looked_at(hook, look):
    """LOOP-1: the mode and the gradients of every training batch, and what batch normalisation gathers."""
    torch.manual_seed(0)
    mine = Net(dropout=0.5)
    theirs = copy.deepcopy(mine)
    histories = []
    looks = looking(hook, LOOKS[look])
    for model, callbacks in ((mine, [looks]), (theirs, [])):
        torch.manual_seed(1)
        run = Run(model, CPU, hooks=create_hook_table(per_epoch=callbacks))
        histories.append(train(model, batches(11, 3), run=run)[1])
    assert looks.nb_looks >= 1
    states = mine.state_dict(), theirs.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert histories[0]["y"] == histories[1]["y"]
    training = [seen for seen in mine.seen if seen != (False, False)]
    assert training == theirs.seen == [(True, True)] * 4
