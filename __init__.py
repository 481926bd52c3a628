"""Spatial Speculative Decoding for ComfyUI: what ComfyUI imports.

The nodes are not written yet, so ComfyUI finds nothing to load here. The decoder is ready: see `ssd_core`.
"""
