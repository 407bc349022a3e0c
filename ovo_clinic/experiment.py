"""Experiment: a task, one encoder per modality, one fusion head and the training settings (configs/*.yaml)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import Field

from ovo_clinic import derived, provenance, resources, spec, split_lists
from ovo_clinic.errors import UserError
from ovo_clinic.registry import BASELINES, ENCODERS, FUSION, Choice, Options, Registry, check
from ovo_clinic.settings import CompareConfig, ModelConfig, TrainingConfig, TuneConfig
from ovo_clinic.spec import DatasetSpec, SplitSpec, TaskSpec
from ovo_clinic.split_lists import SplitList


class Experiment(Options):
    """One resolved experiment.

    Attributes:
        dataset: a shipped spec's name or a path ending in `.yaml` (relative to the config's folder).
        task: a task of that spec.
        data: options of the task's pipeline that differ from the spec's.
        split: settings of the split that differ from the spec's.
        split_lists: files of a published split, which then takes the place of a drawn one.
        modalities: the ones used, all by default.
        model, training, compare, tune: see there.
        seed: of the weights, the shuffling and the dropout.
        folder: where the config lies (relative paths start there).
    """

    dataset: str
    task: str
    data: dict[str, Any] = {}
    split: dict[str, Any] = {}
    split_lists: list[Path] = []
    modalities: list[str] | None = None
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    compare: CompareConfig = CompareConfig()
    tune: TuneConfig = TuneConfig()
    seed: int = Field(0, ge=0, lt=2**32)
    folder: Path = Path()

    def data_request(self) -> "DataRequest":
        """What `prepare` needs to know, resolved and checked."""
        dataset, path = spec.load(self.dataset, self.folder)
        task = dataset.task(self.task)
        split = check(SplitSpec, {**task.split.model_dump(), **self.split}, "split")
        try:
            task.check_split(split)
        except ValueError as error:
            raise UserError(f"task '{self.task}': {error}") from None
        options = spec.task_options(dataset, self.task, _merge(task.options, self.data), path)
        lists = split_lists.read([self.folder / file for file in self.split_lists])
        return DataRequest(dataset, path, self.task, options, split, tuple(lists))

    def beside(self) -> "Experiment | None":
        """The experiment under the options that its task wants seen beside; None where there are no other ones."""
        request = self.data_request()
        other = self.model_copy(update={"data": {**self.data, **request.task.beside}})
        return None if dict(other.data_request().options) == dict(request.options) else other

    def with_compare(self, settings: Mapping[str, Any]) -> "Experiment":
        """The same experiment with other settings of `compare`.

        Raises:
            UserError: an unknown setting or a wrong value.
        """
        return self.model_copy(update={"compare": _changed(self.compare, settings, "compare")})

    def with_tune(self, settings: Mapping[str, Any]) -> "Experiment":
        """The same experiment with other settings of `tune`.

        Raises:
            UserError: an unknown setting or a wrong value.
        """
        return self.model_copy(update={"tune": _changed(self.tune, settings, "tune")})

    def with_settings(self, settings: Mapping[str, Any]) -> "Experiment":
        """The same experiment with settings by dotted key, such as `training.learning_rate`.

        Raises:
            UserError: an unknown setting or a wrong value.
        """
        values: dict[str, Any] = self.model_dump()
        for key, value in settings.items():
            values = _merge(values, _nested(key, value))
        return check(Experiment, values)

    def resolved(self) -> dict[str, Any]:
        """Plain values of everything that decides the result of a run, defaults filled in; no machine's paths.

        Raises:
            UserError: an unknown encoder, head or option.
        """
        values = self.model_dump(mode="json", exclude={"folder", "compare", "tune", "split_lists"})
        values["model"]["fusion"] = _with_defaults(FUSION, self.model.fusion, "model.fusion")
        values["model"]["encoders"] = {
            name: _with_defaults(ENCODERS, choice, f"model.encoders.{name}")
            for name, choice in self.model.encoders.items()
        }
        return values

    def resolved_baseline(self, baseline: Choice) -> dict[str, Any]:
        """The same of a classical baseline in place of a network, whose settings it does not depend on.

        Raises:
            UserError: an unknown baseline or option.
        """
        values = self.resolved()
        del values["model"]
        values["training"] = {"monitor": self.training.monitor}
        return {**values, "baseline": _with_defaults(BASELINES, baseline, "compare.baselines")}

    def digest(self) -> str:
        """sha256 of `resolved`, with the content of files that encoders read in place of where they lie."""
        values = self.resolved()
        for encoder in values["model"]["encoders"].values():
            for option in getattr(ENCODERS.get(encoder["name"]), "files", ()):
                path = resources.absolute(encoder[option], f"model.encoders: {option}")
                encoder[option] = derived.files_digest(path) if path.exists() else encoder[option]
        return provenance.digest_of(values)


def _with_defaults(registry: Registry[Any], choice: Choice, path: str) -> dict[str, Any]:
    return {"name": choice.name, **registry.options(choice.name, choice.options, path)}


@dataclass(frozen=True)
class DataRequest:
    """A task of a data set with every option resolved: what a prepared data set is the answer to.

    Attributes:
        spec, spec_path: the data set, and the file that describes it.
        task_name: of a task of it.
        options: of the task's pipeline.
        split: how units are split, unless there are lists.
        lists: of a published split.
    """

    spec: DatasetSpec
    spec_path: Path
    task_name: str
    options: Mapping[str, Any]
    split: SplitSpec
    lists: tuple[SplitList, ...] = ()

    @property
    def task(self) -> TaskSpec:
        """The task's spec."""
        return self.spec.tasks[self.task_name]


