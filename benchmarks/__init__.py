"""The parts of benchmark.py: instruments, tables, other libraries to compare with."""
