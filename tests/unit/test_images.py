"""Decoding X-ray files: the DICOM recipe, squares of any format, damaged files, and going on after a kill."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian

from ovo_clinic import dicom, images
from ovo_clinic.errors import UserError


def write_dicom(path: Path, pixels: NDArray[Any] | None, **tags: Any) -> Path:
    """A DICOM file without compression, 12 bits in 16 unless told otherwise."""
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID = DigitalXRayImageStorageForPresentation
    file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID = "1.2.3"
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    if pixels is not None:
        file.Rows, file.Columns = pixels.shape[:2]
        file.PixelData = pixels.astype("<u2" if "BitsAllocated" not in tags else "u1").tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some tests write values that break the standard
        for name, value in tags.items():
            setattr(file, name, value)
        file.save_as(path, enforce_file_format=True)
    return path


def decode(paths: list[Path], out: Path, size: int = 8, recipe: str = "squash") -> list[str | None]:
    return images.decode_images(paths, size, recipe, out, 1)


# Counts of the grey values 0, 63, 127, 255 are 1, 2, 3, 2; OpenCV's rule: (count up to it - count of the darkest) over
# (all - count of the darkest), times 255: 0, 2/7, 5/7, 7/7.
RAW = np.array([[100, 350, 350, 600], [600, 600, 1100, 1100]])
EIGHT_BITS = [[0, 63, 63, 127], [127, 127, 255, 255]]
EQUALISED = [[0, 73, 73, 182], [182, 182, 255, 255]]


def test_dicom_is_stretched_and_equalised(tmp_path: Path) -> None:
    assert dicom.stretched(RAW).tolist() == EIGHT_BITS
    assert dicom.equalised(np.array(EIGHT_BITS, dtype=np.uint8)).tolist() == EQUALISED
    assert dicom.grey(write_dicom(tmp_path / "a.dcm", RAW)).tolist() == EQUALISED


def test_monochrome1_is_inverted_before_the_histogram_is_equalised(tmp_path: Path) -> None:
    grey = dicom.grey(write_dicom(tmp_path / "a.dcm", RAW, PhotometricInterpretation="MONOCHROME1"))
    # Inverted: 255, 192, 128, 0 with counts 1, 2, 3, 2, so that 2 are the darkest: 6/6, 5/6, 3/6, 0.
    assert grey.tolist() == [[255, 212, 212, 128], [128, 128, 0, 0]]


@pytest.mark.parametrize(("stored", "signed"), [(16, 0), (15, 0), (12, 1)])
def test_dicom_of_other_depths_gives_the_same_image(tmp_path: Path, stored: int, signed: int) -> None:
    path = write_dicom(tmp_path / "a.dcm", RAW, BitsStored=stored, HighBit=stored - 1, PixelRepresentation=signed)
    assert dicom.grey(path).tolist() == EQUALISED


def test_dicom_in_colour_becomes_grey(tmp_path: Path) -> None:
    colours = np.array([[[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], dtype=np.uint8)
    settings = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7, "SamplesPerPixel": 3, "PlanarConfiguration": 0}
    path = write_dicom(tmp_path / "a.dcm", colours, PhotometricInterpretation="RGB", **settings)
    assert dicom.grey(path).argsort().tolist() == [[0, 3, 1, 2, 4]]  # blue, red, green in the order of their weights


def test_real_dicom_is_what_the_recipe_written_in_numpy_gives(shared: Path) -> None:
    import pydicom

    for path in sorted((shared / "data/cxr/dicom").glob("*.dcm")):
        file = pydicom.dcmread(path)
        pixels = file.pixel_array.astype(np.float64)
        grey = np.floor((pixels - pixels.min()) * 255 / (pixels.max() - pixels.min()) + 1e-9)
        grey = 255 - grey if file.PhotometricInterpretation == "MONOCHROME1" else grey
        at_most = np.searchsorted(np.sort(grey.ravel()), np.arange(256), side="right").astype(np.float64)
        darkest = at_most[int(grey.min())]
        expected = np.round((at_most[grey.astype(int)] - darkest) / (grey.size - darkest) * 255)
        assert np.array_equal(dicom.grey(path), expected)


@pytest.mark.parametrize("shape", [(64, 64), (100, 70), (30, 200), (5, 9)])
def test_recipes_keep_a_ramp_a_ramp(shape: tuple[int, int]) -> None:
    height, width = shape
    ramp = np.linspace(0, 255, width)[None].repeat(height, axis=0).astype(np.uint8)
    image = Image.fromarray(ramp)
    squashed = np.asarray(images.squash(image, 28))
    assert squashed.shape == (28, 28)
    centres = (np.arange(28) + 0.5) * width / 28 - 0.5  # of the pixels, in pixels of the image
    inside = (centres > width / 28) & (centres < width - 1 - width / 28)  # a triangle reaches as far
    expected = np.interp(centres, np.arange(width), ramp[0])
    assert np.abs(squashed[:, inside] - expected[inside]).max() <= 1.5
    cropped = np.asarray(images.crop(image, 28))
    # The shorter side becomes 32 pixels, of which the middle 28 stay; both axes have one scale.
    longer = 32 * max(shape) // min(shape)
    scaled = 32 if width == min(shape) else longer
    centres = (np.arange(28) + round((scaled - 28) / 2) + 0.5) * width / scaled - 0.5
    inside = (centres > width / scaled) & (centres < width - 1 - width / scaled)
    assert np.abs(cropped[:, inside] - np.interp(centres, np.arange(width), ramp[0])[inside]).max() <= 1.5


def test_crop_at_224_is_medfuse_s_resize_to_256_and_crop(shared: Path) -> None:
    with Image.open(sorted((shared / "data/cxr/nih_1024").glob("*.png"))[0]) as image:
        found = np.asarray(images.crop(image, 224))
        whole = np.asarray(image.resize((256, 256), Image.Resampling.BILINEAR))
    assert np.array_equal(found, whole[16:240, 16:240])


def test_every_format_gives_the_same_picture(tmp_path: Path, shared: Path) -> None:
    with Image.open(sorted((shared / "data/cxr/nih_1024").glob("*.png"))[0]) as source:
        grey = source.convert("L")
    pixels = np.asarray(grey).astype(np.uint16)
    grey.save(tmp_path / "a.png")
    grey.save(tmp_path / "b.jpg", quality=95)
    grey.convert("RGB").save(tmp_path / "c.jpg", quality=95)
    grey.convert("RGBA").save(tmp_path / "d.png")
    Image.fromarray(pixels * 16).save(tmp_path / "e.png")  # 12 bits in 16
    write_dicom(tmp_path / "named.jpg", pixels * 16)  # the content tells what it is, not the name
    paths = [tmp_path / name for name in ("a.png", "b.jpg", "c.jpg", "d.png", "e.png", "named.jpg")]
    assert decode(paths, tmp_path / "out.npy", 56, "crop") == [None] * 6
    first, *others, equalised = np.load(tmp_path / "out.npy").astype(float)
    assert first.shape == (1, 56, 56)
    assert max(np.abs(other - first).max() for other in others) <= 6  # a JPG is not exact; 0 to 255 is not all used
    assert np.corrcoef(equalised.ravel(), first.ravel())[0, 1] > 0.9


def damaged(folder: Path, source: Path) -> dict[Path, str]:
    """Files that cannot be decoded, and what is said of them."""
    cut = folder / "cut.png"
    cut.write_bytes(source.read_bytes()[:2000])
    whole = write_dicom(folder / "whole.dcm", RAW)
    short = folder / "short.dcm"
    short.write_bytes(whole.read_bytes()[:-6])
    (folder / "empty.jpg").touch()
    (folder / "page.jpg").write_text("<html>Access denied</html>" * 20)
    Image.new("L", (20, 20), 7).save(folder / "blank.png")
    frames = [Image.new("L", (20, 20), value) for value in (0, 90)]
    frames[0].save(folder / "many.tif", save_all=True, append_images=frames[1:])
    return {
        cut: "cannot be decoded: OSError: ",
        short: "cannot be decoded: ValueError: ",
        folder / "empty.jpg": "cannot be decoded: UnidentifiedImageError: cannot identify image file",
        folder / "page.jpg": "cannot be decoded: UnidentifiedImageError: cannot identify image file",
        folder / "absent.jpg": "cannot be decoded: FileNotFoundError: ",
        folder / "blank.png": "all pixels have one value",
        folder / "many.tif": "has 2 frames; one is expected",
        write_dicom(folder / "frames.dcm", RAW, NumberOfFrames=2): "has 2 frames; one is expected",
        write_dicom(folder / "bare.dcm", None): "has no pixels",
        write_dicom(folder / "flat.dcm", np.full((4, 4), 9)): "all pixels have one value",
        write_dicom(
            folder / "palette.dcm", RAW, PhotometricInterpretation="PALETTE COLOR"
        ): "has colours from a palette",
    }


def test_damaged_files_are_skipped_with_a_reason(tmp_path: Path, shared: Path) -> None:
    good = sorted((shared / "data/cxr/nih_1024").glob("*.png"))[0]
    cases = damaged(tmp_path, good)
    for path, reason in cases.items():
        decoded, (found,) = images.decode(images.Job((path,), 8, "squash"))
        assert found is not None and found.startswith(reason), (path.name, found)
        assert "\n" not in found and str(tmp_path) not in found
        assert not decoded.any()
    present = [path for path in cases if path.exists()]
    reasons = decode([good, *present, good], tmp_path / "out.npy")
    assert [reason is None for reason in reasons] == [True, *[False] * len(present), True]
    out = np.load(tmp_path / "out.npy")
    assert np.array_equal(out[0], out[-1]) and out[0].any() and not out[1:-1].any()


def test_an_unknown_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^image recipe 'corp' is not known; did you mean 'crop'"):
        decode([], tmp_path / "out.npy", recipe="corp")


def test_no_files_give_an_empty_array(tmp_path: Path) -> None:
    assert decode([], tmp_path / "out.npy") == []
    assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (0, 1, 8, 8)


def test_two_processes_give_what_one_gives(tmp_path: Path, shared: Path) -> None:
    paths = sorted((shared / "data/cxr/nih_64px").glob("valid/*/*.png"))[:70]
    reasons = images.decode_images(paths, 32, "crop", tmp_path / "two.npy", 2)
    assert reasons == [None] * 70 == decode(paths, tmp_path / "one.npy", 32, "crop")
    assert (tmp_path / "two.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()


def test_what_is_decoded_is_not_decoded_again_and_another_size_is(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted((shared / "data/cxr/nih_64px").glob("valid/*/*.png"))[:40]
    out, log = tmp_path / "out.npy", tmp_path / "out.npy.log"
    decode(paths, out)
    whole = out.read_bytes()
    done = log.read_text().splitlines()
    looked_at: list[int] = []
    real = images.decode
    monkeypatch.setattr(images, "decode", lambda job: looked_at.append(len(job.paths)) or real(job))
    # As a kill leaves it: 33 files noted, the note of the 34th cut off, its row written in part.
    log.write_text("\n".join(done[:34]) + "\nnu")
    array = np.lib.format.open_memmap(out, mode="r+")
    array[33:] = 0
    array.flush()
    assert decode(paths, out) == [None] * 40
    assert out.read_bytes() == whole and looked_at == [7]
    decode(paths, out)
    assert looked_at == [7]
    decode(paths, out, recipe="crop")
    assert looked_at == [7, 32, 8] and out.read_bytes() != whole
    out.unlink()  # taken away by the caller, who then was killed
    decode(paths, out)
    assert looked_at == [7, 32, 8, 32, 8] and out.read_bytes() == whole


KILLED = """
import sys
from pathlib import Path
from ovo_clinic.images import decode_images

if __name__ == "__main__":
    print("started", flush=True)
    decode_images(sorted(Path(sys.argv[1]).glob("*.png")), 224, "crop", Path(sys.argv[2]), 2)
"""


@pytest.mark.slow
def test_a_killed_call_goes_on_where_it_was(tmp_path: Path, shared: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    source = sorted((shared / "data/cxr/nih_1024").glob("*.png"))
    for number in range(200):
        (folder / f"{number:03}.png").symlink_to(source[number % len(source)])
    paths = sorted(folder.glob("*.png"))
    undisturbed, out = tmp_path / "undisturbed.npy", tmp_path / "out.npy"
    decode(paths, undisturbed, 224, "crop")
    log = tmp_path / "out.npy.log"
    command = [sys.executable, "-c", KILLED, str(folder), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    while not log.exists() or log.read_text().count("\n") < 33:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = log.read_text().count("\n") - 1
    assert 0 < done < 200
    assert decode(paths, out, 224, "crop") == [None] * 200
    assert out.read_bytes() == undisturbed.read_bytes()
