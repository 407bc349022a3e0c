"""The search for one model: which trials it proposes, how each is computed and stored, which is the best.

What a trial is given depends on its number, the seed and (`tpe`) the trials before it alone, and only finished trials
are stored, each in one step: a search that was killed proposes the same trial again, goes on from its last checkpoint,
and ends with the same settings as one that was not, whatever the number of workers. Only the parent process writes to
the storage; a worker that judges whether a trial is hopeless gets the trials before it along.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ovo_clinic import provenance, resources, runs, study
from ovo_clinic.errors import MachineError, UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepared import Prepared
from ovo_clinic.settings import Range
from ovo_clinic.study import Arm
from ovo_clinic.tasks import task_for
from ovo_clinic.tuned import own_keys, with_settings

optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces every study and trial

NUMBER, REASON, EPOCHS, SECONDS = "number", "reason", "epochs", "seconds"
"""What is stored with a trial."""
PRUNER = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2)
"""Ends a trial whose best epoch is below the median of the earlier trials at the same epoch."""
EARLIER = 10
"""So many random trials come before `tpe` learns from them."""


@dataclass(frozen=True)
class Trial:
    """One trial for a worker; see `scheduling.Job`.

    Attributes:
        experiment: with the trial's settings.
        data: folder of the prepared data set.
        number: from 0, in the order in which they were proposed.
        folder: of the trial, named by its number and its settings.
        label: of the model.
        settings: by key of the search space.
        lower: whether a lower metric is better.
        earlier: the trials before it, against which it is judged each epoch; None = it is never judged.
    """

    experiment: Experiment
    data: Path
    number: int
    folder: Path
    label: str
    settings: Mapping[str, Any]
    lower: bool
    earlier: tuple[FrozenTrial, ...] | None

    def run(self) -> None:
        """Trains it where it is not finished yet; settings that cannot be trained are a result as well.

        Raises:
            MachineError: it is this machine on which they cannot.
        """
        from ovo_clinic import training

        hopeless = None if self.earlier is None else _judge(self.earlier, self.lower)
        try:
            training.validate(self.experiment, Prepared.open(self.data), self.folder, hopeless)
        except MachineError:
            raise
        except UserError as error:
            runs.write_result(self.folder, {"error": str(error)})


def _judge(earlier: Sequence[FrozenTrial], lower: bool) -> Callable[[int, float], bool]:
    """Whether the pruner would end a trial that comes after others, told its validation metric epoch by epoch."""
    memory = _memory(None, lower, earlier)
    trial = memory.ask()

    def hopeless(epoch: int, value: float) -> bool:
        trial.report(value, epoch)
        return bool(trial.should_prune())  # of numpy, which JSON does not know

    return hopeless


def _memory(
    sampler: optuna.samplers.BaseSampler | None, lower: bool, trials: Iterable[FrozenTrial] = ()
) -> optuna.Study:
    """A study in memory that knows some trials."""
    found = optuna.create_study(direction=_direction(lower), sampler=sampler, pruner=PRUNER)
    found.add_trials(trials)
    return found


def _direction(lower: bool) -> StudyDirection:
    return StudyDirection.MINIMIZE if lower else StudyDirection.MAXIMIZE


class Search:
    """The search for one model.

    Args:
        arm: the model and its settings.
        prepared: the data.
        fixed: keys of the space that are not searched for this model.
        storage: of Optuna.

    Raises:
        UserError: a value in the space that the model cannot have.
    """

    def __init__(
        self, arm: Arm, prepared: Prepared, fixed: Iterable[str], storage: optuna.storages.BaseStorage
    ) -> None:
        self.arm, self._prepared, self._settings = arm, prepared, arm.experiment.tune
        keys = [key for key in self._settings.space if key not in set(fixed) and own_keys(arm.experiment, key)]
        self._space = {key: _distribution(self._settings.space[key]) for key in keys}
        _check_values(arm, prepared, {key: self._settings.space[key] for key in keys})
        self.budget = int(min(self._settings.trials, _combinations(self._space)))
        self._lower = runs.lower_is_better(monitor(arm.experiment, prepared))
        # The budget is no part of it: a larger one goes on where a smaller one ended.
        self.key = provenance.digest_of(
            [
                arm.label,
                arm.experiment.digest(),
                prepared.manifest["key"],
                provenance.code_digest(),
                self._settings.sampler,
                {key: repr(distribution) for key, distribution in self._space.items()},
            ]
        )[:32]
        self._study = optuna.create_study(
            storage=storage,
            study_name=f"{arm.experiment.task}-{arm.label}-{self.key[:8]}",
            direction=_direction(self._lower),
            load_if_exists=True,
        )

    def jobs(self) -> list[Trial]:
        """What can be computed now and is not finished: the next trial for `tpe`, else all."""
        done = self.finished()
        if self._settings.sampler == "tpe":
            number = next(number for number in range(self.budget + 1) if number not in done)
            return [self._proposed(done, number)] if number < self.budget else []
        return [
            self._trial(number, settings, None) for number, settings in enumerate(self._planned()) if number not in done
        ]

    def record(self, job: Trial) -> list[Trial]:
        """Stores a trial that was computed; returns those that can follow."""
        self._study.add_trial(_frozen(job, self._space, runs.read_result(job.folder)))
        return self.jobs() if self._settings.sampler == "tpe" else []

    def finished(self) -> dict[int, FrozenTrial]:
        """The trials of the budget that are stored, by number."""
        found = self._study.get_trials(deepcopy=False)
        # Of two that were computed at the same time in different places, which are alike, the first counts.
        numbered = {trial.user_attrs[NUMBER]: trial for trial in reversed(found)}
        return {number: numbered[number] for number in sorted(numbered) if number < self.budget}

    def best(self) -> FrozenTrial:
        """The first of the best complete trials.

        Raises:
            UserError: none is complete.
        """
        trials = self.finished().values()
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if not complete:
            reason = next(trial.user_attrs[REASON] for trial in trials if trial.state == TrialState.FAIL)
            raise UserError(f"tune: no trial of {self.arm.label} could be trained; the first: {reason}")
        sign = -1 if self._lower else 1
        return max(complete, key=lambda trial: sign * trial.values[0])

    def _planned(self) -> list[dict[str, Any]]:
        """The settings of all trials where none depends on another's result."""
        if self._settings.sampler == "grid":
            values = {key: _choices(distribution) for key, distribution in self._space.items()}
            sampler: Any = optuna.samplers.GridSampler(values, seed=self.arm.experiment.seed)
        else:
            sampler = optuna.samplers.RandomSampler(seed=self.arm.experiment.seed)
        memory = _memory(sampler, self._lower)
        return [memory.ask(self._space).params for _ in range(self.budget)]

    def _proposed(self, done: Mapping[int, FrozenTrial], number: int) -> Trial:
        """The trial that `tpe` proposes after those before it."""
        earlier = tuple(done[before] for before in range(number))
        seed = (self.arm.experiment.seed * 100_003 + number) % 2**32  # as far as numpy takes one
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=EARLIER)
        return self._trial(number, _memory(sampler, self._lower, earlier).ask(self._space).params, earlier)

    def _trial(self, number: int, settings: Mapping[str, Any], earlier: tuple[FrozenTrial, ...] | None) -> Trial:
        # By its settings too: another storage, or another machine, may propose others under the same number.
        folder = resources.state("trials", self.key) / f"{number}-{provenance.digest_of(settings)[:8]}"
        experiment = with_settings(self.arm.experiment, settings)
        return Trial(experiment, self._prepared.folder, number, folder, self.arm.label, settings, self._lower, earlier)


