"""Many runs: trains fusion heads, or encoders under one head, over the same seeds and splits, in parallel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ovo_clinic import provenance, resources, runs
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared
from ovo_clinic.registry import BASELINES, ENCODERS, FUSION, Choice, suggest
from ovo_clinic.runs import Result
from ovo_clinic.scheduling import Job, LocalProcesses, Scheduler
from ovo_clinic.tuned import Tuned

if TYPE_CHECKING:
    from ovo_clinic.types import Modality

ONE_PROCESS = LocalProcesses(1)


@dataclass(frozen=True)
class Arm:
    """One row of the comparison: a fusion head, an encoder under the common head, a modality alone, or a baseline.

    Attributes:
        label: as it stands in the table.
        kind: of the row.
        experiment: settings but for the seed.
        baseline: which one, in place of a network.
    """

    label: str
    kind: Literal["head", "encoder", "modality", "baseline"]
    experiment: Experiment
    baseline: Choice | None = None


@dataclass(frozen=True)
class Comparison:
    """The finished runs of a study.

    Attributes:
        name: of the study: the task and a hash of all its runs.
        folder: where its table and figures go.
        prepared: the data.
        arms: in the order of the table, modalities first.
        results: label -> result of every seed, in the order of the seeds.
        run_folders: label -> folder of every seed's run.
        tuned: where settings that a search found were taken over, what it found.
    """

    name: str
    folder: Path
    prepared: Prepared
    arms: list[Arm]
    results: Mapping[str, list[Result]]
    run_folders: Mapping[str, list[Path]]
    tuned: Tuned | None = None

    @property
    def heads(self) -> list[str]:
        """Labels of the fusion heads, or of the encoders where these are compared."""
        return [arm.label for arm in self.arms if arm.kind in ("head", "encoder")]

    @property
    def subject(self) -> str:
        """What is compared, in words: `fusion heads`, `encoders of image`."""
        varied = next(iter(self.arms[-1].experiment.compare.encoders), None)
        return "fusion heads" if varied is None else f"encoders of {varied}"

    @property
    def contenders(self) -> list[str]:
        """Labels of all models that use all modalities: the fusion heads, then the baselines."""
        return [*self.heads, *(arm.label for arm in self.arms if arm.kind == "baseline")]


def arms(experiment: Experiment, prepared: Prepared, fusion: Sequence[Choice], unimodal: bool) -> list[Arm]:
    """The rows of a comparison; all differ in the head, or in the modalities, and in nothing else.

    Options set on `model.fusion` (`model.fusion.tokens=8`) hold for every head that has an option of that name. Where
    `compare.encoders` names encoders, these are the rows, all under the head `model.fusion`. Every head and encoder is
    built once, so that a mistake shows before anything is trained.

    Raises:
        UserError: a head or encoder named twice, not known, or unsafe and not allowed; an unknown option; a combination
            that a head excludes; settings of `compare.tuned` that do not belong here.
    """
    modalities = prepared.chosen(experiment.modalities)
    rows = _encoder_arms(experiment, prepared) if experiment.compare.encoders else []
    if not rows:
        check_options(experiment, fusion)
        if unimodal:
            alone = _with_head(experiment, Choice(name="concat"))
            rows += [Arm(name, "modality", alone.model_copy(update={"modalities": [name]})) for name in modalities]
        rows += [Arm(choice.label, "head", _with_head(experiment, choice)) for choice in fusion]
    _check_labels(rows)
    if tuned := _tuned(experiment):
        tuned.check_data(prepared)
        rows = [replace(row, experiment=tuned.applied(row.label, row.experiment)) for row in rows]
    check_heads(rows, prepared)
    return rows


def _check_labels(rows: Sequence[Arm]) -> None:
    labels = [row.label for row in rows]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UserError(f"compare: {', '.join(twice)} stands twice; name every model once")


def _encoder_arms(experiment: Experiment, prepared: Prepared) -> list[Arm]:
    """The rows of `compare.encoders`; each encoder is built once, unless it makes its own inputs from files."""
    ((modality, alternatives),) = experiment.compare.encoders.items()
    names = prepared.chosen(experiment.modalities)
    if modality not in names:
        raise UserError(f"compare.encoders: there is no modality '{modality}'{suggest(modality, names)}")
    rows = []
    for alternative in alternatives:
        changed = _with_encoder(experiment, modality, alternative.encoder)
        choice, path = changed.model.encoders[modality], f"compare.encoders.{modality}: {alternative.label}"
        ENCODERS.options(choice.name, choice.options, path)
        if not hasattr(ENCODERS.get(choice.name), "inputs"):
            try:
                ENCODERS.build(choice.name, modality_of(prepared, modality), changed.model.dim, options=choice.options)
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
        rows.append(Arm(alternative.label, "encoder", changed))
    return rows


def _with_encoder(experiment: Experiment, modality: str, choice: Choice) -> Experiment:
    """The experiment with another encoder of a modality; options set for the same encoder hold on."""
    encoders = experiment.model.encoders
    before = encoders.get(modality, encoders.get("default", choice))
    shared = before.options if before.name == choice.name else {}
    changed = {**encoders, modality: Choice(name=choice.name, **{**shared, **choice.options})}
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"encoders": changed})})


def modality_of(prepared: Prepared, name: str) -> "Modality":
    """A modality before its values are scaled, which may give it more features."""
    from ovo_clinic.types import Modality

    entry = prepared.manifest["modalities"][name]
    side = entry.get("size")
    return Modality(name, entry["kind"], len(entry["columns"]), None if side is None else (side, side))


def baseline_arms(experiment: Experiment, baselines: Sequence[Choice]) -> list[Arm]:
    """The rows of classical baselines; each tries as many settings as the heads were tuned with, unless it says so.

    Raises:
        UserError: a baseline that is not known, or an unknown option.
    """
    tuned = _tuned(experiment)
    budget = {} if tuned is None else {"budget": tuned.trials}
    rows = []
    for choice in baselines:
        BASELINES.options(choice.name, choice.options, "compare.baselines")
        resolved = Choice(name=choice.name, **{**budget, **choice.options})
        rows.append(Arm(choice.label, "baseline", experiment, resolved))
    return rows


def _tuned(experiment: Experiment) -> Tuned | None:
    file = experiment.compare.tuned
    return None if file is None else Tuned.read(experiment.folder / file)


def _with_head(experiment: Experiment, choice: Choice) -> Experiment:
    known = FUSION.schema(choice.name).model_fields
    shared = {name: value for name, value in experiment.model.fusion.options.items() if name in known}
    head = Choice(name=choice.name, **{**shared, **choice.options})
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"fusion": head})})


def check_options(experiment: Experiment, fusion: Sequence[Choice]) -> None:
    """Checks the names of heads and options: those of `model.fusion` must be of the head there or of a compared one.

    Raises:
        UserError: an unknown head or option, with the valid ones.
    """
    named = experiment.model.fusion
    FUSION.get(named.name, "model.fusion")
    for choice in fusion:
        FUSION.options(choice.name, choice.options, "compare.fusion")
    schemas = [FUSION.schema(choice.name) for choice in (named, *fusion)]
    known = sorted({name for schema in schemas for name in schema.model_fields})
    for name in named.options:
        if name not in known:
            raise UserError(f"model.fusion.{name}: no such setting{suggest(name, known)}")


def check_heads(rows: Sequence[Arm], prepared: Prepared) -> None:
    """Builds every head once, and asks the encoders whether they may be trained on the data.

    Raises:
        UserError: an option that a head cannot have, a combination that it excludes, or data that an encoder refuses.
    """
    from ovo_clinic.model import check_fusion

    for row in rows:
        modalities = [modality_of(prepared, name) for name in prepared.chosen(row.experiment.modalities)]
        try:
            check_fusion(row.experiment.model, modalities)
        except UserError as error:
            where = f"compare.fusion: {row.label}" if row.kind != "encoder" else f"{row.label} under the common head"
            raise UserError(f"{where}: {error}") from None
        for modality in modalities:
            choice = row.experiment.model.encoder(modality.name)
            check = getattr(ENCODERS.get(choice.name), "check_data", None)
            if check:
                check(modality.name, prepared, ENCODERS.options(choice.name, choice.options))


def compare(
    experiment: Experiment,
    prepared: Prepared,
    fusion: Sequence[Choice],
    seeds: int,
    *,
    unimodal: bool = False,
    baselines: Sequence[Choice] = (),
    scheduler: Scheduler = ONE_PROCESS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Trains every row of `arms`, and the baselines, with seeds 0 ... seeds-1 on the same split.

    Finished runs are taken from the store; an interrupted study goes on where it was.

    Args:
        experiment: everything the heads have in common.
        prepared: the data.
        fusion: the heads.
        seeds: how many.
        unimodal: also every modality alone, through the same code and output network.
        baselines: classical ones, tuned and evaluated on the same splits with the same seeds.
        scheduler: where the runs are computed.
        on_progress: called with (runs done, runs in all).

    Raises:
        UserError: settings that do not fit; workers that are lost again and again.
    """
    rows = [*arms(experiment, prepared, fusion, unimodal), *baseline_arms(experiment, baselines)]
    _check_labels(rows)
    tuned = _tuned(experiment)  # now: the file may be written anew before all runs are done
    jobs = [(arm.label, _run(arm, seed, prepared)) for arm in rows for seed in range(seeds)]
    _run_all([job for _, job in jobs], scheduler, on_progress)
    results: dict[str, list[Result]] = {arm.label: [] for arm in rows}
    folders: dict[str, list[Path]] = {arm.label: [] for arm in rows}
    for label, job in jobs:
        results[label].append(runs.read_result(job.folder))
        folders[label].append(job.folder)
    digest = provenance.digest_of([job.folder.name for _, job in jobs])[:8]
    name = f"{experiment.task}-{digest}"
    folder = resources.state("studies", name)
    return Comparison(name, folder, prepared, rows, results, folders, tuned)


