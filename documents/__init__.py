"""Documents to translate: formats behind one contract, and what stands between a text and a model's sentences.

A format is a module with `parse(data) -> Document`: it finds the parts to translate, and everything else stays byte for
byte. Only translator.py knows a model.
"""
