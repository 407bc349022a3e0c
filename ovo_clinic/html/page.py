"""Puts the sections of a study report on one self-contained page."""

from pathlib import Path

import jinja2

import ovo_clinic
from ovo_clinic.html import cohort, encoders, record, results
from ovo_clinic.html.blocks import Section
from ovo_clinic.html.material import Material

FILE = "report.html"
_FOLDER = Path(__file__).parent


def sections(material: Material) -> list[Section]:
    """The sections, in order."""
    return [
        cohort.question(material),
        cohort.cohort(material),
        results.comparison(material),
        results.curves(material),
        results.calibration(material),
        results.decision(material),
        results.costs(material),
        *encoders.sections(material),
        results.groups(material),
        cohort.modalities(material),
        record.settings(material),
        record.checklist(),
    ]


def render(material: Material) -> str:
    """The report as HTML: styles and figures inside, nothing is fetched."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    manifest = material.comparison.prepared.manifest
    return environment.get_template("report.html.jinja").render(
        title=manifest["title"],
        study=material.comparison.name,
        leaky=manifest["leaky"],
        version=ovo_clinic.__version__,
        sections=sections(material),
    )


def write(material: Material) -> Path:
    """Writes the report into the study's folder; returns the file."""
    path = material.comparison.folder / FILE
    path.write_text(render(material), encoding="utf-8")
    return path
