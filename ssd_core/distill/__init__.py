"""Self-distillation: heads learn from pictures that the frozen backbone drew itself."""
