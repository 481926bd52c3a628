"""The caption grammar: what a scene holds, drawn at random, and the sentence that says so."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .words import BACKGROUNDS, COLOURS, NATURAL_COLOUR, NUMBERS, OBJECTS, PLACES, RELATIONS, plural

KINDS: dict[str, float] = {"single": 0.34, "count": 0.26, "pair": 0.15, "relation": 0.25}
"""Kinds of captions and how often each is drawn."""


@dataclass(frozen=True)
class Thing:
    """One object of a scene.

    Attributes:
        name: One of ``words.OBJECTS``.
        colour: Its colour for recolourable objects, else None.
        colour_named: Whether the caption says the colour.
    """

    name: str
    colour: str | None = None
    colour_named: bool = False

    def phrase(self, number: int = 1) -> str:
        """The noun phrase, such as "a red heart" or "two cats"."""
        words = [self.colour] if self.colour_named and self.colour else []
        words.append(plural(self.name) if number > 1 else self.name)
        article = "an" if words[0][0] in "aeiou" else "a"
        return " ".join([NUMBERS[number] if number > 1 else article, *words])


@dataclass(frozen=True)
class SceneSpec:
    """What a scene must show.

    Attributes:
        kind: A key of ``KINDS``.
        things: The objects, 1-4; for a relation the first one is the subject.
        relation: One of ``words.RELATIONS`` or None.
        background: One of ``words.BACKGROUNDS``.
        background_named: Whether the caption says the background.
    """

    kind: str
    things: tuple[Thing, ...]
    relation: str | None
    background: str
    background_named: bool

    @property
    def caption(self) -> str:
        """The sentence for this scene, such as "a cat left of a red car on grass"."""
        first = self.things[0]
        if self.kind == "count":
            text = first.phrase(len(self.things))
        elif self.kind == "single":
            text = first.phrase()
        else:
            text = f"{first.phrase()} {self.relation or 'and'} {self.things[1].phrase()}"
        if self.background_named:
            text += " " + PLACES.get(self.background, f"on a {self.background} background")
        return text


def draw_spec(rng: random.Random, kind: str | None = None, background_share: float = 0.6) -> SceneSpec:
    """Draws a scene's content.

    Args:
        rng: Source of randomness.
        kind: A key of ``KINDS``; drawn when None.
        background_share: How often the caption names the background.
    """
    kind = kind or rng.choices(list(KINDS), list(KINDS.values()))[0]
    background = rng.choice(BACKGROUNDS)
    first = _draw_thing(rng, background)
    things: tuple[Thing, ...] = (first,)
    if kind == "count":
        things = (first,) * rng.choice(list(NUMBERS))
    elif kind in ("pair", "relation"):
        second = _draw_thing(rng, background)
        while second.name == first.name:
            second = _draw_thing(rng, background)
        things = (first, second)
    relation = rng.choice(RELATIONS) if kind == "relation" else None
    return SceneSpec(kind, things, relation, background, rng.random() < background_share)


def _draw_thing(rng: random.Random, background: str) -> Thing:
    """An object; recolourable ones have a named colour half of the time, never the background's."""
    name = rng.choice(OBJECTS)
    if name not in NATURAL_COLOUR:
        return Thing(name)
    if rng.random() < 0.5:
        return Thing(name, rng.choice([colour for colour in COLOURS if colour != background]), True)
    return Thing(name, NATURAL_COLOUR[name])
