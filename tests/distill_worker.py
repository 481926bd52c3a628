"""The command line, with the small sizes that a tiny Lumina can draw quickly. Run as a script to be killed."""

from __future__ import annotations

import sys
from typing import Any

from lumina_files import SMALL

from ssd_core.cli import main
from ssd_core.families.lumina import LuminaBackbone


def allow_small_sizes(patch: Any = setattr) -> None:
    """Lumina's own sizes hold 2,300 codes each; ``patch`` is setattr or monkeypatch's."""
    whole = LuminaBackbone.__init__

    def begin(self: LuminaBackbone, *arguments: Any) -> None:
        whole(self, *arguments)
        self.grids = (*SMALL, *self.grids)

    patch(LuminaBackbone, "__init__", begin)


if __name__ == "__main__":
    allow_small_sizes()
    sys.exit(main())
