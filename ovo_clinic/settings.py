"""Settings of a model, its training, a comparison and a search: the sections of an experiment (configs/*.yaml)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ovo_clinic.registry import Choice, Options


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

    def encoder(self, modality: str) -> Choice:
        """The encoder of a modality."""
        return self.encoders.get(modality, self.encoders.get("default", Choice(name="mlp")))


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
        accelerator, devices: as in Lightning (`cpu`, `gpu`, `auto`; 1, 2, `auto`).
        precision: `32-true`, or mixed with 16 bits, in which weights and metrics stay in float32.
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
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"


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