def load(name: str, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of a config with `key=value` overrides applied.

    Args:
        name: a task's name (a shipped config), or a path ending in `.yaml`.
        overrides: `training.learning_rate=1e-4`, `model.fusion=concat`, `model.fusion.heads=8`, ...

    Raises:
        UserError: unknown config, unknown key (with the valid ones), wrong type, by its full path.
    """
    path = resources.find("configs", name)
    values = _merge(_DEFAULTS, resources.read_yaml(path))
    values.setdefault("task", path.stem)
    for override in overrides:
        values = _merge(values, _nested(*setting(override)))
    if "folder" in values:
        raise UserError("folder: is the config's own and cannot be set")
    values["folder"] = path.parent
    return check(Experiment, values)


def setting(word: str) -> tuple[str, Any]:
    """The key and the value of a `key=value`.

    Raises:
        UserError: it is none, or the value is not valid YAML.
    """
    key, separator, text = word.partition("=")
    if not separator or not key:
        raise UserError(f"'{word[:_SHOWN]}': should look like key=value, for example training.learning_rate=1e-4")
    try:
        return key, resources.parse_yaml(text)
    except yaml.YAMLError:
        raise UserError(f"'{word[:_SHOWN]}': the value is not valid YAML") from None


def _nested(key: str, value: Any) -> Any:
    """A value under a dotted key."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


S = TypeVar("S", bound=Options)


def _changed(section: S, settings: Mapping[str, Any], path: str) -> S:
    """A section with some of its settings replaced."""
    kept = {name: value for name, value in section if name not in settings}
    return check(type(section), kept | dict(settings), path)


_DEFAULTS: dict[str, Any] = {"model": ModelConfig().model_dump()}
_SHOWN = 60  # characters of an override, in a message


def _merge(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """A deep merge in which naming another encoder or head drops the options of the one it replaces.

    An empty mapping replaces as well: `compare.encoders={}` compares heads where the config compares encoders.
    """
    merged = dict(base)
    for key, value in update.items():
        old = merged.get(key)
        if isinstance(value, str) and isinstance(old, Mapping) and "name" in old:
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(old, str):
            old = {"name": old}
        if (
            isinstance(value, Mapping)
            and value
            and isinstance(old, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            value = _merge(old, value)
        merged[key] = value
    return merged
