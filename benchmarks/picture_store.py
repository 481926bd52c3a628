"""Drawn pictures as token shards on disk, one folder a decoder, and what was measured on them beside.

``FOLDER/<decoder>/tokens-00003.safetensors`` holds one batch of codes, int32 [n, rows, cols]; its metadata say how it
was drawn. ``figures-00003.safetensors`` holds what is computed from them, and may be deleted at any time. Files are
written whole or not at all, so a run can be killed at any moment and taken up again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from recipes.emoji_scenes.captions import SceneSpec
from ssd_core import Backbone, SpatialHeads, SSDError, generate
from ssd_core.distill.likelihood import likelihood
from ssd_core.writing import write

from .decoder_table import Decoder
from .emoji_score import CATEGORIES, Detector, detect, judge
from .features import picture_features

FORMAT = 3
"""Raise it when the figures change their meaning: old ones are then computed anew, as with another detector."""


@dataclass(frozen=True)
class Lot:
    """One batch of the evaluation set: its number, prompts and the seed of its first picture."""

    number: int
    specs: list[SceneSpec]
    seed: int

    @property
    def captions(self) -> list[str]:
        return [spec.caption for spec in self.specs]


@dataclass(frozen=True)
class PictureStore:
    """Draws lots of pictures for decoders, unless they are there already."""

    folder: Path
    backbone: Backbone
    heads: SpatialHeads
    detector: Detector
    grid: tuple[int, int]

    @cached_property
    def _heads_digest(self) -> str:
        return self.heads.digest()

    @cached_property
    def _detector_digest(self) -> str:
        found = hashlib.sha256()
        for name, value in sorted(self.detector.state_dict().items()):
            found.update(name.encode() + value.contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    def fill(self, decoder: Decoder, lot: Lot) -> None:
        """Draws the lot and measures it. Raises SSDError when the folder holds pictures drawn in another way."""
        file = self._tokens_file(decoder.slug, lot)
        how = self._how(decoder, lot)
        if file.exists():
            self._check(file, how)
        else:
            drawn = generate(
                self.backbone,
                lot.captions,
                heads=self.heads if decoder.heads else None,
                schedule=decoder.schedule,
                drafts=decoder.drafts,
                seed=lot.seed,
                grid=self.grid,
            )
            report = drawn.report
            seconds = report.seconds["total"] - report.seconds["pixels"]
            metadata = {**how, "seconds": f"{seconds:.3f}", "forwards": str(report.total_forwards)}
            _save(file, {"tokens": drawn.tokens.to("cpu", torch.int32)}, metadata)
        if not self._measured(decoder.slug, lot):
            self._measure(decoder.slug, lot)

    def has(self, decoder: Decoder, lot: Lot) -> bool:
        """Whether the lot is drawn and measured. Raises SSDError as ``fill`` does."""
        file = self._tokens_file(decoder.slug, lot)
        if not file.exists():
            return False
        self._check(file, self._how(decoder, lot))
        return self._measured(decoder.slug, lot)

    def tokens(self, slug: str, lot: Lot) -> Tensor:
        """Codes int64 [n, rows, cols]."""
        return safetensors.torch.load_file(self._tokens_file(slug, lot))["tokens"].long()

    def cost(self, slug: str, lot: Lot) -> tuple[float, int]:
        """Seconds (pixels aside) and forwards of the lot's batch."""
        with safe_open(str(self._tokens_file(slug, lot)), framework="pt") as file:
            metadata: dict[str, str] = file.metadata()
        return float(metadata["seconds"]), int(metadata["forwards"])

    def figures(self, slug: str, lot: Lot) -> dict[str, Tensor]:
        """``nll`` and ``excluded`` float32 [n] (``Likelihood``); ``objects`` and ``texture`` float32 [n, width];
        ``outcomes`` int8 [n, categories]: 1 passed, 0 failed, -1 not asked."""
        return safetensors.torch.load_file(self._figures_file(slug, lot))

    def images(self, tokens: Tensor) -> Tensor:
        """Pixels float32 [n, H, W, 3] in 0..1, on the CPU."""
        with torch.inference_mode():
            return self.backbone.decode_pixels(tokens.to(self.backbone.device)).clamp(0, 1).float().cpu()

    def _measure(self, slug: str, lot: Lot) -> None:
        tokens = self.tokens(slug, lot)
        images = self.images(tokens)
        outcomes = torch.full((len(tokens), len(CATEGORIES)), -1, dtype=torch.int8)
        for row, (seen, spec) in enumerate(zip(detect(self.detector, images), lot.specs, strict=True)):
            for category, passed in judge(seen, spec).items():
                outcomes[row, CATEGORIES.index(category)] = passed
        sampling = self.backbone.default_sampling
        on_device = tokens.to(self.backbone.device)
        found = likelihood(self.backbone, on_device, lot.captions, sampling)
        likely = {"nll": found.nll, "excluded": found.excluded}
        figures = {**likely, "outcomes": outcomes, **picture_features(self.detector, images)}
        _save(self._figures_file(slug, lot), figures, self._measure_of())

    def _measured(self, slug: str, lot: Lot) -> bool:
        file = self._figures_file(slug, lot)
        if not file.exists():
            return False
        with safe_open(str(file), framework="pt") as content:
            return bool(content.metadata() == self._measure_of())

    def _measure_of(self) -> dict[str, str]:
        """The metadata of figures that are measured as now."""
        return {"format": str(FORMAT), "detector": self._detector_digest}

    def _how(self, decoder: Decoder, lot: Lot) -> dict[str, str]:
        """The metadata that a shard must have to count as this decoder's."""
        how = {"schedule": json.dumps(asdict(decoder.schedule))}  # type: ignore[call-overload]
        how["drafts"] = f"heads {self._heads_digest}" if decoder.heads else "no heads"
        if decoder.drafts != "auto":
            how["drafts"] += f", {decoder.drafts}"
        how["sampling"] = json.dumps(asdict(self.backbone.default_sampling))
        how["dtype"] = str(self.backbone.dtype).removeprefix("torch.")
        how["fingerprint"] = self.backbone.fingerprint
        how["prompts"] = json.dumps(lot.captions)
        how["seed"] = str(lot.seed)
        how["grid"] = f"{self.grid[0]}x{self.grid[1]}"
        return how

    @staticmethod
    def _check(path: Path, how: dict[str, str]) -> None:
        with safe_open(str(path), framework="pt") as file:
            found: dict[str, str] = file.metadata()
        for key, value in how.items():
            if found.get(key) != value:
                raise SSDError(
                    f"{path} was drawn with {key} {found.get(key)}, expected {value}; "
                    "give --folder another name, or delete this one"
                )

    def _tokens_file(self, slug: str, lot: Lot) -> Path:
        return self.folder / slug / f"tokens-{lot.number:05d}.safetensors"

    def _figures_file(self, slug: str, lot: Lot) -> Path:
        return self.folder / slug / f"figures-{lot.number:05d}.safetensors"


def _save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write(path, safetensors.torch.save(whole, metadata=metadata))
