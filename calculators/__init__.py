"""Arithmetic that needs no run: what a cache holds, how large a model is, how large it should be."""

import os

# A fit solves thousands of systems of five numbers: threads that wait for each other make it ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
