"""The codes, drugs and laboratory variables of the synthetic eICU folder, most frequent first."""

from typing import Literal, NamedTuple

Driver = Literal["cosine", "sine", "severity", ""]
"""Which latent of its own modality drives a measurement; `` = none, the measurement is noise."""


class Drug(NamedTuple):
    """A medication: HICL number, names, therapeutic class (gtc), route."""

    hicl: int
    generic: str
    brand: str
    form: str
    gtc: int
    route: str


class Measurement(NamedTuple):
    """A laboratory variable or an APACHE column.

    Attributes:
        name: as it stands in the file.
        centre, scale: value = centre + scale * z, z of about unit variance; scale < centre / 3.6 keeps it positive.
        decimals: places that are printed.
        driver: the latent that z follows, negated where `sign` is -1.
        kind: labtypeid.
        unit: labmeasurenamesystem.
        interface: labmeasurenameinterface at every second hospital.
        missing: share of -1 (APACHE columns only).
    """

    name: str
    centre: float
    scale: float
    decimals: int = 0
    driver: Driver = ""
    sign: int = 1
    kind: int = 1
    unit: str = ""
    interface: str = ""
    missing: float = 0.04


DIAGNOSES: tuple[tuple[str, str], ...] = (
    ("pulmonary|respiratory failure|acute respiratory failure", "518.81, J96.00"),
    ("renal|disorder of kidney|acute renal failure", "584.9, N17.9"),
    ("pulmonary|pulmonary infections|pneumonia", "486, J18.9"),
    ("endocrine|glucose metabolism|diabetes mellitus", ""),
    ("cardiovascular|shock / hypotension|septic shock", "785.52, R65.21"),
    ("cardiovascular|ventricular disorders|congestive heart failure", "428.0, I50.9"),
    ("neurologic|altered mental status / pain|change in mental status", "780.09, R41.82"),
    ("cardiovascular|vascular disorders|hypertension", "401.9, I10"),
    ("pulmonary|respiratory failure|hypoxemia", "799.02, J96.91"),
    ("hematology|bleeding and red blood cell disorders|anemia", ""),
    ("endocrine|glucose metabolism|DKA", "250.13, E10.1"),
    ("pulmonary|disorders of the airways|COPD", "491.20, J44.9"),
    ("cardiovascular|shock / hypotension|sepsis", "038.9, A41.9"),
    ("cardiovascular|arrhythmias|atrial fibrillation", "427.31, I48.0"),
    ("renal|disorder of acid base|metabolic acidosis|lactic acidosis", "276.2, E87.2"),
    ("cardiovascular|shock / hypotension|hypotension", "458.9, I95.9"),
    ("cardiovascular|arrhythmias|atrial fibrillation|with rapid ventricular response", "427.31, I48.0"),
    ("pulmonary|disorders of the airways|acute COPD exacerbation", "491.21, J44.1"),
    ("cardiovascular|chest pain / ASHD|hyperlipidemia", "272.4, E78.5"),
    ("neurologic|altered mental status / pain|encephalopathy", "348.30, G93.40"),
    ("cardiovascular|shock / hypotension|sepsis|severe", "995.92, R65.2"),
    ("endocrine|glucose metabolism|hyperglycemia", "790.6, R73.9"),
    ("hematology|white blood cell disorders|leukocytosis", "288.8, D72.829"),
    ("neurologic|altered mental status / pain|pain", ""),
    (
        "cardiovascular|chest pain / ASHD|acute coronary syndrome|acute myocardial infarction (no ST elevation)",
        "410.71, I21.4",
    ),
    ("neurologic|altered mental status / pain|drug withdrawal syndrome|alcohol", "291.81, F10.239"),
    ("infectious diseases|systemic/other infections|sepsis", "038.9, A41.9"),
    ("cardiovascular|shock / hypotension|hypotension / pressor dependent", ""),
    ("endocrine|thyroid|hypothyroidism", "244.9, E03.9"),
    ("gastrointestinal|GI bleeding / PUD|GI bleeding", "578.9, K92.2"),
    ("neurologic|seizures|seizures", "345.90, R56.9"),
    ("renal|disorder of kidney|chronic renal insufficiency", "585.9, N18.9"),
    ("cardiovascular|shock / hypotension|hypovolemia", "276.52, E86.1"),
    ("hematology|bleeding and red blood cell disorders|anemia|acute blood loss anemia", "285.1, D62"),
    ("cardiovascular|chest pain / ASHD|chest pain", "786.50, R07.9"),
    ("pulmonary|pulmonary infections|pneumonia|aspiration", "507.0, J69.0"),
    ("cardiovascular|chest pain / ASHD|coronary artery disease", ""),
    ("renal|electrolyte imbalance|hypokalemia", "276.8, E87.6"),
    ("renal|disorder of kidney|ESRD (end stage renal disease)", "585.6, N18.6"),
    ("hematology|platelet disorders|thrombocytopenia", "287.5, D69.6"),
    ("pulmonary|disorders of the airways|obstructive sleep apnea", "780.57, G47.33"),
    ("renal|disorder of kidney|chronic kidney disease", "585.9, N18.9"),
    ("gastrointestinal|malnutrition|nutritional deficiency", "263.9, E46"),
    ("gastrointestinal|abdominal/ general|abdominal pain / tenderness", "789.00, R10.9"),
    ("pulmonary|pleural disorders|pleural effusion|right", "511.9, J91.8"),
    ("endocrine|glucose metabolism|diabetes mellitus|Type II", ""),
    ("infectious diseases|chest/pulmonary infections|pneumonia", "486, J18.9"),
    ("cardiovascular|ventricular disorders|cardiomyopathy", ""),
    ("infectious diseases|systemic/other infections|signs and symptoms of sepsis (SIRS)", "995.90"),
    ("gastrointestinal|post-GI surgery|s/p exploratory laparotomy", ""),
    ("neurologic|altered mental status / pain|depression", "311, F32.9"),
    ("infectious diseases|systemic/other infections|fever", "780.6, R50.9"),
    ("renal|disorder of acid base|metabolic acidosis", "276.2, E87.2"),
    ("neurologic|altered mental status / pain|agitation", "307.9, R45.1"),
    ("pulmonary|disorders of the airways|asthma / bronchospasm", "493.90, J45"),
    ("gastrointestinal|GI bleeding / PUD|lower GI bleeding", "578.9, K92.2"),
    ("infectious diseases|GU infections|lower urinary tract infection", "599.0, N39.0"),
    ("neurologic|disorders of vasculature|stroke", "436, I67.8"),
    ("gastrointestinal|GI bleeding / PUD|upper GI bleeding", "578.9, K92.2"),
    ("cardiovascular|cardiac surgery|s/p CABG < 7 days", ""),
)

