"""`SequenceAsyncReservoir`: results are kept and served again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Unpack, cast

from trw_pipeline.executors.compressed import Compressor
from trw_pipeline.executors.cores import with_auto
from trw_pipeline.executors.failures import Failure
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.sequences.continuous_reservoir import ContinuousReservoir
from trw_pipeline.sequences.iterator import Epoch, SequenceIterator, State
from trw_pipeline.sequences.job_options import JobOptions, check_known, lender_of
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.reservoir import Reservoir
from trw_pipeline.sequences.reservoir_iterator import AnyReservoir, ReservoirIterator
from trw_pipeline.sequences.reservoir_options import ReservoirOptions, ReservoirRules
from trw_pipeline.sequences.reservoir_state import position_of
from trw_pipeline.sequences.samplers import Sampler
from trw_pipeline.sequences.stage import StageRecipe, check_count, check_sampler
from trw_pipeline.typing import Function, Item, NbWorkers


def as_drawn(result: Item) -> list[list[Item]]:
    """Returns the one draw that a reservoir makes of a result, in a list for `map` to unroll; none of an empty one."""
    return [] if isinstance(result, list) and not result else [[result]]


def remove_nested_list(items: Item) -> Item:
    """Takes one level off a list that holds nothing but one list."""
    return items[0] if isinstance(items, list) and len(items) == 1 and isinstance(items[0], list) else items


class ReservoirOwner:
    """Has the reservoir of a sequence, or the position that it is to begin with. It knows nothing of the sequence.

    An epoch that goes to a saved position puts another reservoir in its place. Were it to ask the sequence itself, each
    would keep the other alive.

    Args:
        source: the sequence below.
        lender: lends the executor of each reservoir.
        rules: what they live by.
    """

    def __init__(self, source: Recipe, lender: ExecutorLender, rules: ReservoirRules) -> None:
        self._source = source
        self._lender = lender
        self._rules = rules
        self._loaded: State | None = None
        self.reservoir: AnyReservoir | None = None

    def get(self, seed: int) -> AnyReservoir:
        """Returns the reservoir, made if there is none."""
        if self.reservoir is None:
            loaded, self._loaded = self._loaded, None
            source = self._source
            made = Reservoir(
                lambda of, seed=seed: source.open_epoch(Epoch(seed, of)),
                self._lender,
                self._rules,
                seed,
                source.number + 1,
                source.share,
                loaded,
            )
            self.reservoir = ContinuousReservoir(made) if self._rules.is_continuous else made
        return self.reservoir

    def renew(self, state: State) -> AnyReservoir:
        """Returns a reservoir of a saved position, which takes the place of the one that is there."""
        self.replace(state)
        return self.get(state["seed"])

    def replace(self, state: State | None) -> None:
        """Makes the next reservoir begin there. Epochs that are open keep theirs."""
        self.reservoir, self._loaded = None, state

    def position(self) -> State | None:
        """Returns what is to be saved between epochs; None if there is nothing, or it can not be made again."""
        if self.reservoir is None:
            return self._loaded
        return position_of(self.reservoir.mark()) if self.reservoir.can_resume else None

    def close(self) -> None:
        """Gives up the reservoir."""
        reservoir = self.reservoir
        self.replace(None)
        if reservoir is not None:
            reservoir.close_source()


class ReservoirRecipe(StageRecipe):
    """Keeps results of a function and serves them again while workers make fresh ones.

    One epoch draws from what is in the reservoir. The first one starts when `min_reservoir_samples` are in: with 1, the
    default, the first epochs are short, down to a single result. When the source ends it starts again, newly shuffled.
    An epoch that is given up empties nothing. What is drawn is a copy: it never changes, and writing into it changes
    nothing here.

    With `replacement="epoch"` (default) results enter at the start of an epoch, and jobs are sent in their place;
    during an epoch the content is constant. It may be read like any other chain in one process or with workers.

    With `replacement="continuous"` a thread takes results in as they arrive and sends jobs, also while nobody asks for
    an item. An epoch draws as often as there were results at its start, from slots: a slot gives what is in it then. A
    result leaves only after it was served, so none is made in vain, and workers stop when all that is kept is still
    to be served. Stages below without workers run in that thread too, beside the rest of the program: let their
    functions draw from `rng`, since the global generators belong to everybody.

    For a fresh result the oldest leaves, so all stay as long; with `replace_policy="most_served"` the one that was
    served most, which evens out how often each is served where draws are random.

    Which results an epoch holds depends on how fast they were made, unless `deterministic=True`: then the first epoch
    holds `min_reservoir_samples`, before each later one exactly `max_reservoir_replacement_size` enter, in order, and a
    seed gives the same epochs with any workers. Let `max_jobs_at_once` be that size at least, or an epoch has to wait
    for what is still to be made. A function that changes between epochs is seen as late as there are jobs under way.

    `state_dict` holds no result, but of each its pass, key, `sample_uid`, how often it was served and how many entered
    since; and where the source stood before those that lie close, and before the oldest job whose result is not in. On
    resume they are made again first, with the same random numbers, and the open epoch goes on with the same draws;
    what enters later is the same only if `deterministic`. With "continuous" the state is of the moment, and draws find
    what is in their slots. It needs a source that can be resumed, and gives items keys that last.

    Args:
        source_split: gives the items for the function.
        max_reservoir_samples: number of results kept.
        function_to_run: as in `SequenceMap`; a list is one result.
        min_reservoir_samples: number of results without which the first epoch does not start; a source with fewer
            repeats itself.
        nb_workers: at least 1; "auto" as in `SequenceMap`.
        max_jobs_at_once: number of jobs in flight, finished ones included, so the number of results that can be
            replaced between two epochs. 0 is no limit. None is the number of workers, which renews a large reservoir
            slowly: give it a number, such as an eighth of `max_reservoir_samples`. With "continuous", None lets the
            executor find what keeps the workers busy.
        reservoir_sampler: which results are drawn, how many at a time; None draws each once, the oldest first (with
            "continuous", slot by slot).
        collate_fn: called with the list of results of each draw; by default a list of one list loses one level. None
            gives the list.
        maximum_number_of_samples_per_epoch: an epoch ends after so many draws of a result.
        **options: see `trw_pipeline.ReservoirOptions`, and `trw_pipeline.JobOptions` but for `compression`.

    Raises:
        ValueError: an argument out of range, or two that contradict one another. While iterating: the source is empty;
            a result is larger than `max_reservoir_bytes`; so many bytes do not hold `min_reservoir_samples`.
        TypeError: an argument of a wrong kind, or an unknown one.
        ExecutorError: while iterating, all jobs of a whole pass over the source failed or gave nothing.
    """

    def __init__(
        self,
        source_split: Recipe,
        max_reservoir_samples: int,
        function_to_run: Function | list[Function],
        min_reservoir_samples: int = 1,
        nb_workers: NbWorkers = 1,
        max_jobs_at_once: int | None = None,
        reservoir_sampler: Sampler | None = None,
        collate_fn: Callable[..., Item] | None = remove_nested_list,
        maximum_number_of_samples_per_epoch: int | None = None,
        **options: Unpack[ReservoirOptions],
    ) -> None:
        check_known(options, ReservoirOptions)
        super().__init__(
            source_split,
            max_reservoir_samples=check_count("max_reservoir_samples", max_reservoir_samples),
            function_to_run=function_to_run,
            min_reservoir_samples=check_count("min_reservoir_samples", min_reservoir_samples),
            nb_workers=nb_workers if nb_workers == "auto" else check_count("nb_workers", nb_workers),
            max_jobs_at_once=max_jobs_at_once,
            reservoir_sampler=reservoir_sampler,
            collate_fn=collate_fn,
            maximum_number_of_samples_per_epoch=maximum_number_of_samples_per_epoch,
            **options,
        )
        if maximum_number_of_samples_per_epoch is not None:
            check_count("maximum_number_of_samples_per_epoch", maximum_number_of_samples_per_epoch)
        if reservoir_sampler is not None:
            check_sampler("reservoir_sampler", reservoir_sampler)
        rules = ReservoirRules.of(max_reservoir_samples, min_reservoir_samples, options)
        chosen = with_auto(nb_workers, options.get("name") or "async_reservoir")
        bound = chosen if max_jobs_at_once is None and not rules.is_continuous else max_jobs_at_once
        self._lender = _lender_of(chosen, function_to_run, bound, rules, options)
        self._owner = ReservoirOwner(source_split, self._lender, rules)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch; with the first one the workers start."""
        self.check_open()
        given = self._arguments
        return ReservoirIterator(
            self._owner.get(epoch.seed),
            self._owner.renew,
            given["reservoir_sampler"],
            given["collate_fn"],
            given["maximum_number_of_samples_per_epoch"],
            epoch,
            self.number,
        )

    @property
    def _reservoir(self) -> AnyReservoir | None:
        return self._owner.reservoir

    def reservoir_size(self) -> int:
        """Returns the number of results in the reservoir now."""
        return 0 if self._reservoir is None else len(self._reservoir.entries)

    @property
    def is_reproducible(self) -> bool:
        """Whether every pass over an epoch gives the same items in the same order: each finds other results here."""
        return False

    def __len__(self) -> int:
        raise TypeError("the length of async_reservoir is not known: it serves what its workers have finished")

    @property
    def failures(self) -> list[Failure]:
        """The samples that were skipped, here and in the stages before, in the epoch opened last."""
        return [*super().failures, *([] if self._reservoir is None else self._reservoir.log.failures)]

    def own_statistics(self) -> dict[str, Any]:
        """Returns the figures of `JobExecutor.statistics`, and ours.

        `size` results are held, which take `size_bytes`; `waiting` have finished and not entered; `fresh` have entered,
        `replaced` have left; `served` were drawn, so each `echo_factor` times on average; those that are held entered
        `age_s_mean` seconds ago, the oldest `age_s_max`. All since the reservoir was made, here or of a saved state.
        """
        reservoir = self._reservoir
        if reservoir is None:
            return {**super().own_statistics(), "size": 0}
        with reservoir.lock if isinstance(reservoir, ContinuousReservoir) else nullcontext():
            figures = super().own_statistics()
            waiting = figures.get("jobs_finished", 0) + (reservoir.waiting is not None)
            return {**figures, **reservoir.entries.statistics(), "waiting": waiting}

    def own_lender(self) -> ExecutorLender:
        """Returns what lends the executor of this stage."""
        return self._lender

    def kept_state(self) -> State | None:
        """Returns what is in the reservoir, without a sample: where each can be made again."""
        return self._owner.position()

    def load_kept_state(self, state: State | None) -> None:
        """Takes it back; the samples are made again when the next epoch begins."""
        self._owner.replace(state)

    def release(self) -> None:
        """Ends the workers, empties the reservoir, and frees what the stages before own. Idempotent."""
        self._owner.close()
        self._lender.close()
        super().release()

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        kept = self._arguments["max_reservoir_samples"]
        return f"async_reservoir({kept} results of {self._lender.name}, {self._lender.workers})"


def _lender_of(
    nb_workers: int,
    function: Function | list[Function],
    max_jobs_at_once: int | None,
    rules: ReservoirRules,
    options: ReservoirOptions,
) -> ExecutorLender:
    """Returns what lends the executors, whose workers compress what is kept."""
    of_jobs = {name: value for name, value in options.items() if name in JobOptions.__annotations__}
    of_jobs.pop("compression", None)
    of_jobs["in_order"] = of_jobs.get("in_order", False) or rules.is_deterministic
    if rules.compression is not None:
        mapped = MappedFunction(function)
        of_jobs["name"] = of_jobs.get("name") or mapped.name
        function = [*mapped.functions, Compressor(rules.compression)]
    return lender_of(nb_workers, function, max_jobs_at_once, None, cast("JobOptions", of_jobs))
