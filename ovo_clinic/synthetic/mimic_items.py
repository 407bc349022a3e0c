"""The chart items and laboratory tests of the synthetic MIMIC-IV folder, and what each follows."""

from typing import NamedTuple


class Kit(NamedTuple):
    """Items that are charted together.

    Attributes:
        chance: that a round of charting includes them.
        only: which stays have them: `` = all; `artery`, `ventilated`, or `cuff` (mostly those without an artery).
    """

    chance: float
    only: str = ""


class Item(NamedTuple):
    """A numeric item or test.

    Attributes:
        itemid, label, unit: as in d_items or d_labitems.
        kit: what it is charted with.
        centre, scale: value = centre + scale * z, z of about unit variance.
        decimals: places that are printed.
        driver: the latent that z follows (`mimic_signal.Latents.driver`), negated where `sign` is -1; `` = none.
        low, high: values are clipped to them.
    """

    itemid: int
    label: str
    unit: str | None
    kit: str
    centre: float
    scale: float
    decimals: int = 0
    driver: str = ""
    sign: int = 1
    low: float = 0
    high: float = 2000


class TextItem(NamedTuple):
    """An item with texts.

    Attributes:
        texts: from the best state to the worst, with the number charted beside each (None = none).
        cuts: where z passes from one text to the next; empty = any text with equal chance.
    """

    itemid: int
    label: str
    kit: str
    texts: tuple[tuple[str, float | None], ...]
    cuts: tuple[float, ...] = ()
    driver: str = ""


KITS = {
    "monitor": Kit(1.0),
    "cuff": Kit(0.75, "cuff"),
    "artery": Kit(0.95, "artery"),
    "manual": Kit(0.01),
    "thermometer": Kit(0.3),
    "probe": Kit(0.05),
    "neuro": Kit(0.3),
    "skin": Kit(0.12),
    "oxygen": Kit(0.25),
    "ventilator": Kit(0.6, "ventilated"),
    "finger": Kit(0.15),
    "gas": Kit(0.08),
    "scales": Kit(0.04),
    "nursing": Kit(0.6),
}