def _distribution(values: Sequence[Any] | Range) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution(tuple(values))
    if isinstance(values.low, int) and isinstance(values.high, int):
        return IntDistribution(values.low, values.high, log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _choices(distribution: BaseDistribution) -> Sequence[Any]:
    if not isinstance(distribution, CategoricalDistribution):
        raise UserError("tune.space: --sampler grid needs values, not a range")
    return distribution.choices


def _combinations(space: Mapping[str, BaseDistribution]) -> float:
    sizes = (len(found.choices) if isinstance(found, CategoricalDistribution) else math.inf for found in space.values())
    return math.prod(sizes)


def _check_values(arm: Arm, prepared: Prepared, space: Mapping[str, Sequence[Any] | Range]) -> None:
    """Builds the model once with each value, so that a mistake shows before anything is trained."""
    for key, values in space.items():
        for value in [values.low, values.high] if isinstance(values, Range) else values:
            try:
                chosen = with_settings(arm.experiment, {key: value})
                chosen.resolved()
                study.check_heads([replace(arm, experiment=chosen)], prepared)
            except UserError as error:
                raise UserError(f"tune.space.{key}: {value}: {error}") from None


def monitor(experiment: Experiment, prepared: Prepared) -> str:
    """The validation metric that selects."""
    return experiment.training.monitor or task_for(prepared.task, None).monitor


def _frozen(job: Trial, space: Mapping[str, BaseDistribution], result: runs.Result) -> FrozenTrial:
    """A finished trial as Optuna stores it."""
    attributes: dict[str, Any] = {NUMBER: job.number}
    if "error" in result:
        attributes |= {REASON: result["error"], EPOCHS: 0, SECONDS: 0.0}
        return optuna.trial.create_trial(
            state=TrialState.FAIL, params=dict(job.settings), distributions=dict(space), user_attrs=attributes
        )
    attributes |= {EPOCHS: len(result["history"]), SECONDS: result["seconds"]}
    values = {int(epoch["epoch"]): epoch[f"validation_{result['monitor']}"] for epoch in result["history"]}
    return optuna.trial.create_trial(
        state=TrialState.PRUNED if result["pruned"] else TrialState.COMPLETE,
        value=(min if job.lower else max)(values.values()),
        params=dict(job.settings),
        distributions=dict(space),
        intermediate_values=values,
        user_attrs=attributes,
    )
