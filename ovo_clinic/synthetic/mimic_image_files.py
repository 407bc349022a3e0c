"""Writing one synthetic chest image as the JPG or the DICOM release of MIMIC-CXR has it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageFile:
    """What a DICOM file says beside the pixels: `date` as YYYYMMDD, `time` as HHMMSS, blank texts = not known."""

    subject_id: int
    study_id: int
    number: int
    view: str
    procedure: str
    date: str
    time: str


def write_jpg(path: Path, image: NDArray[np.float32], about: ImageFile) -> None:
    """Eight bits, histogram equalised as in MIMIC-CXR-JPG; `image` (H,W) from 0 to 1."""
    from PIL import Image, ImageOps

    grey = Image.fromarray(np.rint(image * 255).astype(np.uint8))
    ImageOps.equalize(grey).save(path, format="JPEG", quality=90)


def write_dicom(path: Path, image: NDArray[np.float32], about: ImageFile) -> None:
    """Twelve bits without compression; every fifth file is MONOCHROME1, 0 = white."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

    inverted = about.number % 5 == 4
    grey = np.rint((1 - image if inverted else image) * 4095).astype("<u2")
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["synthetic image", str(about.number)])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = Dataset()
    file.file_meta = meta
    file.SOPClassUID = meta.MediaStorageSOPClassUID
    file.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    file.StudyInstanceUID = generate_uid(entropy_srcs=["synthetic study", str(about.study_id)])
    file.PatientID = str(about.subject_id)
    file.StudyID = str(about.study_id)
    file.StudyDate, file.StudyTime = about.date, about.time
    file.Modality = "DX"
    file.PerformedProcedureStepDescription = about.procedure
    file.ViewPosition = about.view
    file.SamplesPerPixel = 1
    file.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    file.Rows, file.Columns = image.shape
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.PixelData = grey.tobytes()
    file.save_as(path, enforce_file_format=True)
