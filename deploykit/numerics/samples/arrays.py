"""Reads .npy and .npz files without ever unpickling; it knows nothing of samples or models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ARRAY_SUFFIXES", "read_arrays"]

ARRAY_SUFFIXES = (".npy", ".npz")


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of one .npy (named ``""``) or .npz file; raises InputError for anything else."""
    import numpy as np

    try:
        with path.open("rb") as stream:
            loaded: Any = np.load(stream, allow_pickle=False)
            return {"": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise InputError(f"{path}: not a readable NumPy file", why=str(error)) from None
    except Exception as error:  # a damaged zip raises what its parts raise
        raise InputError(f"{path}: damaged", why=f"{type(error).__name__}: {error}") from None
