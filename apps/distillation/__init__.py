"""Draft models made from their target: a shallow decoder on the target's encoder, trained on the target's texts."""
