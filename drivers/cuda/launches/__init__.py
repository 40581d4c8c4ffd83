"""Launch arithmetic of the CUDA kernels, a module a theme: pure functions of sizes."""
