"""The models: their contract, the families behind it, converting and loading them."""