TREATMENTS: tuple[str, ...] = (
    "pulmonary|ventilation and oxygenation|mechanical ventilation",
    "pulmonary|radiologic procedures / bronchoscopy|chest x-ray",
    "cardiovascular|intravenous fluid|normal saline administration",
    "gastrointestinal|medications|stress ulcer prophylaxis|pantoprazole",
    "cardiovascular|shock|vasopressors|norepinephrine > 0.1 micrograms/kg/min",
    "pulmonary|ventilation and oxygenation|oxygen therapy (< 40%)|nasal cannula",
    "endocrine|glucose metabolism|insulin|sliding scale administration",
    "cardiovascular|myocardial ischemia / infarction|antiplatelet agent|aspirin",
    "cardiovascular|vascular disorders|VTE prophylaxis|compression stockings",
    "general|support services|physical therapy consult",
    "gastrointestinal|medications|antiemetic|serotonin antagonist|ondansetron",
    "pulmonary|medications|bronchodilator",
    "infectious diseases|medications|therapeutic antibacterials",
    "cardiovascular|consultations|Cardiology consultation",
    "neurologic|pain / agitation / altered mentation|analgesics|narcotic analgesic",
    "pulmonary|consultations|Pulmonary/CCM consultation",
    "renal|urinary catheters|foley catheter",
    "endocrine|glucose metabolism|insulin",
    "pulmonary|ventilation and oxygenation|non-invasive ventilation",
    "renal|dialysis|C V V H D",
    "infectious diseases|medications|therapeutic antibacterials|vancomycin",
    "infectious diseases|cultures / immuno-assays|cultures|blood",
    "neurologic|procedures / diagnostics|head CT scan",
    "gastrointestinal|medications|stress ulcer prophylaxis|famotidine",
    "pulmonary|ventilation and oxygenation|oxygen therapy (40% to 60%)",
    "cardiovascular|non-operative procedures|diagnostic ultrasound of heart|transthoracic echocardiography",
    "neurologic|pain / agitation / altered mentation|sedative agent|lorazepam",
    "cardiovascular|ventricular dysfunction|intravenous diuretic|IV furosemide",
    "cardiovascular|vascular disorders|VTE prophylaxis|compression boots",
    "cardiovascular|arrhythmias|antiarrhythmics|class III antiarrhythmic|amiodarone",
    "neurologic|pain / agitation / altered mentation|analgesics|bolus parenteral analgesics",
    "gastrointestinal|medications|stress ulcer prophylaxis",
    "pulmonary|medications|bronchodilator|beta-agonist|albuterol (Proventil, Ventolin)",
    "endocrine|glucose metabolism|insulin|continuous infusion",
    "pulmonary|ventilation and oxygenation|oxygen therapy (< 40%)",
    "cardiovascular|vascular disorders|VTE prophylaxis|low molecular weight heparin|enoxaparin",
    "infectious diseases|medications|therapeutic antibacterials|penicillins|piperacillin/tazobactam",
    "cardiovascular|intravenous fluid|normal saline administration|fluid bolus (250-1000mls)",
    "renal|electrolyte correction|electrolyte administration|potassium",
    "neurologic|consultations|Neurology consultation",
    "infectious diseases|cultures / immuno-assays|cultures|urine",
    "infectious diseases|consultations|Infectious Disease consultation",
    "cardiovascular|myocardial ischemia / infarction|antihyperlipidemic agent|HMG-CoA reductase inhibitor|atorvastatin",
    "cardiovascular|vascular disorders|VTE prophylaxis|conventional heparin therapy|subcutaneous",
    "cardiovascular|shock|vasopressors|norepinephrine <= 0.1 micrograms/kg/min",
    "pulmonary|ventilation and oxygenation|ventilator weaning",
    "general|support services|occupational therapy consult",
    "neurologic|pain / agitation / altered mentation|analgesics|non-narcotic analgesic|acetaminophen",
    "gastrointestinal|consultations|Gastroenterology consultation",
    "neurologic|pain / agitation / altered mentation|sedative agent|propofol",
    "gastrointestinal|nutrition|enteral feeds|oral feeds",
    "cardiovascular|arrhythmias|antiarrhythmics|class IV antiarrhythmic|diltiazem",
    "neurologic|seizure therapy|anticonvulsant|levetiracetam",
    "pulmonary|ventilation and oxygenation|CPAP/PEEP therapy",
    "cardiovascular|shock|vasopressors|phenylephrine (Neosynephrine)",
    "endocrine|glucose metabolism|insulin|subcutaneous dose of regular insulin",
    "cardiovascular|hypertension|beta blocker|metoprolol",
    "renal|consultations|Nephrology consultation",
    "gastrointestinal|nutrition|enteral feeds|tube feeding",
    "pulmonary|medications|glucocorticoid administration",
)

