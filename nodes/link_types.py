"""The types of the links between our nodes."""

from __future__ import annotations

from comfy_api.latest import io

Backbone = io.Custom("AR_BACKBONE")
Heads = io.Custom("SSD_HEADS")
Verification = io.Custom("SSD_VERIFICATION")
Tokens = io.Custom("AR_TOKENS")
