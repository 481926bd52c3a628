"""What is drawn for training: prompts from a file, or starter prompts that suit the backbone."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import SSDError
from ..families.base import Backbone
from ..families.emoji import EmojiBackbone
from ..families.loaders import ASSETS

STARTER_FILE = ASSETS.parent / "prompts" / "starter.txt"
"""Written for this project; under its licence."""
FIELDS = ("prompt", "caption", "text")
"""Names of the field of a jsonl object, or the column of a csv table, that holds the prompt; the first found counts."""
EMPTY_PROMPTS = 0.1
"""Share of the training pictures that are drawn without a prompt."""

_EMOJI_STARTERS = 480
_OBJECTS = (
    "apple", "banana", "cat", "dog", "car", "ball", "heart", "star", "tree", "rocket", "fish", "house", "balloon",
    "mushroom", "duck", "flower",
)  # fmt: skip
_COLOURED = ("heart", "star", "balloon", "car")
_COLOURS = ("red", "yellow", "green", "blue")
_BACKDROPS = ("white", "blue", "yellow", "pink", "gray", "black")
_PLACES = ("on grass", "on a beach", "in the sky", "at night", "underwater")
_RELATIONS = ("left of", "right of", "above", "below")


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file: ``.txt`` one a line, ``.jsonl`` one JSON text or object a line, ``.csv`` one a row.

    Empty lines are skipped. An object's or a table's prompt is its field of ``FIELDS``; a csv with one column needs no
    header. Raises SSDError that names the line of what cannot be read, and when there is no prompt at all.
    """
    readers: dict[str, Callable[[str, Path], Iterator[str]]] = {".txt": _lines, ".jsonl": _jsonl, ".csv": _csv}
    if path.suffix.lower() not in readers:
        raise SSDError(f"prompts come from a .txt, .jsonl or .csv file, got {path.name!r}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SSDError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error
    prompts = [prompt.strip() for prompt in readers[path.suffix.lower()](text, path)]
    prompts = [prompt for prompt in prompts if prompt]
    if not prompts:
        raise SSDError(f"{path} holds no prompts; write one a line")
    return prompts


def starter_prompts(backbone: Backbone) -> list[str]:
    """Prompts to begin with: captions in a closed-vocabulary backbone's own words, the starter file for others."""
    if isinstance(backbone, EmojiBackbone):
        return _captions(backbone)
    return read_prompts(STARTER_FILE)


def plan_prompts(prompts: Sequence[str], count: int, seed: int, empty: float) -> list[str]:
    """``count`` prompts: the list in a new order each time round, a share ``empty`` of them replaced by "".

    The first n of a longer plan are the plan of n.
    """
    planned: list[str] = []
    times = 0
    while len(planned) < count:
        order = list(prompts)
        rng = random.Random(f"{seed} {times}")
        rng.shuffle(order)
        planned += ["" if rng.random() < empty else prompt for prompt in order]
        times += 1
    return planned[:count]


def check_prompts(backbone: Backbone, prompts: Sequence[str], origin: str) -> None:
    """Raises SSDError with ``origin`` and the number of the first prompt that the backbone cannot read."""
    for number, prompt in enumerate(prompts, start=1):
        try:
            backbone.check_prompt(prompt)
        except SSDError as error:
            raise SSDError(f"prompt {number} of {origin} ({prompt[:60]!r}): {error}") from error


def _lines(text: str, path: Path) -> Iterator[str]:
    yield from text.split("\n")  # splitlines also cuts at characters that prompts may hold


def _jsonl(text: str, path: Path) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SSDError(f"{path}, line {number}: not JSON ({error})") from error
        if isinstance(value, dict):
            value = next((value[name] for name in FIELDS if name in value), None)
        if not isinstance(value, str):
            raise SSDError(
                f"{path}, line {number}: expected a text or an object with a text as {', '.join(FIELDS)}; got "
                f"{line.strip()[:60]!r}"
            )
        yield value


def _csv(text: str, path: Path) -> Iterator[str]:
    try:
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise SSDError(f"{path} is not a csv table: {error}") from error
    rows = [row for row in rows if row]
    if not rows:
        return
    header = [name.strip().lower() for name in rows[0]]
    column = next((header.index(name) for name in FIELDS if name in header), None)
    if column is not None:
        rows = rows[1:]
    elif len(header) == 1:
        column = 0
    else:
        raise SSDError(f"{path} has the columns {', '.join(header)}; name the one with the prompts {FIELDS[0]!r}")
    for number, row in enumerate(rows, start=1):
        if column >= len(row):
            raise SSDError(f"{path}, row {number}: got {len(row)} columns, expected {len(header)}")
        yield row[column]


def _captions(backbone: EmojiBackbone) -> list[str]:
    """Sentences like those that the embedded model was trained on, as far as this vocabulary goes; always the same."""
    words = set(backbone.words())
    objects = [name for name in _OBJECTS if name in words]
    colours = [colour for colour in _COLOURS if colour in words]
    backdrops = [f"on a {colour} background" for colour in _BACKDROPS if {colour, "background"} <= words]
    places = [place for place in _PLACES if place.split()[-1] in words] + backdrops
    numbers = [number for number in ("two", "three", "four") if number in words]
    relations = [relation for relation in _RELATIONS if relation.split()[0] in words] + ["and"] * ("and" in words)
    if not objects:
        raise SSDError("this model knows none of the starter prompts' objects; give prompts of your own")
    rng = random.Random(0)

    def thing(number: str = "") -> str:
        name = rng.choice(objects)
        colour = rng.choice(colours) if colours and name in _COLOURED and rng.random() < 0.5 else ""
        if number:
            return " ".join(filter(None, (number, colour, _plural(name))))
        phrase = " ".join(filter(None, (colour, name)))
        return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"

    captions: list[str] = []
    while len(captions) < _EMOJI_STARTERS:
        kind = rng.random()
        if numbers and kind < 0.26:
            text = thing(rng.choice(numbers))
        elif relations and kind < 0.66:
            text = f"{thing()} {rng.choice(relations)} {thing()}"
        else:
            text = thing()
        text = f"{text} {rng.choice(places)}" if places and rng.random() < 0.6 else text
        if _is_readable(backbone, text):  # a small vocabulary may lack a plural
            captions.append(text)
    return captions


def _is_readable(backbone: Backbone, prompt: str) -> bool:
    try:
        backbone.check_prompt(prompt)
    except SSDError:
        return False
    return True


def _plural(name: str) -> str:
    return name if name == "fish" else f"{name}s"
