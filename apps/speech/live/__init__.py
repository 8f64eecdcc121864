"""Sound that is transcribed while it arrives."""
