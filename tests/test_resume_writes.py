"""A program that is killed at any write of a checkpoint, in turn, and what it leaves."""

from __future__ import annotations

from pathlib import Path

KILLED = """
    import builtins, io, os, shutil, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    import torch
    import torch._dynamo  # which each child would import for itself, at its first step
    from toy_trainer import SCORE, Scores, fitting_in, trainer
    from trw_pipeline import files
    from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
    from trw_pipeline.training.checkpoint import checkpoint_at, load_checkpoint, our_files

    def fit(folder, num_epochs, **arguments):
        # The second epoch is the best, too: all three kinds of files are written, and an older one goes.
        callbacks = CallbackCheckpoint(metric=SCORE), Scores([3.0, 2.0])
        fitting_in(folder)(trainer(*callbacks), num_epochs=num_epochs, seed=3, **arguments)

    def in_a_child(function, *arguments, **keywords):
        pid = os.fork()
        if not pid:
            function(*arguments, **keywords)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    class Moments:
        # Counts what changes the folder: files that are made, written to, renamed, linked, removed.
        def __init__(self, kill_at):
            self.left = kill_at

        def __call__(self, event=None, details=()):
            if event in (None, "os.rename", "os.remove", "os.link") or (event == "open" and "x" in str(details[1])):
                self.left -= 1
                if not self.left:
                    os.kill(os.getpid(), signal.SIGKILL)

    def killed(folder, kill_at):
        moments = Moments(kill_at)

        class File(io.FileIO):
            nb_writes = 0

            def write(self, data):
                self.nb_writes += 1
                if self.nb_writes % 4 == 1:  # a file takes dozens
                    if moments.left == 1:
                        super().write(memoryview(data)[: len(data) // 2])
                    moments()
                return super().write(data)

        Path.open = lambda self, mode="r", **how: File(self, mode) if mode == "xb" else io.open(self, mode, **how)
        sys.addaudithook(moments)
        fit(folder, 2, resume=folder / "default_r0")
        print("moments", kill_at - moments.left, flush=True)

    here = Path("runs")
    for name, num_epochs in (("base", 1), ("whole", 2)):
        assert in_a_child(fit, here / name, num_epochs) == 0
    weights = [load_checkpoint(here / name / "default_r0/checkpoints/final.pt")["model"] for name in ("base", "whole")]

    names = {{"best-1.pt", "epoch-1.pt", "final.pt", "last.pt"}}
    nb_killed = nb_found = 0
    while True:
        folder = here / str(nb_killed)
        shutil.copytree(here / "base", folder)
        code = in_a_child(killed, folder, nb_killed + 1)
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        nb_killed += 1
        run = folder / "default_r0"
        found = our_files(run)
        assert {{path.name for path in found}} >= {{"last.pt"}}, found
        for path in found:
            checkpoint = load_checkpoint(path)  # or it is damaged
            epoch = checkpoint["epoch"]
            assert path.stem.partition("-")[2] in ("", str(epoch - 1))
            assert len(checkpoint["history"]) == epoch + checkpoint["is_finished"]
            assert all(torch.equal(checkpoint["model"][name], value) for name, value in weights[epoch - 1].items())
        checkpoint_at(run, 2)
        if len(found) != nb_found or nb_killed % 10 == 0:  # all moments between two names, some while one is written
            assert in_a_child(fit, folder, 2, resume=run) == 0
            assert {{path.name for path in (run / "checkpoints").iterdir()}} == names
            for name in names:
                checkpoint = load_checkpoint(run / "checkpoints" / name)
                assert checkpoint["epoch"] == 2
                assert all(torch.equal(checkpoint["model"][name], value) for name, value in weights[1].items())
        nb_found = len(found)
        shutil.rmtree(folder)
    print("killed", nb_killed, flush=True)
"""


def test_a_kill_at_any_write_leaves_complete_checkpoints_from_which_the_training_goes_on(program):
    """LOG-1: each file under a final name is whole, of one epoch, and left-over files go when the training goes on."""
    result = program(KILLED.format(tests=str(Path(__file__).parent))).finish(100)
    assert result.returncode == 0, result.stderr
    moments, killed = (int(line.split()[1]) for line in result.stdout.splitlines()[-2:])
    assert killed == moments
    assert killed > 30
