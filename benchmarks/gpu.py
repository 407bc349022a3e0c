"""Checks the GPUs of a machine in some minutes and prints what they do; `gpu.sh` runs it under a time limit.

    python benchmarks/gpu.py [--device cuda|cpu] [--quick]

Every attention mechanism against the CPU in float32, bfloat16 and float16; a training step of every head and encoder,
its rate and peak memory; training in each precision, on all devices (DDP) and after kill -9. Exit code 0: all well,
1: a check failed, 2: no GPU.
"""

import argparse
import copy
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from ovo_clinic import experiment as experiments
from ovo_clinic import training
from ovo_clinic.attention.multihead import attention_layer
from ovo_clinic.errors import UserError
from ovo_clinic.flops import head_alone
from ovo_clinic.measure import latencies, peak_memory
from ovo_clinic.prepare import prepare_task
from ovo_clinic.registry import ATTENTION, ENCODERS, FUSION
from ovo_clinic.types import Modality, Tokens

HEADS, GRID = 4, (14, 14)
# Relative to the norm of the CPU's float32 values; a kernel that is wrong is off by far more.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
DDP_TOLERANCE, PRECISION_TOLERANCE, RESUME_TOLERANCE = 5e-3, 0.02, 1e-6  # of the test AUROC
Row = dict[str, float | str]


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        dim, batch: D and B of heads and encoders.
        steps, side: of a time series or text, of an image in pixels.
        layers: of the text and image checkpoints, which are 64 wide per layer.
        repeats: turns of each measurement.
        samples, epochs: of the trainings.
        options: of encoders, by name, that differ from their defaults.
    """

    dim: int = 256
    batch: int = 32
    steps: int = 128
    side: int = 224
    layers: int = 12
    repeats: int = 10
    samples: int = 20_000
    epochs: int = 6
    options: Mapping[str, dict[str, Any]] = field(default_factory=dict)


SMALL_SWIN = {"shape": {"patch": 2, "width": 32, "depths": [2, 2], "heads": [2, 4], "window": 4}}
QUICK = Sizes(16, batch=2, steps=8, side=32, layers=1, repeats=1, samples=400, epochs=3, options={"swin": SMALL_SWIN})


def attempt(check: Callable[[], Row]) -> Row:
    """A check's row; where it raised, the reason in `wrong`."""
    try:
        return {"wrong": "", **check()}
    except (RuntimeError, ValueError, AssertionError) as error:
        return {"wrong": " ".join(str(error).split())[:110] or type(error).__name__}


