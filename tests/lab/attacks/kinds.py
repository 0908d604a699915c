"""The kinds of bad files and the command lines that meet them; one list for the whole attack."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from attacks.graphs import broken_models
from attacks.many import Case
from attacks.mutations import broken_bytes, broken_json, broken_lines, broken_npz, json_with_change
from pictures import png
from victims import AIMET, MODEL, PACKAGING, run_cli, two_samples

__all__ = ["COMPILING", "KINDS", "Ground", "Kind"]

Mutate = Callable[[random.Random, bytes], bytes]

DATA = Path(__file__).parents[2] / "data"
_ENCODINGS = {version: AIMET / "cnn" / f"w8a8.v{version}.encodings" for version in ("0.6.1", "1.0.0", "2.0.0")}
_BLOCKS = {version: AIMET / "mlp" / f"bq-w4a16.v{version}.encodings" for version in ("1.0.0", "2.0.0")}
_CNN = ("--target", "sm8650", "--sdk", "2.33")
COMPILING = (*PACKAGING[:4], "--target", "sm8650", "--backend", "ort-qnn", "-o")
"""The same with a compiler at work, where the wheel that has it is installed."""
_PACKAGES: dict[str, tuple[str, ...]] = {
    "qnn-htp": (*PACKAGING[:-1], "--calibration", "DATA"),
    "ort-qnn": (*PACKAGING[:4], "--target", "sm8650", "--backend", "ort-qnn", "--dlc"),
    "vitis-ai": ("package", str(MODEL), "--target", "vek385", "--no-compile"),
}


class Ground:
    """What attacks start from: good packages and files, each made once, when it is first asked for."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._packages: dict[str, Path] = {}

    def package(self, backend: str) -> Path:
        """A package of the small network for a backend; compiled for ort-qnn where its wheel is installed."""
        if backend not in self._packages:
            out = self.place / backend
            words = [str(self.data()) if word == "DATA" else word for word in _PACKAGES[backend]]
            if backend == "ort-qnn" and find_spec("onnxruntime_qnn") is None:
                words.append("--no-compile")
            ending = run_cli(*words, "-o", out)
            if ending.status not in (0, 1):
                raise AssertionError(ending.output)
            self._packages[backend] = out
        return self._packages[backend]

    def data(self) -> Path:
        """Two samples for the small network."""
        path = self.place / "data.npz"
        return path if path.exists() else two_samples(self.place)

    def file(self, backend: str, pattern: str) -> bytes:
        """The first file of a package that fits, b"" where there is none."""
        found = sorted(self.package(backend).glob(pattern))
        return found[0].read_bytes() if found else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to be bad: ``arrange`` writes into an empty folder and says what is to be done there.

    ``costly`` kinds start programs and take seconds; they are tried less often.
    """

    id: str
    arrange: Callable[[random.Random, Path, Ground], Case]
    costly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneFile:
    """A file called ``name``, made by ``mutate`` from what ``good`` gives; in ``words`` FILE stands for it.

    OUT is a name in the same folder where nothing stands, DATA good samples; ``part`` is called instead of words.
    """

    name: str
    mutate: Mutate
    good: Callable[[random.Random, Ground], bytes]
    words: tuple[str, ...] = ()
    part: str = ""

    def __call__(self, chance: random.Random, folder: Path, ground: Ground) -> Case:
        path = folder / self.name
        path.write_bytes(self.mutate(chance, self.good(chance, ground)))
        places = {"FILE": str(path), "OUT": str(folder / "out"), "DATA": str(ground.data())}
        if self.part:
            return Case(part=self.part, file=str(path))
        return Case(words=tuple(places.get(word, word) for word in self.words))


def _fixed(path: Path) -> Callable[[random.Random, Ground], bytes]:
    return lambda _chance, _ground: path.read_bytes()


def _text(data: bytes) -> Callable[[random.Random, Ground], bytes]:
    return lambda _chance, _ground: data


@cache
def _small_models() -> Sequence[bytes]:
    """The models of onnx's own backend tests: every operator in every form, a few kilobytes each."""
    with tarfile.open(DATA / "onnx_backend" / "models.tar.xz") as archive:
        files = [archive.extractfile(member) for member in archive if member.name.endswith(".onnx")]
        return [file.read() for file in files if file is not None]


def _any_operator(chance: random.Random, _ground: Ground) -> bytes:
    return chance.choice(_small_models())


def _any_export(chance: random.Random, _ground: Ground) -> bytes:
    return chance.choice(sorted((DATA / "exports").glob("*.onnx"))).read_bytes()


