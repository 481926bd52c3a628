"""GenEval-like score of emoji scenes: a small detector finds the objects, a judge compares them with the prompt."""

from .detector import Detection, Detector, Finding, detect, load_detector
from .judge import CATEGORIES, ScoreRow, draw_specs, format_row, judge, score

__all__ = [
    "CATEGORIES",
    "Detection",
    "Detector",
    "Finding",
    "ScoreRow",
    "detect",
    "draw_specs",
    "format_row",
    "judge",
    "load_detector",
    "score",
]
