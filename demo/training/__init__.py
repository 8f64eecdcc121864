"""How the embedded pairs were made: their tasks, and what trained them. The product does without."""
