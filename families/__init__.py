"""Architectures behind one contract, and the one place that knows which config.json is whose.

What the speculative step needs from a model, T5's (model.py) as any other's:

    model.config                     vocab_size, eos_token_ids, pad_token_id, and max_positions: how many
                                     tokens a row may have in the decoder, None without such a limit
    model.prefix(prompt) -> tokens   what a row's tokens begin with, given the prompt's tokens: T5's start
                                     token; for a decoder-only model the prompt itself
    model.start(tokens, mask)        tokens [B, S], mask [B, S] true on tokens (None: no padding): encodes
                                     and projects, or prefills all but the last token -> a cache
    model.decode(tokens, positions, cache)
                                     appends tokens [B, T] at positions [B, T] (np.int32; MASKED: a filler,
                                     whose logits mean nothing) to the cache -> logits [B, T, V]

The cache is one of speculative/cache.py, or a subclass that adds what an architecture needs besides.
"""
