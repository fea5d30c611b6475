"""Trainings that are killed at any moment, and go on."""

from pathlib import Path

from toy_binseg import log_of, same_weights, saved, without_times

KILLED = """
    import os, random, signal, sys, time
    sys.path.insert(0, {tests!r})
    import torch
    from toy_binseg import Training

    NB_KILLS = 20
    Training(os.path.join({folder!r}, "before")).run(1)  # what torch imports late is here from now on

    def started(name, seed):
        child = os.fork()
        if not child:
            torch.manual_seed(seed)
            Training(os.path.join({folder!r}, name), dropout=0.5, noise=0.5).run(12)
            os._exit(0)
        return child

    began = time.monotonic()
    assert os.waitpid(started("whole", 0), 0)[1] == 0
    whole_s = time.monotonic() - began
    moments, nb_killed = random.Random(0), 0
    for number in range(NB_KILLS):
        child = started("killed", number)
        time.sleep(moments.uniform(0, whole_s / 4))
        os.kill(child, signal.SIGKILL)
        nb_killed += os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.waitpid(started("killed", 0), 0)[1] == 0
    print(nb_killed)
"""


def test_a_training_that_is_killed_at_random_goes_on_to_the_same_end(program, tmp_path):
    """T19, T22."""
    result = program(KILLED.format(tests=str(Path(__file__).parent), folder=str(tmp_path))).finish(100)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 1
    logs = [without_times(log_of(tmp_path / name)) for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    assert [row["epoch"] for row in logs[1]] == [str(epoch) for epoch in range(1, 13)]
    for name in ("model_final_epoch", "model_lowest_valid_loss"):
        one, other = (saved(tmp_path / folder, name) for folder in ("whole", "killed"))
        assert one["epoch"] == other["epoch"]
        assert same_weights(one["model"], other["model"])
    assert not [path.name for path in (tmp_path / "killed").iterdir() if path.suffix == ".tmp"]
