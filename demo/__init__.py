"""The embedded pairs: loaded, made as large as real models, and examples of what they do."""
