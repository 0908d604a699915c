"""The laboratory behind the atlas of kernels: cases, the sweep over them, and how rows are drawn from it."""
