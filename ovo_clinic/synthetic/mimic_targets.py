"""The labels of the synthetic MIMIC folders: 25 phenotypes with codes that stand for them, and death in hospital."""

from typing import Literal, NamedTuple


class Target(NamedTuple):
    """One label.

    Attributes:
        name: of the phenotype.
        prevalence: share of admissions.
        age: coefficient of the age in its logit.
        series, image, topic: the latent of each modality that its logit depends on.
        icd9, icd10: codes, each of this phenotype alone.
    """

    name: str
    prevalence: float
    age: float
    series: Literal["circulation", "respiration", "metabolism", "coma"]
    image: Literal["haze", "heart"]
    topic: Literal["veil", "bases", "outline", "lines"]
    icd9: tuple[str, ...] = ()
    icd10: tuple[str, ...] = ()


def _codes(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PHENOTYPES: tuple[Target, ...] = (
    Target(
        "Acute and unspecified renal failure", 0.21, 0.2, "metabolism", "haze", "bases",
        _codes("5849 5845 586"), _codes("N179 N170 N19"),
    ),
    Target(
        "Acute cerebrovascular disease", 0.1, 0.3, "coma", "heart", "outline",
        _codes("43491 431 430"), _codes("I619 I609 I6340 I639"),
    ),
    Target(
        "Acute myocardial infarction", 0.1, 0.3, "circulation", "heart", "veil",
        _codes("41071 41041"), _codes("I214 I2119 I219 I21A1"),
    ),
    Target(
        "Cardiac dysrhythmias", 0.32, 0.4, "circulation", "heart", "lines",
        _codes("42731 42732 4271"), _codes("I4891 I480 I4811 I471"),
    ),
    Target(
        "Chronic kidney disease", 0.13, 0.4, "metabolism", "heart", "bases",
        _codes("5859 5853 5856"), _codes("N189 N183 N1831 N186"),
    ),
    Target(
        "Chronic obstructive pulmonary disease and bronchiectasis", 0.13, 0.4, "respiration", "haze", "outline",
        _codes("496 49121 4928"), _codes("J449 J441 J439"),
    ),
    Target(
        "Complications of surgical procedures or medical care", 0.21, -0.1, "circulation", "haze", "lines",
        _codes("99859 9971 45829"), _codes("I9581 I9789 G9781"),
    ),
    Target(
        "Conduction disorders", 0.1, 0.4, "circulation", "heart", "outline",
        _codes("4263 42611 4264"), _codes("I447 I440 I442"),
    ),
    Target(
        "Congestive heart failure; nonhypertensive", 0.27, 0.4, "respiration", "heart", "bases",
        _codes("4280 42832 42823"), _codes("I509 I5032 I5023"),
    ),
    Target(
        "Coronary atherosclerosis and other heart disease", 0.32, 0.5, "circulation", "heart", "veil",
        _codes("41401 412 4139"), _codes("I2510 I252 I25110"),
    ),
    Target(
        "Diabetes mellitus with complications", 0.1, 0.2, "metabolism", "haze", "outline",
        _codes("25060 25040 25013"), _codes("E1129 E1140 E1010"),
    ),
    Target(
        "Diabetes mellitus without complication", 0.19, 0.2, "metabolism", "heart", "lines",
        _codes("25000 25001"), _codes("E119 E109"),
    ),
    Target(
        "Disorders of lipid metabolism", 0.29, 0.3, "metabolism", "heart", "veil",
        _codes("2724 2720"), _codes("E785 E781 E7800"),
    ),
    Target("Essential hypertension", 0.42, 0.4, "circulation", "heart", "lines", _codes("4019 4011"), _codes("I10")),
    Target(
        "Fluid and electrolyte disorders", 0.27, 0.1, "metabolism", "haze", "bases",
        _codes("2762 2761 2767 2768"), _codes("E872 E871 E875 E876"),
    ),
    Target(
        "Gastrointestinal hemorrhage", 0.1, 0.2, "circulation", "haze", "outline",
        _codes("5789 53240 53140"), _codes("K922 K264 K254"),
    ),
    Target(
        "Hypertension with complications and secondary hypertension", 0.13, 0.4, "circulation", "heart", "bases",
        _codes("40390 40391 40290"), _codes("I129 I120 I110"),
    ),
    Target(
        "Other liver diseases", 0.1, -0.2, "coma", "haze", "outline",
        _codes("5715 5722 78959"), _codes("K7469 K7290 R188 K7460"),
    ),
    Target(
        "Other lower respiratory disease", 0.1, 0.2, "respiration", "haze", "veil",
        _codes("515 514"), _codes("J8410 J811"),
    ),
    Target(
        "Other upper respiratory disease", 0.1, 0.0, "respiration", "haze", "lines",
        _codes("4781 47874"), _codes("J381 J309"),
    ),
    Target(
        "Pleurisy; pneumothorax; pulmonary collapse", 0.1, 0.1, "respiration", "haze", "bases",
        _codes("5119 5180 51189"), _codes("J90 J9811 J939"),
    ),
    Target(
        "Pneumonia (except that caused by tuberculosis or sexually transmitted disease)", 0.14, 0.2,
        "respiration", "haze", "veil", _codes("486 48241 00322"), _codes("J189 J13 B250"),
    ),
    Target(
        "Respiratory failure; insufficiency; arrest (adult)", 0.18, 0.1, "respiration", "haze", "veil",
        _codes("51881 51884"), _codes("J9601 J9600 J9620"),
    ),
    Target(
        "Septicemia (except in labor)", 0.14, 0.1, "circulation", "haze", "veil",
        _codes("0389 03842 0031"), _codes("A419 A4151 R7881"),
    ),
    Target("Shock", 0.1, 0.1, "circulation", "haze", "lines", _codes("78552 78551"), _codes("R570 R571")),
)  # fmt: skip

DEATH = Target("Death in hospital", 0.12, 0.4, "coma", "haze", "veil")
TARGETS: tuple[Target, ...] = (*PHENOTYPES, DEATH)

SEPTIC_SHOCK = "R6521"
"""Stands for septicemia and shock at once; written where an admission has both."""

OTHER_ICD9 = _codes("V1582 2859 311 53081 2449 V5861 E8788 E8497 00845 042 71590 2875 07070 V1046 E9342")
OTHER_ICD10 = _codes("Z87891 D649 F329 K219 E039 Z7901 Y929 M1990 D696 Z8546 N400 G4733 Y838 B1920 Z6835")
"""Codes of no phenotype."""
