"""The parts of benchmark.py: measuring, reporting, other libraries to compare with."""
