"""The closed vocabulary of the emoji scenes: objects, colours, backgrounds, numbers, relations.

The shipped ``config.json`` carries these tables, so the runtime needs nothing from this recipe.
"""

from __future__ import annotations

OBJECTS: tuple[str, ...] = (
    "apple", "banana", "cat", "dog", "car", "ball", "heart", "star",
    "tree", "rocket", "fish", "house", "balloon", "mushroom", "duck", "flower",
)  # fmt: skip

COLOURS: tuple[str, ...] = ("red", "yellow", "green", "blue")
"""Colours that an object can be asked in."""

NATURAL_COLOUR: dict[str, str] = {"heart": "red", "star": "yellow", "balloon": "red", "car": "red"}
"""The recolourable objects, with the colour they have when the caption names none."""

PLAIN_BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (250, 250, 250),
    "blue": (70, 130, 225),
    "yellow": (250, 218, 95),
    "pink": (248, 178, 200),
    "gray": (165, 168, 174),
    "black": (24, 24, 28),
}
PLACES: dict[str, str] = {
    "grass": "on grass",
    "beach": "on a beach",
    "sky": "in the sky",
    "night": "at night",
    "underwater": "underwater",
}
BACKGROUNDS: tuple[str, ...] = (*PLAIN_BACKGROUNDS, *PLACES)

NUMBERS: dict[int, str] = {2: "two", 3: "three", 4: "four"}
RELATIONS: tuple[str, ...] = ("left of", "right of", "above", "below")

PLURALS: dict[str, str] = {
    **{f"{name}s": name for name in OBJECTS if name != "fish"},
    "fishes": "fish",
    "grey": "gray",
}
"""Other spellings, each with the word it stands for."""

STOP_WORDS: tuple[str, ...] = ("a", "an", "the", "one", "of", "on", "in", "at", "to", "is", "with")
"""Words that carry nothing the model needs; they are dropped."""

WORDS: tuple[str, ...] = (
    *OBJECTS,
    *COLOURS,
    *(name for name in PLAIN_BACKGROUNDS if name not in COLOURS),
    "background",
    *PLACES,
    *NUMBERS.values(),
    "and",
    *(relation.split()[0] for relation in RELATIONS),
)


def plural(name: str) -> str:
    """The plural of an object's name."""
    return "fish" if name == "fish" else f"{name}s"
