"""Beneath every other room: errors, files written whole, what long work reports, and a fast BLAS."""