def _words(text: str, **more: tuple[str, ...]) -> tuple[str, ...]:
    """A command line: MODEL is the small network, CNN the device that it is for, GOOD its encodings."""
    places = {"MODEL": (str(MODEL),), "CNN": _CNN, "GOOD": (str(_ENCODINGS["1.0.0"]),), **more}
    return tuple(word for name in text.split() for word in places.get(name, (name,)))


_OF_A_MODEL = {
    "check": "check FILE --target sm8650 ENCODINGS",
    "check at 16 bits": "check FILE CNN --precision fp16",
    "package qnn-htp": "package FILE CNN ENCODINGS --no-compile -o OUT",
    "package ort-qnn": "package FILE --target sm8650 --backend ort-qnn ENCODINGS --no-compile -o OUT",
    "package vitis-ai": "package FILE --target vek385 --no-compile -o OUT",
    "extract": "encodings extract FILE -o OUT",
    "simulate": "accuracy simulate FILE ENCODINGS --data DATA",
    "locate": "accuracy locate FILE ENCODINGS --data DATA",
    "compat": "compat --target sm8650 --model FILE",
    "evaluate": "accuracy compare FILE MODEL --data DATA",
    "lpbq": "encodings convert FILE --to lpbq -o OUT",
    "bundle": "diagnose --model FILE ENCODINGS --pack OUT",
    "ladder": "accuracy ladder FILE --data DATA",
    "audit": "check FILE --target sm8650 --backend ort-qnn ENCODINGS --kernels quick",
    "mix": "accuracy ladder --raise FILE ENCODINGS --data DATA --goal sqnr>=20 -o OUT",
    "quantize": "quantize FILE CNN --with ort --calibration DATA -o OUT",
}
_COSTLY = ("quantize", "compat", "audit", "ladder", "mix")


def _of_models() -> Iterator[Kind]:
    models = {
        "the network": _fixed(MODEL),
        "a QDQ model": _fixed(AIMET / "cnn" / "w8a8.qdq.onnx"),
        "a transformer": _fixed(AIMET / "vit" / "model.onnx"),
        "blocks": _fixed(AIMET / "mlp" / "bq-w4a16.qdq.onnx"),
        "another quantizer": _fixed(DATA / "quark" / "vint8_mixed.onnx"),
        "an operator": _any_operator,
        "an export": _any_export,
    }
    encodings = {"the network": _ENCODINGS["1.0.0"], "a transformer": AIMET / "vit" / "w8a8.v1.0.0.encodings"}
    only = {
        **dict.fromkeys(("locate", "evaluate", "simulate", "quantize"), ("the network",)),
        "lpbq": ("blocks",),
        "extract": ("a QDQ model", "blocks", "another quantizer"),
        "compat": ("a QDQ model", "an operator"),
    }
    for of, good in models.items():
        given = ("--encodings", str(encodings[of])) if of in encodings else ()
        for title, text in _OF_A_MODEL.items():
            if of in only.get(title, models):
                words = _words(text, ENCODINGS=given)
                arrange = _OneFile(name="m.onnx", mutate=broken_models, good=good, words=words)
                yield Kind(id=f"{title} of {of}", arrange=arrange, costly=title in _COSTLY)
        rewritten = _OneFile(name="m.onnx", mutate=broken_models, good=good, part="rewrites")
        yield Kind(id=f"rewrites of {of}", arrange=rewritten)
        damaged = _OneFile(name="m.onnx", mutate=broken_bytes, good=good, words=_words("check FILE CNN"))
        yield Kind(id=f"bytes of {of}", arrange=damaged)


_OF_ENCODINGS = {
    "plan": "check --plan MODEL CNN --encodings FILE",
    "show": "encodings show FILE",
    "check": "encodings check FILE --model MODEL",
    "convert": "encodings convert FILE --to 2.0.0 -o OUT",
    "apply": "encodings apply FILE --model MODEL -o OUT",
    "diff": "encodings diff FILE GOOD",
    "bundle": "diagnose --model MODEL --encodings FILE --pack OUT",
    "simulate": "accuracy simulate MODEL --encodings FILE --data DATA",
    "sensitivity": "accuracy layers MODEL --encodings FILE --data DATA",
}