ITEMS: tuple[Item, ...] = (
    Item(220045, "Heart Rate", "bpm", "monitor", 88, 14, driver="circulation", low=25, high=220),
    Item(220210, "Respiratory Rate", "insp/min", "monitor", 20, 4, driver="respiration", low=4, high=60),
    Item(220277, "O2 saturation pulseoxymetry", "%", "monitor", 95, 2, driver="respiration", sign=-1, low=60, high=100),
    Item(220179, "Non Invasive Blood Pressure systolic", "mmHg", "cuff", 118, 15, 0, "circulation", -1, 50, 240),
    Item(220180, "Non Invasive Blood Pressure diastolic", "mmHg", "cuff", 62, 8, 0, "sine", 1, 20, 140),
    Item(220181, "Non Invasive Blood Pressure mean", "mmHg", "cuff", 77, 10, 0, "circulation", -1, 30, 180),
    Item(220050, "Arterial Blood Pressure systolic", "mmHg", "artery", 120, 15, 0, "circulation", -1, 50, 240),
    Item(220051, "Arterial Blood Pressure diastolic", "mmHg", "artery", 60, 8, 0, "sine", 1, 20, 140),
    Item(220052, "Arterial Blood Pressure mean", "mmHg", "artery", 79, 10, 0, "circulation", -1, 30, 180),
    Item(224167, "Manual Blood Pressure Systolic Left", "mmHg", "manual", 118, 15, 0, "circulation", -1, 50, 240),
    Item(224643, "Manual Blood Pressure Diastolic Left", "mmHg", "manual", 62, 8, 0, "sine", 1, 20, 140),
    Item(227243, "Manual Blood Pressure Systolic Right", "mmHg", "manual", 118, 15, 0, "circulation", -1, 50, 240),
    Item(227242, "Manual Blood Pressure Diastolic Right", "mmHg", "manual", 62, 8, 0, "sine", 1, 20, 140),
    Item(223761, "Temperature Fahrenheit", "°F", "thermometer", 98.4, 0.9, 1, "cosine", 1, 90, 108),
    Item(223762, "Temperature Celsius", "°C", "probe", 36.9, 0.5, 1, "cosine", 1, 31, 42),
    Item(223835, "Inspired O2 Fraction", None, "oxygen", 48, 10, 0, "respiration", 1, 21, 100),
    Item(224690, "Respiratory Rate (Total)", "insp/min", "ventilator", 20, 4, 0, "respiration", 1, 4, 60),
    Item(224689, "Respiratory Rate (spontaneous)", "insp/min", "ventilator", 6, 6, 0, "", 1, 0, 50),
    Item(224422, "Spont RR", "bpm", "ventilator", 18, 5, 0, "", 1, 0, 50),
    Item(225664, "Glucose finger stick (range 70-100)", None, "finger", 150, 32, 0, "metabolism", 1, 20, 600),
    Item(220621, "Glucose (serum)", "mg/dL", "gas", 148, 32, 0, "metabolism", 1, 20, 600),
    Item(226537, "Glucose (whole blood)", "mg/dL", "gas", 146, 32, 0, "metabolism", 1, 20, 600),
    Item(223830, "PH (Arterial)", "units", "gas", 7.37, 0.06, 2, "metabolism", -1, 6.8, 7.7),
    Item(220274, "PH (Venous)", "units", "gas", 7.34, 0.06, 2, "metabolism", -1, 6.8, 7.7),
    Item(220227, "Arterial O2 Saturation", "%", "gas", 95, 2, 0, "respiration", -1, 60, 100),
    Item(224639, "Daily Weight", "kg", "scales", 84, 18, 1, "", 1, 30, 250),
    Item(220046, "Heart rate Alarm - High", "bpm", "nursing", 125, 8),
    Item(220047, "Heart Rate Alarm - Low", "bpm", "nursing", 52, 5),
    Item(223751, "Non-Invasive Blood Pressure Alarm - High", "mmHg", "nursing", 162, 9),
    Item(223752, "Non-Invasive Blood Pressure Alarm - Low", "mmHg", "nursing", 88, 5),
    Item(223769, "O2 Saturation Pulseoxymetry Alarm - High", "%", "nursing", 100, 0.3, high=100),
    Item(223770, "O2 Saturation Pulseoxymetry Alarm - Low", "%", "nursing", 89, 1.5),
    Item(224161, "Resp Alarm - High", "insp/min", "nursing", 32, 3),
    Item(224162, "Resp Alarm - Low", "insp/min", "nursing", 8, 1),
    Item(220339, "PEEP set", "cmH2O", "ventilator", 6, 2),
    Item(224684, "Tidal Volume (set)", "mL", "ventilator", 450, 40),
    Item(224686, "Tidal Volume (spontaneous)", "mL", "ventilator", 420, 90),
    Item(224687, "Minute Volume", "L/min", "ventilator", 9, 1.8, 1),
    Item(224695, "Peak Insp. Pressure", "cmH2O", "ventilator", 21, 5),
    Item(220615, "Creatinine (serum)", "mg/dL", "gas", 1.4, 0.4, 1, low=0.2),
    Item(227442, "Potassium (serum)", "mEq/L", "gas", 4.2, 0.5, 1),
    Item(220645, "Sodium (serum)", "mEq/L", "gas", 138, 4),
)