def mechanism(name: str, dim: int) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
    """A layer and how it is called on tokens (B,N,D), N those of GRID."""
    if getattr(ATTENTION.get(name), "needs_grid", False):
        return ATTENTION.build(name, HEADS, dim // HEADS, options={}), lambda layer, x: layer(x, GRID)
    length = {"length": GRID[0] * GRID[1]} if ATTENTION.get(name).fixed_length else {}
    core = ATTENTION.build(name, HEADS, dim // HEADS, options=length)
    return attention_layer(core, dim, HEADS), lambda layer, x: layer(x, x)


def agreement(name: str, device: torch.device, sizes: Sizes) -> Row:
    """Relative distance of output and gradients to the CPU's in float32, for every precision."""
    layer, call = mechanism(name, sizes.dim)
    layer.eval()
    x = torch.randn(8, GRID[0] * GRID[1], sizes.dim)
    expected = output_and_gradients(layer, call, x)
    there = copy.deepcopy(layer).to(device)
    row: Row = {}
    for dtype, tolerance in TOLERANCE.items():
        with autocast(device, dtype):
            found = output_and_gradients(there, call, x.to(device))
        far = [float((a.cpu().double() - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)]
        row[str(dtype).removeprefix("torch.")] = far[0]
        row[f"{str(dtype).removeprefix('torch.')} gradient"] = far[1]
        if not max(far) <= tolerance:  # so that NaN fails
            row["wrong"] = f"{dtype}: {max(far):.2g} off, at most {tolerance:g} wanted"
    return row


def output_and_gradients(layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Output, and all gradients as one vector."""
    leaves = [x.detach().requires_grad_(), *layer.parameters()]
    out = call(layer, leaves[0]).float()
    weights = torch.linspace(-1, 1, out.numel(), device=x.device).view_as(out)
    gradients = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
    flat = [gradient.double().flatten() for gradient in gradients if gradient is not None]
    return [out.detach().double(), torch.cat(flat)]


def autocast(device: torch.device, dtype: torch.dtype) -> Any:
    """Mixed precision; nothing for float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def cost(build: Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]], device: torch.device, s: Sizes) -> Row:
    """Samples a second and peak memory of forward and backward, in float32 and bfloat16 (not on CPUs without it)."""
    module, call = build()
    module.to(device).train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def step(dtype: torch.dtype) -> None:
        with autocast(device, dtype):
            out = call(module)
        if parameters:
            torch.autograd.grad(out.float().square().mean(), parameters, allow_unused=True)
        assert bool(out.isfinite().all()), f"{dtype}: not finite"  # waits for the device, too

    row: Row = {}
    precisions = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        del precisions["bf16"]
    for label, dtype in precisions.items():
        (seconds,) = latencies([partial(step, dtype)], repeats=s.repeats)
        row[f"{label} samples/s"] = s.batch / seconds
        row[f"{label} peak MiB"] = peak_memory(partial(step, dtype), device) / 2**20
    return row


def built_head(name: str, device: torch.device, sizes: Sizes) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """A head over four modalities."""
    head, tokens = head_alone(name, sizes.dim, 4, sizes.batch, {})
    there = {key: Tokens(given.values.to(device), given.mask.to(device)) for key, given in tokens.items()}
    return head, lambda module: module(there)


def checkpoints(folder: Path, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Options of the encoders that need a file: checkpoints of BERT's and ViT's shapes with random weights."""
    from transformers import BertConfig, BertModel, ViTConfig, ViTModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    shape = {"hidden_size": 64 * sizes.layers, "intermediate_size": 256 * sizes.layers}
    shape |= {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.layers}
    BertModel(BertConfig(**shape)).save_pretrained(folder / "text")
    ViTModel(ViTConfig(**shape, image_size=sizes.side, num_channels=1)).save_pretrained(folder / "image")
    return {
        "text": {"checkpoint": str(folder / "text")},
        "pretrained_image": {"checkpoint": str(folder / "image")},
        "precomputed": {"file": "is read before the encoder"},
    }


def built_encoder(
    name: str, options: Mapping[str, Any], device: torch.device, sizes: Sizes
) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """An encoder of the first kind of modality that it takes."""
    refused = []
    for modality in (
        Modality("vector", "vector", 500),
        Modality("series", "sequence", 76),
        Modality("image", "image", 1, (sizes.side, sizes.side)),
        Modality("text", "text", 1),
    ):
        try:
            encoder = ENCODERS.build(name, modality, sizes.dim, options=options)
        except UserError as error:
            refused.append(str(error))
        else:
            return encoder, partial(encoded, *example(modality, device, sizes))
    raise AssertionError("; ".join(refused))


def example(modality: Modality, device: torch.device, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Noise for an encoder and its mask, everything valid."""
    tokens = sizes.steps if modality.kind in ("sequence", "text") else 1
    mask = torch.ones(sizes.batch, tokens, dtype=torch.bool, device=device)
    if modality.kind == "text":
        return torch.randint(5, 1000, mask.shape, device=device), mask
    shape = {"vector": (modality.features,), "sequence": (sizes.steps, modality.features)}
    return torch.randn(sizes.batch, *shape.get(modality.kind, (1, sizes.side, sizes.side)), device=device), mask


def encoded(x: Tensor, mask: Tensor, encoder: nn.Module) -> Tensor:
    """The tokens' values."""
    tokens: Tokens = encoder(x, mask)
    return tokens.values


def train(settings: list[str], folder: Path) -> Mapping[str, Any]:
    """One training on the simulated data set."""
    experiment = experiments.load("simulation", settings)
    return training.train(experiment, prepare_task(experiment, None), folder)


def trainings(device: torch.device, sizes: Sizes, folder: Path) -> Iterator[tuple[str, Row]]:
    """Precisions, all devices, and a run that was killed; each beside the first one, in float32 on one device."""
    ranks = torch.cuda.device_count() if device.type == "cuda" else 2
    batch = max(1, sizes.samples // 40 // ranks) * ranks
    settings = [f"data.samples={sizes.samples}", "data.modalities=4", "model.dropout=0", "training.patience=100"]
    settings += [f"training.epochs={sizes.epochs}", f"training.accelerator={'gpu' if device.type == 'cuda' else 'cpu'}"]
    one = [*settings, f"training.batch_size={batch}"]
    # Each rank takes every n-th unit of an epoch, so that n batches of an n-th make the same step as a whole one.
    all_devices = [*settings, f"training.batch_size={batch // ranks}"]
    all_devices += [f"training.devices={'auto' if device.type == 'cuda' else ranks}"]
    first = train(one, folder / "one")

    def beside(run: Callable[[], Mapping[str, Any]], tolerance: float) -> Row:
        found = run()
        auroc, expected = (result["metrics"]["test"]["auroc"] for result in (found, first))
        wrong = "" if abs(auroc - expected) <= tolerance else f"AUROC differs by more than {tolerance:g}"
        return {"AUROC": auroc, "difference": auroc - expected, "seconds": found["seconds"], "wrong": wrong}

    yield "32-true, 1 device", attempt(lambda: beside(lambda: first, 0))
    runs: list[tuple[str, Callable[[], Mapping[str, Any]], float]] = [
        (f"{precision}, 1 device", partial(train, [*one, f"training.precision={precision}"], folder / precision), most)
        for precision, most in (("bf16-mixed", PRECISION_TOLERANCE), ("16-mixed", PRECISION_TOLERANCE))
    ]
    runs.append((f"32-true, DDP on {ranks}", partial(train, all_devices, folder / "ddp"), DDP_TOLERANCE))
    runs.append(("32-true, killed and resumed", partial(killed_and_resumed, one, folder / "killed"), RESUME_TOLERANCE))
    for name, run, tolerance in runs:
        yield name, attempt(partial(beside, run, tolerance))


def killed_and_resumed(settings: list[str], folder: Path) -> Mapping[str, Any]:
    """A training ended by kill -9 after its first checkpoint, then taken up again."""
    process = multiprocessing.get_context("spawn").Process(target=train, args=(settings, folder))
    process.start()
    while not (folder / "checkpoints" / "last.ckpt").is_file() and process.is_alive():
        time.sleep(0.005)
    process.kill()
    process.join()
    assert not (folder / "result.json").exists(), "it was over before it was killed"
    assert (folder / "checkpoints" / "last.ckpt").is_file(), "it ended without a checkpoint"
    return train(settings, folder)


def table(title: str, rows: Mapping[str, Row]) -> int:
    """Prints rows by name; returns how many failed."""
    failed = [name for name, row in rows.items() if row["wrong"]]
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame["wrong"] = frame.pop("wrong")
    shown = frame if failed else frame.drop(columns="wrong")
    print(f"\n{title}\n{shown.to_string(float_format=lambda value: f'{value:,.4g}', na_rep='')}", flush=True)
    return len(failed)


def check(device: torch.device, sizes: Sizes, folder: Path) -> int:
    """All checks; returns how many failed."""
    torch.manual_seed(0)
    # Numbers are compared, so none is rounded to TF32; and what training does, deterministic kernels alone.
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True)
    near = {name: attempt(partial(agreement, name, device, sizes)) for name in ATTENTION.names()}
    failed = table("Distance to the CPU's float32, relative to its norm", near)
    heads = {
        name: attempt(partial(cost, partial(built_head, name, device, sizes), device, sizes)) for name in FUSION.names()
    }
    failed += table(f"Heads: 4 modalities, D = {sizes.dim}, B = {sizes.batch}, forward + backward", heads)
    options = {**checkpoints(folder, sizes), **sizes.options}
    encoders = {}
    for name in ENCODERS.names():
        build = partial(built_encoder, name, options.get(name, {}), device, sizes)
        encoders[name] = attempt(partial(cost, build, device, sizes))
    failed += table(f"Encoders: {sizes.side} pixels or {sizes.steps} steps, B = {sizes.batch}", encoders)
    return failed + table("Training on the simulated data set", dict(trainings(device, sizes, folder)))


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to see that it works")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("no GPU found: torch sees none here (driver, or torch's CPU build?)", file=sys.stderr)
        return 2
    # As Lightning does: cuBLAS has no deterministic results without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    started = time.perf_counter()
    if asked.device == "cuda":
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            able = "with" if torch.cuda.is_bf16_supported(including_emulation=False) else "WITHOUT"
            print(f"GPU {index}: {found.name}, {found.total_memory / 2**30:.0f} GiB, {able} bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OVO_CLINIC_HOME"] = str(Path(folder) / "home")
        failed = check(torch.device(asked.device), QUICK if asked.quick else Sizes(), Path(folder))
    print(f"\n{f'{failed} checks FAILED' if failed else 'all well'}, {time.perf_counter() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
