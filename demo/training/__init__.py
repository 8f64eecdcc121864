"""The making of the embedded pairs: their tasks, and their training. The product does without."""