def _of_encodings() -> Iterator[Kind]:
    plan, mlp = _OF_ENCODINGS["plan"], (str(AIMET / "mlp" / "model.onnx"),)
    rows = [(title, path, _words(text)) for path in _ENCODINGS.values() for title, text in _OF_ENCODINGS.items()]
    rows += [("blocks", path, _words(plan.replace("MODEL", "MLP"), MLP=mlp)) for path in _BLOCKS.values()]
    for title, path, words in rows:
        arrange = _OneFile(name="e.json", mutate=broken_json, good=_fixed(path), words=words)
        yield Kind(id=f"{title} with {path.name}", arrange=arrange)
    good = _text(b'["/conv1/Conv_output_0", "conv1.weight", "logits"]')
    words = (*_words(plan)[:-1], str(_ENCODINGS["2.0.0"]), "--float-tensors", "FILE")
    named = _OneFile(name="f.json", mutate=broken_json, good=good, words=words)
    yield Kind(id="float tensors", arrange=named)


def _of_data() -> Iterator[Kind]:
    samples = lambda _chance, ground: ground.data().read_bytes()  # noqa: E731 (made when it is asked for)
    for title, words in {
        "calibration": (*_PACKAGES["qnn-htp"][:-1], "FILE", "-o", "OUT"),
        "outputs": _words("accuracy compare FILE DATA"),
        "simulated samples": _words("accuracy simulate MODEL --encodings GOOD --data FILE"),
    }.items():
        yield Kind(id=title, arrange=_OneFile(name="s.npz", mutate=broken_npz, good=samples, words=words))
    for part in ("arrays", "references"):
        yield Kind(id=part, arrange=_OneFile(name="s.npz", mutate=broken_npz, good=samples, part=part))


_LOG = b"\n".join(
    b"  12.3ms [ ERROR ] QnnModel failed at node conv_%d with error 3110" % number for number in range(50)
)
_RECIPE = b"""schema = 1
width = 128
height = 128
resize = "stretch"
scale = 0.0039
mean = [0.0, 0.0, 0.0]
"""
_RECORD = b"""{"call": "validate", "answer": 0, "name": "n", "type": "Conv2d", "said": []}
{"call": "node", "answer": 3110, "name": "m", "type": "Relu", "said": ["QnnDsp <E> no"]}
"""
_RESULT = b'{"ok": true, "outputs": {"a": "00"}, "errors_logged": []}'
_FLEET = (
    f'[models.cnn]\npath = "{MODEL}"\nencodings = "{_ENCODINGS["0.6.1"]}"\n'
    '[targets.phone]\ndevice = "sm8650"\nbackends = ["qnn-htp"]\nsdks = ["2.33"]\n'
    '[defaults]\nprecision = "w8a8"\n[[matrix.exclude]]\nmodel = "x*"\n'
).encode()
_ACCURACY = b'goal = 0.7\n[accuracy]\nfloat = 0.75\nw8a16 = 0.74\nw8a8 = 0.6\n"w4a16" = 0.5\n'


def _of_texts() -> Iterator[Kind]:
    logs = sorted((DATA / "logs").rglob("*.log")) or sorted((DATA / "logs").rglob("*.txt"))
    devices = sorted((DATA.parents[1] / "backends" / "deploykit_qualcomm" / "data").rglob("*.toml"))
    seen = lambda chance, _ground: chance.choice(logs).read_bytes() if logs else _LOG  # noqa: E731
    table = lambda chance, _ground: chance.choice(devices).read_bytes()  # noqa: E731
    bitmap = lambda chance, _ground: _picture(chance, "BMP", "JPEG")  # noqa: E731
    chunks = lambda chance, _ground: _picture(chance, "PNG")  # noqa: E731
    known = _text(b'{"schema": 1, "accepted": []}')
    # The file's name, how it is spoilt, what it was, and the command line, or the one part that reads it.
    rows: dict[str, tuple[str, Mutate, Callable[[random.Random, Ground], bytes], str]] = {
        "a log": ("a.log", broken_lines, _text(_LOG), "diagnose FILE"),
        "a log of a bundle": ("a.log", broken_lines, seen, "diagnose FILE --model MODEL --pack OUT"),
        "a log that was seen": ("a.log", broken_lines, seen, "diagnose FILE --model MODEL"),
        "a recipe": ("calibration.toml", broken_lines, _text(_RECIPE), "recipe"),
        "a picture": ("p.png", broken_bytes, bitmap, "picture"),
        "a picture in chunks": ("p.png", _with_sums, chunks, "picture"),
        "a table": ("t.toml", broken_lines, table, "device"),
        "a fleet": ("deploykit.toml", broken_lines, _text(_FLEET), "matrix FILE --dry-run"),
        "accuracies": ("a.toml", broken_lines, _text(_ACCURACY), "accuracy ladder FILE"),
        "a record": ("record.jsonl", broken_lines, _text(_RECORD), "record"),
        "a kept answer": ("k.json", broken_json, _text(_RESULT), "remembered"),
        "a job's result": ("result.json", broken_json, _text(_RESULT), "job_result"),
        "a baseline": ("b.json", broken_json, known, "check MODEL CNN --baseline FILE"),
    }
    for title, (name, mutate, good, text) in rows.items():
        words, part = (_words(text), "") if " " in text else ((), text)
        yield Kind(id=title, arrange=_OneFile(name=name, mutate=mutate, good=good, words=words, part=part))


