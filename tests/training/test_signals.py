"""Who hears a signal while a training runs, and after it."""

import signal
import threading

import pytest
from toy_resume import same_weights, without_times
from toy_trainer import broken, fitting_in, trainer

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.checkpoint import load_checkpoint

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Raises(Callback):
    """Sends the process a signal while a batch is at work, and notes where the training stood."""

    def __init__(self, number, times=1, hook="on_loss"):
        self.number = number
        self.left = times
        self.seen = []
        setattr(self, hook, self.send)

    def on_loss(self, run):
        pass

    def on_batch_end(self, run):
        self.seen.append((run.epoch, run.split, run.batch_index))

    def send(self, run):
        while self.left and run.batch_index == 1:
            self.left -= 1
            signal.raise_signal(self.number)


@pytest.fixture(autouse=True)
def _handlers_are_put_back():
    before = [signal.getsignal(number) for number in NUMBERS]
    yield
    after = [signal.getsignal(number) for number in NUMBERS]
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_the_batch_at_work_is_finished_and_the_checkpoint_is_of_that_moment(tmp_path, number, error):
    """STOP-5, STOP-6: what ends the training is raised, so that nothing after `fit` takes it for a success."""
    raises = Raises(number)
    with pytest.raises(error) as raised:
        fitting_in(tmp_path)(trainer(raises, CallbackCheckpoint()))
    assert error is KeyboardInterrupt or raised.value.code == 128 + number
    assert raises.seen == [(0, "train", 0), (0, "train", 1)]
    assert (tmp_path / "default_r0" / "checkpoints" / "last.pt").exists()


def test_a_second_one_ends_it_at_once(tmp_path):
    raises = Raises(signal.SIGINT, times=2)
    with pytest.raises(KeyboardInterrupt):
        fitting_in(tmp_path)(trainer(raises, CallbackCheckpoint()))
    assert raises.seen == [(0, "train", 0)]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_a_handler_of_the_user_is_called_and_stays(tmp_path, number):
    """STOP-5."""
    heard = []
    before = signal.signal(number, mine := lambda number, frame: heard.append(number))
    try:
        _, result = fitting_in(tmp_path)(trainer(Raises(number), CallbackCheckpoint()))
        assert heard == [number]
        assert len(result["history"]) == 3
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("hook", ["on_fit_start", "on_epoch_end", "on_fit_end"])
def test_handlers_are_put_back_however_a_training_fails(tmp_path, hook):
    for callbacks in (
        (CallbackCheckpoint(), broken(OSError("no"), hook)),
        (broken(OSError("no"), hook), CallbackCheckpoint()),
    ):
        with pytest.raises(OSError, match="no"):
            fitting_in(tmp_path)(trainer(*callbacks))


def test_a_checkpoint_in_the_pre_training_list_takes_no_signals(tmp_path):
    """The fixture sees whose they are afterwards."""
    fitting_in(tmp_path)(trainer(pre=[CallbackCheckpoint()]))


def test_a_training_in_another_thread_sets_no_handlers(tmp_path):
    seen = []

    class Looks(Callback):
        def on_loss(self, run):
            seen.append([signal.getsignal(number) for number in NUMBERS])

    before = [signal.getsignal(number) for number in NUMBERS]
    thread = threading.Thread(target=lambda: fitting_in(tmp_path)(trainer(Looks(), CallbackCheckpoint())))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert seen
    assert all(handlers == before for handlers in seen)


def test_one_that_comes_while_an_epoch_ends_loses_nothing_of_that_epoch(tmp_path):
    """STOP-5: also where epochs have no checkpoint of their own."""

    class InItsEnd(Callback):
        def on_epoch_end(self, run):
            if run.epoch == 1 and not run.resumed:
                signal.raise_signal(signal.SIGTERM)

    def fit(folder, *callbacks, **arguments):
        callbacks = (*callbacks, CallbackTrainLog(), CallbackCheckpoint(every_n_epochs=9))
        return fitting_in(folder)(trainer(*callbacks), num_epochs=4, seed=3, **arguments)

    whole = fit(tmp_path / "whole")
    with pytest.raises(SystemExit):
        fit(tmp_path, InItsEnd())
    assert load_checkpoint(tmp_path / "default_r0" / "checkpoints" / "last.pt")["epoch"] == 2
    again = fit(tmp_path, InItsEnd(), resume=tmp_path / "default_r0")
    assert same_weights(whole[0], again[0])
    assert without_times(whole[1]["history"]) == without_times(again[1]["history"])


@pytest.mark.parametrize("with_final_evaluation", [True, False])
@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_one_that_comes_too_late_to_end_anything_is_raised_all_the_same(tmp_path, number, error, with_final_evaluation):
    """STOP-6: what comes after `fit` in the program was to be ended too; the training itself is finished."""

    class InTheLastBatch(Callback):
        def on_split_end(self, run):
            if run.epoch == (2 if with_final_evaluation else 1) and run.split == "valid":
                signal.raise_signal(number)

    fit = fitting_in(tmp_path)
    with pytest.raises(error):
        fit(trainer(InTheLastBatch(), CallbackCheckpoint()), with_final_evaluation=with_final_evaluation)
    _, result = fit(
        trainer(CallbackCheckpoint()), resume=tmp_path / "default_r0", with_final_evaluation=with_final_evaluation
    )
    assert len(result["history"]) == 2 + with_final_evaluation
    assert load_checkpoint(tmp_path / "default_r0" / "checkpoints" / "final.pt")["is_finished"]
