"""Toy backbones, heads and drafters: random weights, milliseconds a picture, every option the engine knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ssd_core import AR, Generation, Report, Rolling, Sampling, generate
from ssd_core.coupling import Coupling
from ssd_core.draft import Drafter, Target
from ssd_core.engine import Engine, OnRows, ShouldStop
from ssd_core.families.base import Backbone, PromptRows
from ssd_core.heads import HeadsSpec, SpatialHeads
from ssd_core.noise import image_seeds
from ssd_core.report import Meter
from ssd_core.schedule import Schedule
from ssd_core.state import VERTICAL, DecodeState
from ssd_core.stream import Stream
from ssd_core.transformer import Decoder, DecoderSpec, RMSNorm, rope_table

LETTERS = 7
PROMPT = 6  # prompt tokens when not padded: five letters and the begin-of-image token


class ToyBackbone(Backbone):
    """A random decoder over one grid. A prompt is up to five letters; with ``padded`` its length is its own."""

    def __init__(
        self,
        rows: int,
        cols: int,
        *,
        codes: int = 11,
        end_of_line: bool = True,
        padded: bool = False,
        axes: int = 1,
        kv_heads: int = 1,
        qk_norm: bool = False,
        layers: int = 2,
        hidden: int = 16,
        sharpness: float = 2.0,
        dtype: torch.dtype = torch.float32,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.name, self.fingerprint = "toy", f"toy-{seed}"
        self.codes = codes
        self.grids = ((rows, cols),)
        self.default_sampling = Sampling()
        self.rope_theta = 100.0
        self.patch = 1
        self.end_of_line = codes if end_of_line else None
        self.padded, self.axes = padded, axes
        self.decoder = Decoder(DecoderSpec(hidden, layers, 2, kv_heads, 8, 24, 1e-6, qk_norm))
        self.norm = RMSNorm(hidden, 1e-6)
        self.head = nn.Linear(hidden, codes, bias=False)
        self.embedding = nn.Embedding(codes + 3 + LETTERS, hidden)  # codes, eol, image, pad, letters
        randomise(self, seed)
        self.head.weight.data *= sharpness
        self.to(dtype).eval().requires_grad_(False)

    def stream(self, grid: tuple[int, int]) -> Stream:
        return Stream(*self.check_grid(grid), self.end_of_line)

    def prompt_ids(self, text: str) -> list[int]:
        """The tokens of one prompt without padding; the last one stands for the begin of the image."""
        letters = [self.codes + 3 + ord(letter) % LETTERS for letter in text[: PROMPT - 1]]
        if not self.padded:
            letters += [self.codes + 3] * (PROMPT - 1 - len(letters))
        return [*letters, self.codes + 1]

    def axes_of(self, prompt_length: int) -> tuple[Tensor, Tensor]:
        """Rope positions of a prompt of that length [P, axes] and of the stream behind it [length, axes]."""
        rows, cols = self.default_grid
        stream = self.stream(self.default_grid)
        if self.axes == 1:
            line = torch.arange(prompt_length + stream.length).float()[:, None]
            return line[:prompt_length], line[prompt_length:]
        prompt = torch.tensor([(-1.0, float(i)) for i in range(prompt_length)])
        cells = [
            (float(y), float(x)) if x < cols else (float(y + 1), -1.0)
            for y in range(rows)
            for x in range(stream.stride)
        ]
        return prompt, torch.tensor(cells)

    def prompt_rows(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> PromptRows:
        rows = [self.prompt_ids(text) for text in [*prompts, *([negative] * len(prompts) if guided else [])]]
        longest = max(map(len, rows))
        padding = [longest - len(row) for row in rows]
        ids = torch.tensor([[self.codes + 2] * pad + row for pad, row in zip(padding, rows, strict=True)])
        places = [self.axes_of(len(row)) for row in rows]
        before = [torch.full((pad, self.axes), -5.0) for pad in padding]
        return PromptRows(
            embeddings=self.embedding(ids),
            padding=padding,
            positions=torch.stack([torch.cat((pad, own)) for pad, (own, _) in zip(before, places, strict=True)]),
            stream_positions=torch.stack([after for _, after in places]),
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def logits(self, features: Tensor) -> Tensor:
        return self.head(self.norm(features))

    def decode_pixels(self, codes: Tensor) -> Tensor:
        return (codes.float() / self.codes)[..., None].expand(-1, -1, -1, 3)

    def encode_pixels(self, images: Tensor) -> Tensor:
        return (images[..., 0] * self.codes).round().long()

    def true_feature(self, prompt: list[int], tokens: Tensor) -> Tensor:
        """The feature [hidden] of the stream position after ``tokens`` [n], by one uncached forward."""
        own, after = self.axes_of(len(prompt))
        ids = torch.cat((torch.tensor(prompt), tokens))
        rope = rope_table(torch.cat((own, after))[: len(ids)], self.decoder.spec.head_dim, self.rope_theta)
        return self.decoder(self.embedding(ids)[None], rope)[0, -1]


def randomise(module: nn.Module, seed: int, scale: float = 0.35) -> None:
    """Fills matrices with normal numbers and vectors with ones and a little noise; repeatable, no global state."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * scale if parameter.dim() > 1 else 1 + 0.2 * noise


