"""`bench`: decoders by name, presets or schedules with settings, such as `rolling:window_rows=2,tolerance=4`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from ..drafts import DraftsName
from ..errors import SSDError
from ..presets import PRESETS, preset_schedule
from ..schedule import AR, HorizontalMTP, Jacobi, Rolling, Rounds, Schedule

SCHEDULES: dict[str, Any] = {"ar": AR, "rolling": Rolling, "rounds": Rounds, "sjd": Jacobi, "mtp": HorizontalMTP}
"""Those that take settings: the fields of the class, and ``drafts`` as in ``generate``."""

Value = int | float | str
DRAFTS_KEY = "drafts"


def _folder(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


_PRESETS = {_folder(name): name for name in PRESETS}
NAMES = (*SCHEDULES, *_PRESETS)


@dataclass(frozen=True)
class BenchDecoder:
    """A decoder as it was named; ``settings`` are the fields of a schedule. ``folder`` is its safe file name."""

    name: str
    settings: tuple[tuple[str, Value], ...] = ()
    drafts: DraftsName = "auto"

    @property
    def folder(self) -> str:
        parts = [self.name, *(f"{key}-{value}" for key, value in self.settings)]
        return _folder("-".join(parts if self.drafts == "auto" else [*parts, f"drafts-{self.drafts}"]))

    @property
    def needs_heads(self) -> bool:
        """Whether it carries the paper's name, so that other drafts would make it something else."""
        return _PRESETS.get(self.name, "").endswith("(paper)")

    def schedule(self, device_type: str) -> Schedule:
        """The schedule on a device type ("cpu", "cuda", ...). Raises SSDError for settings that cannot work."""
        if self.name in _PRESETS:
            return preset_schedule(_PRESETS[self.name], device_type)
        schedule: Schedule = SCHEDULES[self.name](**dict(self.settings))
        return schedule


def read_decoder(text: str) -> BenchDecoder:
    """`name` or `name:key=value,key=value`. Raises SSDError for anything else."""
    name, colon, rest = text.partition(":")
    if name not in NAMES:
        raise SSDError(f"--decoders: got {name!r}, expected one of {', '.join(NAMES)}")
    if not colon:
        return BenchDecoder(name)
    if name not in SCHEDULES:
        raise SSDError(f"--decoders: {name} takes no settings, got {rest!r}; use {', '.join(SCHEDULES)}")
    pairs = [_setting(name, part) for part in rest.split(",")]
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise SSDError(f"--decoders: {text!r} sets something twice; give every setting once")
    drafts = cast(DraftsName, settings.pop(DRAFTS_KEY, "auto"))
    order = [field.name for field in fields(SCHEDULES[name])]  # the same folder however they were written
    decoder = BenchDecoder(name, tuple(sorted(settings.items(), key=lambda pair: order.index(pair[0]))), drafts)
    decoder.schedule("cpu")  # an impossible value is refused before a model is loaded
    return decoder


def _setting(name: str, part: str) -> tuple[str, Value]:
    key, equals, value = part.partition("=")
    schedule = SCHEDULES[name]
    known = [field.name for field in fields(schedule) if field.init] + ([] if schedule is AR else [DRAFTS_KEY])
    if not equals or key not in known:
        raise SSDError(f"--decoders: got {part!r}, expected SETTING=VALUE with one of {', '.join(known)} for {name}")
    return key, _value(name, key, value, DraftsName if key == DRAFTS_KEY else get_type_hints(schedule)[key])


def _value(name: str, key: str, text: str, hint: Any) -> Value:
    """The text as what the field's annotation asks for."""
    if get_origin(hint) is Literal:
        if text in get_args(hint):
            return text
        wanted = " or ".join(get_args(hint))
    elif hint is float:
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
            return float(text)
        wanted = "a number"
    else:
        if re.fullmatch(r"\d{1,9}", text):
            return int(text)
        wanted = "a whole number"
    raise SSDError(f"--decoders: got {key}={text} for {name}, expected {wanted}")
