"""The report's sections on settings and hashes, and the reporting checklist."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from ovo_clinic.html.blocks import Checklist, Section, Table, Text
from ovo_clinic.html.material import Material
from ovo_clinic.study import Comparison

_ITEMS = Path(__file__).with_name("tripod_ai.yaml")


def settings(material: Material) -> Section:
    """Every setting that decides the numbers, and what tells that nothing else did."""
    comparison = material.comparison
    manifest, results = comparison.prepared.manifest, comparison.results
    first = results[comparison.heads[0]][0]
    shared, models = _shared_and_own(comparison)
    shared |= _flat({"data": manifest["options"], "split": manifest["split"]})
    seeds = ", ".join(str(result["seed"]) for result in results[comparison.heads[0]])
    digests = {"data": manifest["key"], **manifest["digests"], "code": first["digests"]["code"]}
    origin = {"study": comparison.name, "seeds": seeds, "git commit": first["git_commit"] or "–"}
    files = [
        [str(file.get("file", "")), f"{file.get('bytes', 0):,}", str(file.get("sha256", ""))]
        for file in manifest.get("files", [])
    ]
    blocks = [
        Table("Origin", ["What", "Value"], [[key, str(value)] for key, value in origin.items()]),
        Table("Settings that all models share", ["Setting", "Value"], [[key, value] for key, value in shared.items()]),
        Table(
            "Options of the models",
            ["Model", "Options"],
            [[model, ", ".join(f"{key}={value}" for key, value in own.items())] for model, own in models.items()],
        ),
        Table(
            "Hashes", ["Of", "sha256 (the data's key: its first 32 digits)"], [[k, str(v)] for k, v in digests.items()]
        ),
        Table(
            "Versions", ["Software", "Version"], [[name, str(version)] for name, version in first["versions"].items()]
        ),
    ]
    if files:
        blocks.append(Table("Raw files", ["File", "Bytes", "sha256 of sampled content"], files))
    return Section("settings", "Settings and hashes", blocks)


def _shared_and_own(comparison: Comparison) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Settings of all networks, and by model its options, with what else is its own: tuning may set anything."""
    varied = _varied(comparison)
    common: dict[str, dict[str, str]] = {}
    models: dict[str, dict[str, str]] = {}
    for arm in comparison.arms:
        config = comparison.results[arm.label][0]["config"]
        if arm.baseline is not None:
            models[arm.label] = _flat(arm.baseline.model_dump())
            continue
        alone = arm.kind == "modality"
        left_out = ("seed", "data", "split", "model", *(["modalities"] if alone else []))
        rest = {key: value for key, value in config["model"].items() if key != varied}
        common[arm.label] = _flat({**{k: v for k, v in config.items() if k not in left_out}, "model": rest})
        models[arm.label] = {} if alone else _flat(config["model"][varied])
    first = common[comparison.heads[0]]
    shared = {key: value for key, value in first.items() if all(o.get(key, value) == value for o in common.values())}
    for label, settings in common.items():
        models[label] |= {key: value for key, value in settings.items() if key not in shared}
    return shared, {label: own for label, own in models.items() if own or label in comparison.contenders}


def _varied(comparison: Comparison) -> str:
    """The part of the model in which the rows of a comparison differ."""
    return "encoders" if any(arm.kind == "encoder" for arm in comparison.arms) else "fusion"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys; of a file's path its name, as folders are of a machine."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            flat[f"{prefix}{key}"] = PurePath(value).name if value.startswith(("/", "~", "..")) else value
        else:
            flat[f"{prefix}{key}"] = "–" if value in (None, [], {}) else str(value)
    return flat


def checklist() -> Section:
    """The reporting items, and what of them is here."""
    items = [
        {key: str(value) for key, value in item.items()} for item in yaml.safe_load(_ITEMS.read_text(encoding="utf-8"))
    ]
    text = (
        "After TRIPOD+AI (Collins et al., BMJ 2024;385:e078378). What the software knows is filled in and linked; what "
        "only the authors can say is marked so, and this report does not replace it."
    )
    return Section("checklist", "Reporting checklist", [Text(text), Checklist(items)])