def toy_heads(
    backbone: ToyBackbone, horizontal: int = 5, vertical: int = 3, neighbours: int = 0, seed: int = 1
) -> SpatialHeads:
    """Random heads: bad drafts, but drafts."""
    offsets = tuple(range(1, horizontal + 1)), tuple(range(1, vertical + 1))
    heads = SpatialHeads(HeadsSpec(backbone.hidden, *offsets, neighbours))
    randomise(heads, seed, 0.3)
    return heads.to(backbone.dtype).eval().requires_grad_(False)


def constant_backbone(rows: int, cols: int, **options: object) -> ToyBackbone:
    """A backbone with one embedding for every token: all its features are equal, so a copying head is perfect."""
    backbone = ToyBackbone(rows, cols, **options)  # type: ignore[arg-type]
    backbone.embedding.weight.data[:] = backbone.embedding.weight.data[:1]
    return backbone


def copying_heads(backbone: ToyBackbone, horizontal: int = 5, vertical: int = 3) -> SpatialHeads:
    """Heads whose prediction is the feature they read."""
    heads = toy_heads(backbone, horizontal, vertical)
    for name, parameter in heads.named_parameters():
        if name.endswith("mix.weight"):
            parameter.data = torch.eye(*parameter.shape, dtype=parameter.dtype)
        elif name.endswith("down.weight"):
            parameter.data.zero_()
    return heads


class OracleDrafter(Drafter):
    """Drafts from true features: each token follows its own distribution given the drafts before it."""

    name = "oracle"

    def __init__(self, backbone: ToyBackbone, prompts: Sequence[str], negative: str = "") -> None:
        self._backbone = backbone
        self._prompts = [[backbone.prompt_ids(text), backbone.prompt_ids(negative)] for text in prompts]

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        for image, end in enumerate(ends):
            position = state.stream.skip_forced(state.drafted[image])
            while position < end:
                prompts = self._prompts[image][: state.guidance_rows]
                tokens = state.tokens[image, :position]
                features = torch.stack([self._backbone.true_feature(prompt, tokens) for prompt in prompts])
                at = state.index([image]), state.index([position])
                state.tokens[at] = coupling.propose(*at, target(features[:, None]))
                state.origin[at] = VERTICAL
                position = state.stream.skip_forced(position + 1)
            state.drafted[image] = max(state.drafted[image], position)


def make_engine(
    backbone: Backbone,
    drafter: Drafter,
    schedule: Schedule | None = None,
    *,
    batch: int = 1,
    sampling: Sampling | None = None,
    seed: int = 0,
    on_rows: OnRows | None = None,
    should_stop: ShouldStop | None = None,
) -> tuple[Engine, Meter]:
    """An engine with a drafter of one's own, and its meter."""
    stream, meter = backbone.stream(backbone.default_grid), Meter()
    seeds = image_seeds(seed, batch)
    settings = sampling or Sampling()
    return Engine(
        backbone, stream, schedule or Rolling(), drafter, settings, seeds, meter, on_rows, should_stop
    ), meter  # fmt: skip


def run_engine(
    backbone: Backbone, drafter: Drafter, schedule: Schedule, prompts: Sequence[str], sampling: Sampling, seed: int = 0
) -> tuple[Tensor, Report]:
    """Codes [batch, rows, cols] and report of an engine with a drafter of one's own."""
    engine, meter = make_engine(backbone, drafter, schedule, batch=len(prompts), sampling=sampling, seed=seed)
    rows = backbone.prompt_rows(prompts, "", backbone.default_grid, sampling.guidance_rows == 2)
    codes = engine.run(rows)
    report = Report(schedule.name, {}, seed, backbone.default_grid, len(prompts))
    meter.fill(report)
    return codes, report


def draw(
    backbone: Backbone, schedule: Schedule | None = None, prompt: str | Sequence[str] = "abc", **options: object
) -> Generation:
    """``generate`` with a prompt that toys understand."""
    return generate(backbone, prompt, schedule=schedule or AR(), **options)  # type: ignore[arg-type]