TERMINAL_DIAGNOSIS = ("cardiovascular|cardiac arrest|cardiac arrest", "427.5, I46.9")
TERMINAL_TREATMENT = "general|support services|comfort care"
"""Recorded in the last hours of most who die: leaks the outcome to whoever reads past the prediction time."""

DRUGS: tuple[Drug, ...] = (
    Drug(8255, "sodium chloride", "NaCl 0.9% MBP", "0.9 % IV SOLN", 59, "IV"),
    Drug(549, "potassium chloride", "KLOR-CON", "CRYS ER 20 MEQ PO TBCR", 59, "PO"),
    Drug(1866, "acetaminophen", "TYLENOL", "325 MG PO TABS", 2, "PO"),
    Drug(3660, "furosemide", "LASIX", "10 MG/ML IJ SOLN", 56, "IV"),
    Drug(2051, "norepinephrine bitartrate", "LEVOPHED", "1 MG/ML IV SOLN", 104, "IV"),
    Drug(33598, "ondansetron hcl", "ZOFRAN", "4 MG/2ML IJ SOLN", 65, "IV"),
    Drug(926, "dextrose 50%", "DEXTROSE-50", "25 GRAM/50 ML SYR", 59, "IV"),
    Drug(22008, "pantoprazole sodium", "PROTONIX", "40 MG IV SOLR", 65, "IV"),
    Drug(1694, "morphine sulfate", "DURAMORPH", "2 MG/1 ML 1 ML SYR", 2, "IV"),
    Drug(4846, "lorazepam", "ATIVAN", "2 MG/ML IJ SOLN", 83, "IV"),
    Drug(2102, "metoprolol tartrate", "LOPRESSOR", "25 MG PO TABS", 41, "PO"),
    Drug(25386, "fentanyl (pf)", "SUBLIMAZE", "50 MCG/1 ML 2 ML INJ", 2, "IV"),
    Drug(1820, "aspirin", "ECOTRIN", "81 MG PO CHEW", 2, "PO"),
    Drug(20769, "insulin aspart", "NOVOLOG", "100 UNIT/ML SC SOLN", 71, "SubQ"),
    Drug(610, "magnesium sulfate", "MAG SULFATE", "2 GM/50 ML IVPB", 59, "IV"),
    Drug(9040, "ipratropium-albuterol", "DUONEB", "0.5-2.5 (3) MG/3ML IN SOLN", 14, "NEBULIZATION"),
    Drug(2810, "heparin sod (porcine)", "HEPARIN", "5000 UNIT/ML 1ML INJ", 36, "IV"),
    Drug(7878, "enoxaparin sodium", "LOVENOX", "40 MG/0.4 ML SYR", 36, "SubQ"),
    Drug(19078, "glucagon hcl (rdna)", "GLUCAGEN", "1 MG IJ SOLR", 59, "IM"),
    Drug(4042, "vancomycin hcl", "VANCOCIN", "1000 MG IV SOLR", 19, "IV"),
    Drug(1326, "docusate sodium", "COLACE", "100 MG PO CAPS", 65, "PO"),
    Drug(4480, "diphenhydramine hcl", "BENADRYL", "25 MG PO CAPS", 17, "PO"),
    Drug(89, "hydralazine hcl", "APRESOLINE", "20 MG/ML IJ SOLN", 41, "IV"),
    Drug(807, "glucose", "GLUTOSE", "15 GRAM/60 ML BQ LIQ", 59, "PO"),
    Drug(2812, "warfarin sodium", "COUMADIN", "5 MG PO TABS", 36, "PO"),
    Drug(2073, "albuterol", "PROVENTIL,VENTOLIN", "2.5 MG/3 ML UD INH SOLN", 14, "SVN"),
    Drug(768, "insulin human regular", "HUMULIN R", "100 UNIT/ML IJ SOLN", 71, "IV"),
    Drug(525, "lactated ringers", "LR", "IV SOLP", 59, "IV"),
    Drug(1730, "hydrocodone-acetaminophen", "NORCO", "5-325 MG PO TABS", 2, "Oral"),
    Drug(2839, "vasopressin", "PITRESSIN", "20 UNIT/ML IV SOLN", 3, "IV"),
    Drug(4521, "famotidine", "PEPCID", "20 MG TAB", 65, "PO"),
    Drug(1619, "midazolam hcl", "VERSED", "1 MG/ML IJ SOLN", 5, "IV"),
    Drug(4842, "propofol", "DIPRIVAN", "10 MG/1 ML 100ML SDV INJ", 5, "IV"),
    Drug(132, "lisinopril", "ZESTRIL", "10 MG PO TABS", 41, "PO"),
    Drug(1695, "hydromorphone hcl", "DILAUDID", "1 MG/ML IJ SOLN", 2, "IV"),
    Drug(1301, "bisacodyl", "DULCOLAX", "10 MG RECT SUPP", 65, "Rectal"),
    Drug(11528, "insulin lispro (human)", "HUMALOG", "100 UNIT/ML SC SOLN", 71, "SubQ"),
    Drug(12404, "atorvastatin calcium", "LIPITOR", "40 MG PO TABS", 41, "PO"),
    Drug(1874, "naloxone hcl", "NARCAN", "0.4 MG/ML IJ SOLN", 9, "IV"),
    Drug(1741, "oxycodone-acetaminophen", "PERCOCET", "5-325 MG PO TABS", 2, "PO"),
    Drug(159, "nitroglycerin", "NITROSTAT", "0.4 MG(1/150) SL TAB", 38, "SL"),
    Drug(2728, "albumin human 5%", "BUMINATE", "IV SOLN", 35, "IV"),
    Drug(22025, "insulin glargine", "LANTUS", "100 UNIT/ML SC SOLN", 71, "SubQ"),
    Drug(2148, "metoclopramide hcl", "REGLAN", "5 MG/ML IJ SOLN", 65, "IV"),
    Drug(2095, "labetalol hcl", "TRANDATE", "5 MG/ML IV SOLN", 41, "IV"),
    Drug(2876, "methylprednisolone sod succ", "SOLU-MEDROL", "125 MG INJ", 68, "IV"),
    Drug(6494, "amlodipine besylate", "NORVASC", "5 MG PO TABS", 38, "PO"),
    Drug(13795, "carvedilol", "COREG", "6.25 MG PO TABS", 41, "PO"),
    Drug(83, "amiodarone hcl", "CORDARONE", "200 MG PO TABS", 38, "PO"),
    Drug(22819, "polyethylene glycol 3350", "MIRALAX", "17 GRAM ORAL POWDER PACKET", 65, "PO"),
    Drug(3996, "ceftriaxone", "ROCEPHIN", "1 GRAM in NS 50 mL IVPB", 19, "IV"),
    Drug(2879, "prednisone", "DELTASONE", "20 MG PO TABS", 68, "PO"),
    Drug(12383, "levofloxacin in d5w", "LEVAQUIN", "750 MG/150ML IV SOLN", 19, "IV"),
    Drug(8738, "piperacillin-tazobactam", "ZOSYN", "3-0.375 G IV SOLR", 19, "IV"),
    Drug(17539, "clopidogrel bisulfate", "PLAVIX", "75 MG PO TABS", 35, "PO"),
    Drug(585, "calcium gluconate", "CALCIUM GLUC", "100 MG/ML IV SOLN", 59, "IV"),
    Drug(7842, "zolpidem tartrate", "AMBIEN", "5 MG PO TABS", 83, "PO"),
    Drug(182, "diltiazem hcl", "CARDIZEM", "25 MG/5ML IV SOLN", 38, "IV"),
    Drug(21772, "sennosides-docusate sodium", "SENOKOT-S TAB", "8.6-50 MG PO TABS", 65, "PO"),
    Drug(8831, "gabapentin", "NEURONTIN", "300 MG PO CAPS", 44, "PO"),
)

