"""What every release that can be run here does with the same models, recorded for tests/lab/evidence/compilers.md."""
