"""CUDA kernels as package data, and their launch arithmetic. Nothing here needs a GPU or CuPy."""