LABS: tuple[Measurement, ...] = (
    Measurement("bedside glucose", 145, 30, 0, kind=4, unit="mg/dL", interface="mg/dL"),
    Measurement("potassium", 4.1, 0.5, 1, "cosine", unit="mmol/L", interface="mEq/L"),
    Measurement("sodium", 138, 5, 0, "sine", unit="mmol/L", interface="mEq/L"),
    Measurement("glucose", 140, 32, 0, unit="mg/dL", interface="mg/dL"),
    Measurement("chloride", 103, 5, 0, "sine", unit="mmol/L", interface="mEq/L"),
    Measurement("creatinine", 1.4, 0.35, 2, unit="mg/dL", interface="mg/dL"),
    Measurement("Hgb", 10.5, 1.6, 1, "cosine", kind=3, unit="g/dL", interface="gm/dL"),
    Measurement("BUN", 26, 7, 0, unit="mg/dL", interface="mg/dL"),
    Measurement("calcium", 8.4, 0.6, 1, "cosine", unit="mg/dL", interface="mg/dL"),
    Measurement("bicarbonate", 24, 4, 0, "severity", -1, unit="mmol/L", interface="mEq/L"),
    Measurement("Hct", 32, 4.5, 1, "cosine", kind=3, unit="%", interface="%"),
    Measurement("platelets x 1000", 210, 55, 0, "sine", -1, kind=3, unit="K/mcL", interface="K/uL"),
    Measurement("WBC x 1000", 11, 2.9, 1, kind=3, unit="K/mcL", interface="K/uL"),
    Measurement("RBC", 3.5, 0.5, 2, "cosine", kind=3, unit="M/mcL", interface="M/uL"),
    Measurement("MCV", 90, 5, 1, "sine", kind=3, unit="fL", interface="fL"),
    Measurement("MCHC", 33, 1.2, 1, kind=3, unit="g/dL", interface="g/dL"),
    Measurement("MCH", 29.7, 2, 1, "sine", kind=3, unit="pg", interface="pg"),
    Measurement("RDW", 15, 1.7, 1, "sine", kind=3, unit="%", interface="%"),
    Measurement("anion gap", 11, 3, 0, "severity", interface="mmol/L"),
    Measurement("MPV", 9.8, 1.1, 1, "sine", kind=3, unit="fL", interface="fL"),
    Measurement("-lymphs", 14, 3.8, 1, "cosine", kind=3, unit="%", interface="%"),
    Measurement("-monos", 7.2, 1.9, 1, "sine", kind=3, unit="%", interface="%"),
    Measurement("-polys", 77, 7, 1, "cosine", -1, kind=3, unit="%", interface="%"),
    Measurement("-eos", 1.3, 0.35, 1, kind=3, unit="%", interface="%"),
    Measurement("magnesium", 1.95, 0.25, 1, "cosine", unit="mg/dL", interface="mg/dL"),
    Measurement("albumin", 3, 0.5, 1, "cosine", unit="g/dL", interface="gm/dL"),
    Measurement("AST (SGOT)", 70, 18, 0, "severity", unit="Units/L", interface="U/L"),
    Measurement("total protein", 6.1, 0.8, 1, "cosine", unit="g/dL", interface="g/dL"),
    Measurement("ALT (SGPT)", 55, 15, 0, "severity", unit="Units/L", interface="U/L"),
    Measurement("alkaline phos.", 95, 25, 0, "sine", unit="Units/L", interface="U/L"),
    Measurement("total bilirubin", 1.1, 0.3, 1, "severity", unit="mg/dL", interface="mg/dL"),
    Measurement("lactate", 3.2, 0.8, 1, "severity", unit="mmol/L", interface="mMol/L"),
    Measurement("pH", 7.35, 0.07, 2, kind=7),
    Measurement("paO2", 110, 30, 0, kind=7, unit="mm Hg", interface="mmHg"),
    Measurement("paCO2", 41, 9, 1, kind=7, unit="mm Hg", interface="mmHg"),
    Measurement("FiO2", 50, 8, 0, kind=7, unit="%", interface="%"),
    Measurement("phosphate", 3.4, 0.8, 1, "sine", unit="mg/dL", interface="mg/dL"),
    Measurement("PT - INR", 1.5, 0.3, 1, "severity", kind=3, unit="ratio"),
    Measurement("Temperature", 37, 0.6, 1, kind=7, unit="&#176;C", interface="Deg C"),
    Measurement("troponin - I", 0.5, 0.13, 2, unit="ng/mL", interface="ng/mL"),
)

