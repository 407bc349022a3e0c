"""Looks at the encoders of a config: their options, and the checkpoints and files that they read."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ovo_clinic import resources
from ovo_clinic.doctor.check import Check, checked
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.registry import ENCODERS, Choice


def encoder_checks(experiment: Experiment, modalities: list[str]) -> list[Check]:
    """One line for each modality whose encoder reads a file, or is not as it should be."""
    chosen = [
        (f"encoder of {name}", name, experiment.model.encoder(name)) for name in experiment.modalities or modalities
    ]
    for name, alternatives in experiment.compare.encoders.items():
        chosen += [(f"encoder {other.label} of {name}", name, other.encoder) for other in alternatives]
    checks = [checked(what, partial(_look, name, choice)) for what, name, choice in chosen]
    return [check for check in checks if check.told]


def _look(modality: str, choice: Choice) -> str:
    """What is told of an encoder's files; nothing of one that reads none."""
    path = f"model.encoders.{modality}"
    encoder = ENCODERS.get(choice.name, path)
    options = ENCODERS.options(choice.name, choice.options, path)
    return ", ".join(_file(encoder, options, option) for option in getattr(encoder, "files", ()))


def _file(encoder: Any, options: Mapping[str, Any], option: str) -> str:
    path = resources.absolute(options[option], option)
    if option == "checkpoint":
        return _checkpoint(path, with_tokenizer=getattr(encoder, "takes_text", False))
    if not path.is_file():
        raise UserError(f"{path} does not exist; name the file with the option '{option}'")
    return f"{path} is there"


def _checkpoint(path: Path, with_tokenizer: bool) -> str:
    from ovo_clinic.encoders import checkpoints

    folder = checkpoints.checkpoint_folder(str(path))
    model = checkpoints.load_model(folder)
    if with_tokenizer:
        checkpoints.load_tokenizer(folder)
    size = sum(parameter.numel() for parameter in model.parameters())
    return f"{folder} loads ({type(model).__name__}, {size:,} parameters)"
