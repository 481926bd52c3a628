"""`bench`: every prompt by every decoder in turn, for the evaluators of GenEval and DPG-Bench."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import torch

from ..drafts import choose_drafter
from ..errors import SSDError
from ..families.base import Backbone
from ..generation import generate
from ..heads import SpatialHeads
from ..noise import image_seeds
from ..sampling import Sampling
from ..schedule import Schedule
from ..version import __version__
from .bench_decoders import BenchDecoder
from .bench_files import Picture, PictureFolder, Timings
from .bench_options import BenchOptions
from .bench_prompts import BenchPrompt, check_readable, read_prompts
from .bench_summary import Pictures, figures, summary_text
from .files import to_bytes
from .progress import ProgressBar
from .setup import chosen_heads, load_model


def bench(options: BenchOptions) -> None:
    """Draw what is missing, decoder by decoder for each prompt, then print a summary.

    Raises SSDError, before anything is written, for prompts, settings or decoders that cannot work together.
    """
    prompts = read_prompts(options.prompts, options.layout == "dpg", options.limit)
    backbone = load_model(options.model, options.device, options.dtype, options.threads)
    check_readable(prompts, backbone)
    if options.negative:
        check_readable([BenchPrompt(options.negative, None, "", "--negative")], backbone)
    sampling = _sampling(options, backbone)
    grid = backbone.check_grid(options.size or backbone.default_grid)
    if options.layout == "dpg":
        _check_square(grid)
    heads = chosen_heads(backbone, options.model, options.heads)
    benches = [_Bench(options, backbone, heads, sampling, grid, decoder) for decoder in options.decoders]
    left = [
        (index, prompt, own) for index, prompt in enumerate(prompts) for own in benches if not own.done(index, prompt)
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    for own in benches:
        own.renew_lines(prompts)
    with ProgressBar(None) as bar:
        for number, (index, prompt, own) in enumerate(left):
            bar.note(f"{number} of {len(left)} prompts drawn; now {own.decoder.folder}: {prompt.text}")
            own.draw(index, prompt)
    found = figures({own.decoder.folder: own.pictures(len(prompts)) for own in benches})
    print(json.dumps(found, allow_nan=False) if options.json else summary_text(found, options.output))


class _Bench:
    """One decoder: its pictures, its timings."""

    def __init__(
        self,
        options: BenchOptions,
        backbone: Backbone,
        heads: SpatialHeads | None,
        sampling: Sampling,
        grid: tuple[int, int],
        decoder: BenchDecoder,
    ) -> None:
        self.decoder = decoder
        self._options, self._backbone, self._sampling, self._grid = options, backbone, sampling, grid
        self._schedule: Schedule = decoder.schedule(backbone.device.type)
        self._drafter = _drafter_name(decoder, self._schedule, backbone, heads, grid)
        self._heads = heads if self._drafter == "heads" else None
        self._folder = PictureFolder(options.output / decoder.folder, options.layout)
        self._drawn_batches: set[int] = set()  # a batch size's first call of the process also warms up
        self._timings = Timings(options.output / f"timings-{decoder.folder}.json", self._settings())

    def done(self, index: int, prompt: BenchPrompt) -> bool:
        files = self._folder.files(index, prompt, self._options.images)
        return self._timings.has(index, prompt) and all(file.is_file() for file in files)

    def renew_lines(self, prompts: list[BenchPrompt]) -> None:
        """What the prompts file says now of prompts that are done: pictures hang on the text alone."""
        for index, prompt in enumerate(prompts):
            if self.done(index, prompt):
                self._folder.save_line(index, prompt)

    def draw(self, index: int, prompt: BenchPrompt) -> None:
        """Pictures first, timings last: a prompt with timings is complete."""
        options = self._options
        pictures: list[Picture] = []
        known: list[dict[str, Any]] = []
        first = options.seed + index * options.images
        for start in range(0, options.images, options.batch):
            count = min(options.batch, options.images - start)
            seeds = image_seeds((first + start) % 2**64, count)
            drawn = generate(
                self._backbone,
                prompt.text,
                heads=self._heads,
                schedule=self._schedule,
                drafts=self.decoder.drafts,
                sampling=self._sampling,
                seed=seeds[0],
                batch=count,
                grid=self._grid,
                negative=options.negative,
                graphs=options.graphs,
            )
            pictures += [to_bytes(image) for image in drawn.images]
            report = drawn.report
            for image, seed in enumerate(seeds, start):
                known.append(
                    {
                        "image": image,
                        "seed": seed,
                        "seconds": round(report.seconds["total"] / count, 6),
                        "pixel_seconds": round(report.seconds["pixels"] / count, 6),
                        "batch": count,
                        "forwards": report.total_forwards,
                        "acceptance": report.acceptance,
                        "warm": count in self._drawn_batches,
                        "threads": torch.get_num_threads(),
                        "torch": str(torch.__version__),
                    }
                )
            self._drawn_batches.add(count)
        self._folder.save(index, prompt, pictures)
        self._timings.add(index, prompt, known)

    def pictures(self, prompts: int) -> Pictures:
        return self._timings.pictures(prompts)

    def _settings(self) -> dict[str, Any]:
        """What must be the same when a run is taken up again."""
        options, backbone = self._options, self._backbone
        heads = "none" if self._heads is None else f"weights {self._heads.digest()}"
        settings = {
            "decoder": self.decoder.folder,
            "schedule": asdict(self._schedule),  # type: ignore[call-overload]
            "sampling": asdict(self._sampling),
            "negative": options.negative,
            "layout": options.layout,
            "images": options.images,
            "batch": options.batch,
            "seed": options.seed,
            "grid": list(self._grid),
            "backbone": backbone.name,
            "fingerprint": backbone.fingerprint,
            "heads": heads,
            "drafts": self._drafter,
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "device": str(backbone.device),
            "graphs": options.graphs,
            "version": __version__,
        }
        return dict(json.loads(json.dumps(settings)))  # as a file gives it back


def _sampling(options: BenchOptions, backbone: Backbone) -> Sampling:
    wishes = {
        "guidance": options.guidance,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
    }
    given = {name: value for name, value in wishes.items() if value is not None}
    sampling = replace(backbone.default_sampling, **given)  # type: ignore[arg-type]
    if options.negative and sampling.guidance_rows == 1:
        raise SSDError("--negative works through guidance, got guidance 1 (off); give --cfg above 1")
    return sampling


def _drafter_name(
    decoder: BenchDecoder, schedule: Schedule, backbone: Backbone, heads: SpatialHeads | None, grid: tuple[int, int]
) -> str:
    """The name of the drafter that a decoder will get. Raises SSDError when it cannot work with these heads."""
    if decoder.needs_heads and heads is None:
        raise SSDError(
            f"--decoders: {decoder.name} is the paper's, which drafts with heads, got none; give --heads FILE, or "
            "name the schedule with its settings, such as rounds:rounds=2"
        )
    try:
        return choose_drafter(decoder.drafts, backbone, heads, schedule, backbone.stream(grid), None).name
    except SSDError as error:
        raise SSDError(f"--decoders: {decoder.folder}: {error}") from error


def _check_square(grid: tuple[int, int]) -> None:
    rows, cols = grid
    if rows != cols:
        raise SSDError(f"--size: got {rows}x{cols} codes, expected a square: DPG-Bench's evaluator cuts squares")