TEXT_ITEMS: tuple[TextItem, ...] = (
    TextItem(
        220739,
        "GCS - Eye Opening",
        "neuro",
        (("Spontaneously", 4), ("To Speech", 3), ("To Pain", 2), ("None", 1)),
        (0.2, 0.9, 1.5),
        "coma",
    ),
    TextItem(
        223900,
        "GCS - Verbal Response",
        "neuro",
        (
            ("Oriented", 5),
            ("Confused", 4),
            ("Inappropriate Words", 3),
            ("Incomprehensible sounds", 2),
            ("No Response", 1),
        ),
        (0, 0.7, 1, 1.4),
        "coma",
    ),
    TextItem(
        223901,
        "GCS - Motor Response",
        "neuro",
        (
            ("Obeys Commands", 6),
            ("Localizes Pain", 5),
            ("Flex-withdraws", 4),
            ("Abnormal Flexion", 3),
            ("Abnormal extension", 2),
            ("No response", 1),
        ),
        (0.5, 1.1, 1.5, 1.8, 2.1),
        "coma",
    ),
    TextItem(
        223951,
        "Capillary Refill R",
        "skin",
        (("Normal <3 Seconds", None), ("Abnormal >3 Seconds", None)),
        (1.1,),
        "circulation",
    ),
    TextItem(
        224308,
        "Capillary Refill L",
        "skin",
        (("Normal <3 Seconds", None), ("Abnormal >3 Seconds", None), ("Unable to Assess", None)),
        (1.2, 2.6),
        "circulation",
    ),
    TextItem(220048, "Heart Rhythm", "nursing", (("SR (Sinus Rhythm)", None), ("ST (Sinus Tachycardia)", None))),
    TextItem(223791, "Pain Level", "nursing", (("None", 0), ("Mild", 2), ("Moderate", 5))),
    TextItem(228096, "Richmond-RAS Scale", "nursing", ((" 0  Alert and calm", 0), ("-1 Awakens to voice", -1))),
    TextItem(
        224080, "Head of Bed", "nursing", (("30 Degrees", None), ("45 Degrees", None), ("Flat (0 degrees)", None))
    ),
    TextItem(226104, "Level of Consciousness", "nursing", (("Alert", None), ("Arouse to Voice", None))),
    TextItem(223987, "RLL Lung Sounds", "nursing", (("Clear", None), ("Diminished", None), ("Rhonchi", None))),
    TextItem(223934, "Dorsal PedPulse R", "nursing", (("Easily Palpable", None), ("Doppler", None))),
)

VERBAL, TUBE = 223900, ("No Response-ETT", 1)
HEIGHT_INCHES, HEIGHT = (226707, "Height", "Inch"), (226730, "Height (cm)", "cm")
WEIGHT, WEIGHT_POUNDS = (226512, "Admission Weight (Kg)", "kg"), (226531, "Admission Weight (lbs.)", None)

TESTS: tuple[tuple[Item, str, str], ...] = (
    (Item(50931, "Glucose", "mg/dL", "chemistry", 145, 32, 0, "metabolism", 1, 20, 900), "Blood", "Chemistry"),
    (Item(50983, "Sodium", "mEq/L", "chemistry", 138, 4), "Blood", "Chemistry"),
    (Item(50971, "Potassium", "mEq/L", "chemistry", 4.2, 0.5, 1), "Blood", "Chemistry"),
    (Item(50912, "Creatinine", "mg/dL", "chemistry", 1.4, 0.4, 1, low=0.1), "Blood", "Chemistry"),
    (Item(51006, "Urea Nitrogen", "mg/dL", "chemistry", 26, 8, low=2), "Blood", "Chemistry"),
    (Item(50868, "Anion Gap", "mEq/L", "chemistry", 14, 3), "Blood", "Chemistry"),
    (Item(50820, "pH", "units", "gas", 7.37, 0.06, 2, "metabolism", -1, 6.8, 7.7), "Blood", "Blood Gas"),
    (Item(50809, "Glucose", "mg/dL", "gas", 145, 32, 0, "metabolism", 1, 20, 900), "Blood", "Blood Gas"),
    (Item(50817, "Oxygen Saturation", "%", "gas", 95, 2, 0, "respiration", -1, 40, 100), "Blood", "Blood Gas"),
    (Item(50813, "Lactate", "mmol/L", "gas", 2.1, 0.6, 1, low=0.3), "Blood", "Blood Gas"),
    (Item(51301, "White Blood Cells", "K/uL", "count", 11, 3, 1, low=0.1), "Blood", "Hematology"),
    (Item(51222, "Hemoglobin", "g/dL", "count", 10.2, 1.5, 1, low=3), "Blood", "Hematology"),
    (Item(51265, "Platelet Count", "K/uL", "count", 210, 60, low=5), "Blood", "Hematology"),
    (Item(51478, "Glucose", "mg/dL", "urine", 150, 100, low=50), "Urine", "Hematology"),
    (Item(51491, "pH", "units", "urine", 6, 0.8, 1, low=5, high=9), "Urine", "Hematology"),
    (Item(51094, "pH", None, "urine", 6, 0.8, 0, low=5, high=9), "Urine", "Chemistry"),
    (Item(50831, "pH", "units", "fluid", 7.4, 0.1, 2, low=6.5, high=8.5), "Other Body Fluid", "Blood Gas"),
)
PANELS = {"chemistry": 0.85, "gas": 0.35, "count": 0.7, "urine": 0.08, "fluid": 0.02}
"""Chance that a draw of blood (or another specimen) has the panel."""