@dataclass(frozen=True)
class SeedRun:
    """One run of a comparison; see `scheduling.Job`."""

    experiment: Experiment
    data: Path
    folder: Path
    baseline: Choice | None = None

    def run(self) -> None:
        """Trains it where it is not finished yet."""
        from ovo_clinic import classical, training

        if self.baseline is None:
            training.train(self.experiment, Prepared.open(self.data), self.folder)
        else:
            classical.run(self.experiment, self.baseline, Prepared.open(self.data), self.folder)


def _run(arm: Arm, seed: int, prepared: Prepared) -> SeedRun:
    experiment = arm.experiment.model_copy(update={"seed": seed})
    config = experiment.resolved() if arm.baseline is None else experiment.resolved_baseline(arm.baseline)
    return SeedRun(experiment, prepared.folder, runs.folder_of(config, prepared), arm.baseline)


def _run_all(jobs: Sequence[SeedRun], scheduler: Scheduler, on_progress: Callable[[int, int], None]) -> None:
    """Trains what is not finished; rows that come to the same run share it."""
    every = {job.folder: job for job in jobs}
    waiting = {folder: job for folder, job in every.items() if not runs.is_evaluated(folder)}
    on_progress(len(every) - len(waiting), len(every))

    def done(job: Job) -> Sequence[Job]:
        del waiting[job.folder]
        on_progress(len(every) - len(waiting), len(every))
        return ()

    if waiting:
        scheduler.run(list(waiting.values()), done)