def _picture(chance: random.Random, *formats: str) -> bytes:
    """A small image of any kind; one that Pillow does not write where it is not installed."""
    import numpy as np

    values = np.random.default_rng(chance.randrange(1 << 30)).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    if find_spec("PIL") is None:
        return png(values)
    from PIL import Image

    made, whole = Image.fromarray(values).convert(chance.choice(("RGB", "L", "P", "1"))), io.BytesIO()
    kind = chance.choice(formats)
    (made.convert("RGB") if kind == "JPEG" else made).save(whole, kind)
    return whole.getvalue()


def _with_sums(chance: random.Random, good: bytes) -> bytes:
    """A PNG whose chunks are damaged and have the check sums of what they hold now."""
    damaged, at = [good[:8]], 8
    while at + 12 <= len(good):
        length, kind = struct.unpack_from(">I4s", good, at)
        body = good[at + 8 : at + 8 + length]
        at += 12 + length
        if body and chance.random() < 0.6:
            body = broken_bytes(chance, body)
        damaged.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(damaged)


def _of_binaries() -> Iterator[Kind]:
    compiled = {
        "a context binary": ("a.bin", "artifacts/*.bin", ("explain", "FILE"), ""),
        "a compiled model": ("m_ctx.onnx", "artifacts/*ctx*.onnx", ("explain", "FILE"), ""),
        "a container": ("m.dlc", "artifacts/*.dlc", (), "dlc"),
    }
    for title, (name, pattern, words, part) in compiled.items():

        def good(_chance: random.Random, ground: Ground, pattern: str = pattern) -> bytes:
            return ground.file("ort-qnn", pattern) or bytes(range(256)) * 8

        yield Kind(id=title, arrange=_OneFile(name=name, mutate=broken_bytes, good=good, words=words, part=part))


def _forged(chance: random.Random, folder: Path, ground: Ground, *, backend: str, command: str, manifest: bool) -> Case:
    """A package of which the manifest or a file says something wrong, sealed again by somebody who knows how."""
    from deploykit.packages.manifests import read_manifest, sealed

    out = Path(shutil.copytree(ground.package(backend), folder / "out"))
    value = read_manifest(out)
    if manifest:
        value = json_with_change(chance, value)
    else:
        name = chance.choice(sorted(value["files"]))
        mutate = broken_json if name.endswith(".json") else broken_models if name.endswith(".onnx") else broken_bytes
        data = mutate(chance, (out / name).read_bytes())
        (out / name).write_bytes(data)
        value["files"][name] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    try:
        text = sealed(value)[0]
    except (ValueError, TypeError, AttributeError):
        text = json.dumps(value)
    (out / "manifest.json").write_text(text, "utf-8", errors="surrogatepass")
    return Case(words=(command, str(out)))


def _of_packages() -> Iterator[Kind]:
    for backend in _PACKAGES:
        for what, command in product(("manifest", "file"), ("verify", "explain")):
            forged = partial(_forged, backend=backend, command=command, manifest=what == "manifest")
            yield Kind(id=f"{command} a forged {what} of {backend}", arrange=forged)
    built = partial(_forged, backend="qnn-htp", command="build", manifest=True)
    yield Kind(id="build a forged manifest", arrange=built)
    yield Kind(id="replace a forged manifest", arrange=_replaced)


def _replaced(chance: random.Random, folder: Path, ground: Ground) -> Case:
    _forged(chance, folder, ground, backend="qnn-htp", command="verify", manifest=True)
    return Case(words=(*PACKAGING, str(folder / "out"), "--force"))


KINDS: tuple[Kind, ...] = (
    *_of_models(),
    *_of_encodings(),
    *_of_data(),
    *_of_texts(),
    *_of_binaries(),
    *_of_packages(),
)
