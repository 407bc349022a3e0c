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
    config = {key: value for key, value in first["config"].items() if key not in ("seed", "data", "split")}
    varied = _varied(comparison)
    config["model"] = {key: value for key, value in config["model"].items() if key != varied}
    shared = {**_flat(config), **_flat({"data": manifest["options"], "split": manifest["split"]})}
    heads = {head: _flat(results[head][0]["config"]["model"][varied]) for head in comparison.heads}
    heads |= {arm.label: _flat(arm.baseline.model_dump()) for arm in comparison.arms if arm.baseline}
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
            [[head, ", ".join(f"{key}={value}" for key, value in own.items())] for head, own in heads.items()],
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
