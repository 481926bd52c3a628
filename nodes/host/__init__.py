"""The only place that touches ComfyUI's internals: folders, memory, stop, progress, events, the queued graph."""