APS: tuple[Measurement, ...] = (
    Measurement("urine", 1900, 500, 4, "cosine"),
    Measurement("wbc", 12, 3, 1, "sine"),
    Measurement("temperature", 36.8, 0.7, 1, "cosine"),
    Measurement("respiratoryrate", 24, 6, 0, "sine"),
    Measurement("sodium", 138, 5, 0, "sine", -1),
    Measurement("heartrate", 98, 22, 0, "cosine"),
    Measurement("meanbp", 78, 20, 0, "sine", -1),
    Measurement("ph", 7.34, 0.07, 2, "severity", -1),
    Measurement("hematocrit", 33, 5, 1, "cosine", -1),
    Measurement("creatinine", 1.5, 0.4, 2, "severity"),
    Measurement("albumin", 2.9, 0.5, 1, "sine", -1),
    Measurement("pao2", 100, 27, 0, missing=0.8),
    Measurement("pco2", 42, 10, 1, missing=0.8),
    Measurement("bun", 30, 8, 0, "severity"),
    Measurement("glucose", 160, 42, 0, "cosine"),
    Measurement("bilirubin", 1.2, 0.3, 1, "severity"),
    Measurement("fio2", 50, 13, 0, "severity"),
)
"""The measured APACHE columns in file order; intubated ... meds stand before them."""

ADMISSION_DIAGNOSES = (
    "Sepsis, pulmonary",
    "CHF, congestive heart failure",
    "Rhythm disturbance (atrial, supraventricular)",
    "Pneumonia, bacterial",
    "Emphysema/bronchitis",
    "Infarction, acute myocardial (MI)",
    "Diabetic ketoacidosis",
    "Sepsis, renal/UTI (including bladder)",
    "Bleeding, upper GI",
    "CABG alone, coronary artery bypass grafting",
    "Overdose, other toxin, poison or drug",
    "",
)
