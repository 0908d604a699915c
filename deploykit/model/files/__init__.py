"""The files of a model, which strangers wrote: opened, bounded, checked, and read on demand."""
