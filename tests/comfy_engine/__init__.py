"""A real ComfyUI for tests and for looking at the nodes: builds it, runs it, talks to it."""
