"""Published sizes of image encoders by name."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ovo_clinic.attention.routing import SOFTMAX
from ovo_clinic.registry import Choice, Options, suggest

Count = Annotated[int, Field(ge=1)]


def named_settings(value: Any, known: Mapping[str, Mapping[str, Any]]) -> Any:
    """Settings in place of a name, or of a name with some that differ: `vit_b`, `{name: vit_b, depth: 6}`.

    Raises:
        ValueError: an unknown name.
    """
    value = {"name": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping) or "name" not in value:
        return value
    name = str(value["name"])
    if name not in known:
        raise ValueError(f"'{name}' is not known{suggest(name, sorted(known))}")
    return {**known[name], **{key: given for key, given in value.items() if key != "name"}}


class VitShape(Options):
    """The size and build of a ViT: `vit_b`, or `{name: vit_b, depth: 6}`, or every setting by itself.

    Attributes:
        patch: side of a patch in pixels.
        width: of the tokens inside the encoder.
        depth: number of blocks, each attention, (LPI) and a network four times as wide.
        heads: H, a divisor of width.
        attention: what the encoder's option `attention` is by default.
        lpi: local patch interaction in every block (XCiT).
        class_token: a learned token gathers what the pooled output gives; else that is the mean over the patches.
        class_layers: blocks at the end in which the class token, and it alone, attends to the patches (XCiT, CaiT); 0 =
            it stands before the patches from the start (ViT, DeiT).
        positions: `learned`, or fixed `sinusoidal` ones over rows and columns.
        layer_scale: start of a learned factor for every channel of what a layer adds; None = no factor.
    """

    patch: Count = 16
    width: Count = 192
    depth: Count = 12
    heads: Count = 3
    attention: Choice = SOFTMAX
    lpi: bool = False
    class_token: bool = True
    class_layers: int = Field(0, ge=0)
    positions: Literal["learned", "sinusoidal"] = "learned"
    layer_scale: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return named_settings(value, VIT_SHAPES)

    @model_validator(mode="after")
    def _fits_together(self) -> "VitShape":
        if self.class_layers and not self.class_token:
            raise ValueError("class_layers needs class_token: true")
        if self.lpi and self.class_token and not self.class_layers:
            raise ValueError("lpi works on the grid of patches, where a class token has no place; set class_layers")
        if self.positions == "sinusoidal" and self.width % 4:
            raise ValueError(f"sinusoidal positions need a width that 4 divides, not {self.width}")
        return self


XCIT: dict[str, Any] = {
    "heads": 8,
    "attention": "xca",
    "lpi": True,
    "class_layers": 2,
    "positions": "sinusoidal",
}
VIT_SHAPES: dict[str, dict[str, Any]] = {
    "vit_ti": {},
    "vit_s": {"width": 384, "heads": 6},
    "vit_b": {"width": 768, "heads": 12},
    "deit_b": {"width": 768, "heads": 12},
    "xcit_s12": {**XCIT, "width": 384, "layer_scale": 1.0},
    "xcit_m24": {**XCIT, "width": 512, "depth": 24, "layer_scale": 1e-5},
}
"""Published shapes for patches of 16 pixels. DeiT without distillation is built as ViT is; its training differs."""

VIT_TI = VitShape()


class SwinShape(Options):
    """The size of a Swin: `swin_b`, or `{name: swin_b, depths: [2, 2, 2, 2]}`, or every setting by itself.

    Attributes:
        patch: side of a patch in pixels.
        width: of the tokens in the first stage; each stage has twice as wide ones, and a quarter as many.
        depths: blocks in each stage.
        heads: in each stage.
        window: side of a window in tokens.
    """

    patch: Count = 4
    width: Count = 96
    depths: tuple[Count, ...] = (2, 2, 6, 2)
    heads: tuple[Count, ...] = (3, 6, 12, 24)
    window: Annotated[int, Field(ge=2)] = 7

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return named_settings(value, SWIN_SHAPES)

    @model_validator(mode="after")
    def _fits_together(self) -> "SwinShape":
        if len(self.depths) != len(self.heads):
            raise ValueError(
                f"there are {len(self.depths)} depths and {len(self.heads)} heads; give one of each a stage"
            )
        for stage, heads in enumerate(self.heads):
            if self.width * 2**stage % heads:
                raise ValueError(f"{heads} heads do not divide the width {self.width * 2**stage} of stage {stage + 1}")
        return self


SWIN_SHAPES: dict[str, dict[str, Any]] = {
    "swin_t": {},
    "swin_b": {"width": 128, "depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32)},
}
"""Published shapes for images of 224 pixels."""

SWIN_T = SwinShape()
