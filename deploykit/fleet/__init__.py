"""Many models times many targets: the file that names them, the runs, the page, and what other engines are given."""

__all__: list[str] = []
