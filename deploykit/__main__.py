"""Makes ``python -m deploykit`` run the command line."""

from deploykit.cli import main

if __name__ == "__main__":
    main()
