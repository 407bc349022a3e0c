"""Settings that a search found for each model of a comparison, and the file that `compare --tuned` takes them from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ovo_clinic import resources
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import ENCODERS, FUSION, Options, check


class Found(Options):
    """What the search found for one model.

    Attributes:
        settings: by dotted key, as in `tune.space`.
        validation: the monitored metric of the best trial, on the validation split.
        completed, pruned, failed: numbers of trials; their sum is the budget that was spent.
        epochs: trained in all trials.
    """

    settings: dict[str, Any]
    validation: float
    completed: int
    pruned: int
    failed: int
    epochs: int


class Tuned(Options):
    """Settings of every model, found on the validation split with the same budget.

    Attributes:
        task: name of the task.
        split: digest of the split whose validation part selected them.
        sampler, trials: of the search; `trials` is the budget of each model.
        monitor: the metric that selected them.
        models: by label (`ovo`, `ovo(tokens=8)`, a modality's name).
    """

    task: str
    split: str
    sampler: str
    trials: int
    monitor: str
    models: dict[str, Found]

    @classmethod
    def read(cls, path: Path) -> "Tuned":
        """What `write` wrote.

        Raises:
            UserError: no such file, or it is none of `tune`.
        """
        if not path.is_file():
            raise UserError(f"--tuned: {path} does not exist; give the file that `ovo-clinic tune` wrote")
        return check(cls, resources.read_yaml(path), str(path))

    def write(self, path: Path) -> None:
        """Writes the file, in one step.

        Raises:
            UserError: it cannot be written.
        """
        text = f"# Found by `ovo-clinic tune {self.task}` on the validation split; for `compare --tuned`.\n"
        temporary = path.with_name(f"{path.name}.partial")
        try:
            temporary.write_text(text + yaml.safe_dump(self.model_dump(), sort_keys=False), encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}); give another --out") from None

    def check_data(self, prepared: Prepared) -> None:
        """Refuses data that were split otherwise: patients who selected the settings could be tested on.

        Raises:
            UserError: the task or the split is another one.
        """
        task, split = prepared.manifest["task"], prepared.manifest["digests"]["split"]
        if (task, split) != (self.task, self.split):
            raise UserError(
                f"--tuned: the settings were found for task '{self.task}' on another split than that of '{task}' here, "
                "whose test patients may have helped to choose them; run `tune` with the same settings of the data"
            )

    def applied(self, label: str, experiment: Experiment) -> Experiment:
        """A model's experiment with its settings.

        Raises:
            UserError: the model was not tuned.
        """
        if label not in self.models:
            raise UserError(
                f"--tuned: '{label}' was not tuned, and all are due the same budget; there: {', '.join(self.models)}; "
                "run `tune` for all that are compared (single modalities: --unimodal)"
            )
        return with_settings(experiment, self.models[label].settings)


def with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with settings of a search space, as far as its model has them.

    Raises:
        UserError: an unknown setting or a wrong value.
    """
    return experiment.with_settings(
        {own: value for key, value in settings.items() for own in own_keys(experiment, key)}
    )


def own_keys(experiment: Experiment, key: str) -> list[str]:
    """The settings that a key of a search space stands for in an experiment; none where its model has no such option.

    Raises:
        UserError: a setting that cannot be tuned.
    """
    match key.split("."):
        case ["model", "fusion"] | ["training", "monitor"]:
            raise UserError(f"tune.space.{key}: cannot be tuned: its values are not to be compared on the same terms")
        case ["model", "fusion", option, *_]:
            return [key] if option in FUSION.schema(experiment.model.fusion.name).model_fields else []
        case ["model", "encoders", "*", option, *rest]:
            encoders = experiment.model.encoders.items()
            able = [name for name, choice in encoders if option in ENCODERS.schema(choice.name).model_fields]
            return [".".join(["model", "encoders", name, option, *rest]) for name in able]
        case ["model" | "training", _, *_]:
            return [key]
    raise UserError(f"tune.space.{key}: only settings of `model` and `training` can be tuned")
