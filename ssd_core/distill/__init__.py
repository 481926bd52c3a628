"""Self-distillation: heads learn to predict the frozen backbone's features, above all on pictures it drew."""
