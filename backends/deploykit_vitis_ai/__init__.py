"""The vitis-ai backend: AMD Versal AI Edge Gen 2 and Ryzen AI."""
