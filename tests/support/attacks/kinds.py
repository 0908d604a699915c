"""The kinds of bad files and the command lines that meet them; one list for the tests and for the whole attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from attacks.mutations import broken_bytes, broken_json, broken_models

__all__ = ["AIMET", "KINDS", "MODEL", "PACKAGING", "Kind", "drawn"]

AIMET = Path(__file__).parents[2] / "data" / "aimet"
MODEL = AIMET / "cnn" / "model.onnx"
_ENCODINGS = {version: AIMET / "cnn" / f"w8a8.v{version}.encodings" for version in ("0.6.1", "1.0.0", "2.0.0")}
_WRITTEN = ("--no-compile", "-o", "OUT")
PACKAGING = (
    *("package", str(MODEL), "--encodings", str(_ENCODINGS["0.6.1"])),
    *("--target", "sm8650", "--sdk", "2.33", "--no-compile", "-o"),
)
"""Packages the small convolutional network without any tool of a vendor; the output folder follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Files of one ``name`` made by ``strategy``; in ``arguments`` FILE is such a file, OUT a new folder."""

    id: str
    name: str
    strategy: st.SearchStrategy[bytes]
    arguments: tuple[str, ...]


def _of_models() -> Iterator[Kind]:
    commands = {
        "check": ("check", "FILE", "--target", "sm8650"),
        "package ort-qnn": ("package", "FILE", "--target", "sm8650", "--backend", "ort-qnn", *_WRITTEN),
        "package vitis-ai": ("package", "FILE", "--target", "vek385", *_WRITTEN),
        "extract": ("encodings", "extract", "FILE", "-o", "OUT"),
        "simulate": ("simulate", "FILE", str(_ENCODINGS["1.0.0"])),
    }
    models = {"float": MODEL, "qdq": AIMET / "cnn" / "w8a8.qdq.onnx", "vit": AIMET / "vit" / "model.onnx"}
    for kind, good in models.items():
        for title, arguments in commands.items():
            strategy = broken_models(good.read_bytes())
            yield Kind(id=f"{title} of {kind}", name="m.onnx", strategy=strategy, arguments=arguments)
    yield Kind(
        id="bytes of a model", name="m.onnx", strategy=broken_bytes(MODEL.read_bytes()), arguments=commands["check"]
    )


def _of_encodings() -> Iterator[Kind]:
    arguments = ("plan", str(MODEL), "--target", "sm8650", "--sdk", "2.33", "--encodings", "FILE")
    for version, path in _ENCODINGS.items():
        for title, broken in (("bytes", broken_bytes), ("values", broken_json)):
            strategy = broken(path.read_bytes())
            yield Kind(id=f"{title} of encodings {version}", name="e.json", strategy=strategy, arguments=arguments)


_LOG = b"\n".join(
    b"  12.3ms [ ERROR ] QnnModel failed at node conv_%d with error 3110" % number for number in range(50)
)
KINDS: tuple[Kind, ...] = (
    *_of_models(),
    *_of_encodings(),
    Kind(id="a log", name="a.log", strategy=broken_bytes(_LOG), arguments=("diagnose", "FILE")),
    Kind(
        id="a context binary",
        name="a.bin",
        strategy=broken_bytes(bytes(range(256)) * 8),
        arguments=("inspect", "FILE"),
    ),
)


def drawn(strategy: st.SearchStrategy[bytes], count: int, seed: int, use: Callable[[bytes], None]) -> None:
    """Call ``use`` with ``count`` files; what it raises is not made smaller, for each case is a process."""

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=[*HealthCheck],
    )
    @given(data=strategy)
    def case(data: bytes) -> None:
        use(data)

    case()
