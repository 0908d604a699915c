"""``python running.py PACKAGE INPUTS.npz OUTPUTS.npz``: a package's context on the emulator, by its own ``run.py``."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(package: Path, inputs: Path, outputs: Path) -> None:
    """Every sample of the stacked inputs through one session."""
    spec = importlib.util.spec_from_file_location("run", package / "scripts" / "run.py")
    assert spec is not None and spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    os.chdir(package)
    session = script.npu_session(json.loads(Path(script.OPTIONS).read_text("utf-8")))
    names = [value.name for value in session.get_outputs()]
    with np.load(inputs) as data:
        arrays = {name: data[name] for name in data.files}
    rows = []
    for place in range(len(next(iter(arrays.values())))):
        given = {name: array[place] for name, array in arrays.items()}
        found = dict(zip(names, session.run(names, script.inputs_for(session.get_inputs(), given)), strict=True))
        rows.append(script.finish(found, {**given, **found}) if script.TAIL else found)
    merged: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    np.savez(outputs, **merged)


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:4]))
