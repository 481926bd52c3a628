"""The thin ComfyUI layer: one file a node, no tensor maths; only ``host`` touches ComfyUI's internals."""
