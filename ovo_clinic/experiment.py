"""Experiment: a task, one encoder per modality, one fusion head and the training settings (configs/*.yaml)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BeforeValidator, Field, model_validator

from ovo_clinic import derived, provenance, resources, spec, split_lists
from ovo_clinic.errors import UserError
from ovo_clinic.registry import BASELINES, ENCODERS, FUSION, Choice, Options, Registry, check
from ovo_clinic.spec import DatasetSpec, SplitSpec, TaskSpec
from ovo_clinic.split_lists import SplitList


class ModelConfig(Options):
    """Encoders, head and output network.

    Attributes:
        dim: D, the width of every token.
        encoders: modality -> encoder; `default` serves those that are not named.
        fusion: the fusion head.
        output: `hidden` = LayerNorm and one hidden layer; `linear` = one linear layer (the paper's).
        dropout: in the output network.
        modality_dropout: probability that a present modality is hidden during training; at least one is kept.
        allow_unsafe: also train and evaluate heads that let patients of one batch see each other (`*_reference`).
    """

    dim: int = Field(64, ge=1)
    encoders: dict[str, Choice] = {"default": Choice(name="mlp")}
    fusion: Choice = Choice(name="ovo")
    output: Literal["hidden", "linear"] = "hidden"
    dropout: float = Field(0.1, ge=0, lt=1)
    modality_dropout: float = Field(0.0, ge=0, lt=1)
    allow_unsafe: bool = False


class TrainingConfig(Options):
    """How one model is trained.

    Attributes:
        epochs: at most.
        patience: epochs without a better validation metric before it stops; the best epoch's weights are restored.
        monitor: validation metric that selects the epoch (default: the task's).
        imbalance: `pos_weight` weighs positives up in the loss, `balanced_sampler` draws classes equally often; both
            shift calibration.
        length_buckets: units of like length share a training batch, which saves padding where lengths differ much; the
            order of units is then less random.
        condition_numbers: also logs the condition numbers of the attention heads' outputs, and their bound, each epoch.
        threads: CPU threads of torch in one run; sums are split by thread, so another number gives other last digits.
        accelerator, devices, precision: as in Lightning (`cpu`, `gpu`, `auto`; 1, 2; `32-true`, `bf16-mixed`, ...).
    """

    epochs: int = Field(100, ge=1)
    patience: int = Field(5, ge=1)
    monitor: str | None = None
    batch_size: int = Field(128, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-2, ge=0)
    gradient_clip: float = Field(1.0, gt=0)
    imbalance: Literal["none", "pos_weight", "balanced_sampler"] = "none"
    length_buckets: bool = False
    condition_numbers: bool = False
    threads: int = Field(1, ge=1)
    accelerator: str = "auto"
    devices: int | str = 1
    precision: str = "32-true"


class Alternative(Options):
    """One of several encoders of a modality that are compared.

    Attributes:
        label: as it stands in tables; where only the encoder is given, its name with the options given.
        encoder: in place of `model.encoders.MODALITY`, whose options hold for it too where it is the same encoder.
    """

    label: str = Field(min_length=1)
    encoder: Choice

    @model_validator(mode="before")
    @classmethod
    def _from_encoder(cls, value: Any) -> Any:
        if isinstance(value, str) or (isinstance(value, Mapping) and "encoder" not in value):
            value = {"encoder": value}
        if isinstance(value, Mapping) and "label" not in value:
            value = {**value, "label": Choice.model_validate(value["encoder"]).label}
        return value


HEADS = tuple(Choice(name=name) for name in ("concat", "self_attention", "cross_attention", "ovo"))
"""The fusion heads that are compared by default."""


class CompareConfig(Options):
    """What `compare` runs.

    Attributes:
        fusion: the heads.
        encoders: modality -> encoders of it that are compared in place of heads, all under the head `model.fusion`.
        sizes: sides of images, or numbers of time steps, at which the costs of `encoders` are also measured.
        heat_maps: also show what image encoders look at, averaged over test units.
        seeds: number of seeds, 0 ... seeds-1, the same for every head.
        unimodal: also train every modality alone.
        baselines: classical ones that are tuned and evaluated beside the heads (none by default).
        folds: also train everything once in each of so many folds of the patients (none by default).
        tuned: file of the settings that `tune` found for each of them, which are taken over.
        missing: shares of the test units' modalities that are hidden in turn (none by default).
        pattern: what then goes missing together: `random`, `natural` or `modality:NAME`.
        importance: also measure what each modality is worth to each head, for which all heads are trained again
            without each modality in turn.
    """

    fusion: list[Choice] = Field(list(HEADS), min_length=1)
    encoders: dict[str, Annotated[list[Alternative], Field(min_length=1)]] = Field({}, max_length=1)
    sizes: list[Annotated[int, Field(ge=1)]] = []
    heat_maps: bool = False
    seeds: int = Field(10, ge=1)
    unimodal: bool = False
    baselines: list[Choice] = []
    folds: int | None = Field(None, ge=2)
    tuned: Path | None = None
    missing: list[Annotated[float, Field(ge=0, le=1)]] = []
    pattern: str = "random"
    importance: bool = False

    @model_validator(mode="after")
    def _compares_one_thing(self) -> "CompareConfig":
        if self.encoders and (self.unimodal or self.fusion != list(HEADS)):
            raise ValueError(
                "compare.encoders compares encoders under one head; name it in model.fusion, and leave out fusion and "
                "unimodal"
            )
        return self


class Range(Options):
    """Numbers to try.

    Attributes:
        low, high: bounds, both included; whole numbers where both are whole.
        log: evenly in the logarithm.
    """

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _is_ordered(self) -> "Range":
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("low should be below high, and above 0 where log is true")
        return self


def _number(value: Any) -> Any:
    """YAML reads 1e-4 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Setting = Annotated[bool | int | float | str, BeforeValidator(_number)]


class TuneConfig(Options):
    """What `tune` tries; the default space is the OvO paper's protocol.

    Attributes:
        sampler: `tpe` learns from the trials before and stops hopeless ones early; `random`; `grid` = each combination
            once, in random order.
        trials: how many for each head, the same for all (fewer where a head has fewer combinations).
        space: settings by dotted key -> values to try, or a range. `model.encoders.*.layers` sets all encoders that
            have the option; a head without an option is searched without it.
    """

    sampler: Literal["tpe", "random", "grid"] = "tpe"
    trials: int = Field(30, ge=1)
    space: dict[str, Annotated[list[Setting], Field(min_length=1)] | Range] = Field(
        {
            "training.learning_rate": [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8],
            "training.batch_size": [16, 32, 64, 128],
            "model.fusion.heads": [1, 2, 4, 8, 16],
            "model.encoders.*.layers": [1, 2, 3, 4],
        },
        min_length=1,
    )


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
    """A deep merge in which naming another encoder or head drops the options of the one it replaces."""
    merged = dict(base)
    for key, value in update.items():
        old = merged.get(key)
        if isinstance(value, str) and isinstance(old, Mapping) and "name" in old:
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(old, str):
            old = {"name": old}
        if (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            value = _merge(old, value)
        merged[key] = value
    return merged
