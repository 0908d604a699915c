"""Reads what winml-cli's wheel says of the QNN NPU: its measured rows, and the operator tables that it was given.

The rows are Parquet: ``pip install pyarrow`` (no dependency of this project). Nothing of them is kept but counts.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["NO_LIMIT", "Cell", "Counts", "measured_of", "rows_in", "tables_of"]

Cell = tuple[str, str, int]
"""Operator, type, rank of the first input."""
Counts = Counter[tuple[Cell, bool]]
"""How many cases of a cell were taken, and how many were not."""

_RULES = "winml/modelkit/analyze/rules/"
_MEASURED = re.compile(r"/QNNExecutionProvider_NPU/(\w+?)_QNNExecutionProvider_NPU_ai\.onnx_opset\d+(_qdq)?\.parquet$")
_NO_RESULT_OF_ITS_INPUT = frozenset({"Cast", "CastLike", "ConstantOfShape", "Dropout", "Shape"})
_FIRST = ("X_dim", "input_dim", "data_dim", "A_dim", "inputs_dim", "x_dim")
_WEIGHTS = frozenset({"QDQ_W", "QDQ_Scale", "QDQ_scale", "QDQ_slope"})
_OF_LAYERS = frozenset({"Gemm", "MatMul"})
_STORED = frozenset(
    {"K", "Scale", "W", "axes", "axis", "constant_value", "ends", "input_mean", "input_var", "max", "mean", "min"}
    | {"pads", "repeats", "roi", "scale", "scales", "shape", "sizes", "slope", "split", "starts", "steps", "var"}
)
"""Inputs that the sweep stores."""
_WITH_BIAS = frozenset(
    {"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization"}
)
_GRIDS = {"w8a8": "UINT8", "w8a16": "UINT16"}
_OF_TABLES = {"FLOAT16": "fp16", "INT8": "w8a8", "INT16": "w8a16"}
_OF_NO_TYPE = frozenset({"And", "Not", "OneHot", "Or", "Xor"})
"""Operators whose inputs are truth values or indices."""
NO_LIMIT = 99


def rows_in(wheel: Path) -> int:
    """How many measured rows of the QNN NPU it has, of patterns and other types too."""
    parquet: Any = import_module("pyarrow.parquet")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/QNNExecutionProvider_NPU/" in name]
        return sum(parquet.ParquetFile(io.BytesIO(archive.read(name))).metadata.num_rows for name in names)


def measured_of(wheel: Path) -> Counts:
    """What compiled, of single operators with fixed shapes in a type of the sweep's; whether it ran is not asked.

    Its compiling allows no other provider, so that compiled means taken whole.
    """
    parquet: Any = import_module("pyarrow.parquet")
    found: Counts = Counter()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            match = _MEASURED.search(name)
            if match is None or match[1].endswith("Pattern") or match[1] in _NO_RESULT_OF_ITS_INPUT:
                continue
            rows = parquet.read_table(io.BytesIO(archive.read(name))).to_pylist()
            found.update(_counted(match[1], rows, bool(match[2])))
    return found


def _counted(op: str, rows: list[dict[str, Any]], pairs: bool) -> Iterator[tuple[Cell, bool]]:
    if not rows:
        return
    plain = [{name: _value(cell) for name, cell in row.items()} for row in rows]
    never = {name for name in plain[0] if all(row[name] is None for row in plain)}
    rank = next((name for name in _FIRST if name in plain[0]), "")
    for row in plain:
        kind = _kind_of_pairs(op, row, never) if pairs else _kind_of_float(row)
        if kind and rank and isinstance(row[rank], int) and _is_like_the_sweep(op, row):
            yield (op, kind, row[rank]), bool(row["compile_run_success"][0])


def _value(cell: Any) -> Any:
    """``{"t": "int", "v": 4}`` is 4."""
    if isinstance(cell, str) and cell.startswith("{"):
        return json.loads(cell).get("v")
    return cell


def _is_like_the_sweep(op: str, row: Mapping[str, Any]) -> bool:
    """Fixed shapes, something to compute, and stored what the sweep stores."""
    stored = {name.removesuffix("_is_constant"): row[name] for name in row if name.endswith("_is_constant")}
    asked = {name: value for name, value in stored.items() if row.get(f"{name}_is_none") is not True}
    fixed = [value for name, value in row.items() if name.endswith("_is_fixed_shape") and isinstance(value, bool)]
    must = _STORED | ({"B", "C"} if op in _WITH_BIAS else set())
    open_ = [name for name, value in asked.items() if name in must and value is False]
    return all(fixed) and not open_ and not (asked and all(value is True for value in asked.values()))


def _kind_of_float(row: Mapping[str, Any]) -> str:
    """Float16 in all that is float, but for the factors of a Resize."""
    types = {name: value for name, value in row.items() if re.match(r"T\w*_", name)}
    factors = types.pop("T2_Resize", "FLOAT")
    held = {value for name, value in types.items() if not name.startswith("Tind") and name != "T2_CumSum"}
    return "fp16" if held == {"FLOAT16"} and factors == "FLOAT" else ""


def _kind_of_pairs(op: str, row: Mapping[str, Any], never: set[str]) -> str:
    """8 or 16 bits, unsigned, in every tensor that can have pairs but weights (8 bits) and biases (int32)."""
    grids = {name: row[name] for name in row if name.startswith("QDQ_") and name not in never}
    weights = _WEIGHTS | ({"QDQ_B"} if op in _OF_LAYERS and row.get("B_is_constant") is True else set())
    is_bias = {name for name in ("QDQ_B", "QDQ_C") if grids.get(name) == "INT32" or _has_none(row, name)}
    around = {value for name, value in grids.items() if name not in weights | is_bias}
    held = {value for name, value in grids.items() if name in weights}
    return next((kind for kind, grid in _GRIDS.items() if around == {grid} and held <= {"UINT8", "INT8"}), "")


def _has_none(row: Mapping[str, Any], name: str) -> bool:
    """Whether an input that may be left out was."""
    return row.get(name) is None and row.get(f"{name.removeprefix('QDQ_')}_is_none") is True


def tables_of(wheel: Path) -> dict[tuple[str, str], int]:
    """By Qualcomm's tables, as the wheel has them: the highest rank of the first input per operator and type.

    0 where no operator of QNN takes the type, and 99 where no rank is said.
    """
    with zipfile.ZipFile(wheel) as archive:
        about = _RULES + "information_rules/"
        said = json.loads(archive.read(about + "QNNExecutionProvider_NPU_from_doc.json"))
        mapped = json.loads(archive.read(about + "onnx_to_qnn_mapping.json"))["mappings"]
    found: dict[tuple[str, str], int] = {}
    for op, mapping in mapped.items():
        for name in mapping["qnn_operators"]:
            if name in said and op not in _OF_NO_TYPE:
                for kind, rank in _ranks(said[name]):
                    found[op, kind] = max(found.get((op, kind), 0), rank)
    return found


def _ranks(said: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, dtype in said["dtype"].items():
        if dtype in _OF_TABLES:
            most = said["condition"][key].get("max_input_rank_input_0", NO_LIMIT)
            yield _OF_TABLES[dtype], most if said["compile_run_success"][key][0] else 0
