import gc
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import onnx
import pytest
from msgspec import Struct
from msgspec.structs import replace

import deploykit
import recorded
from deploykit.encodings.values import EncodingSet
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model, wrap_proto
from sample_models.detectors import decoder_detector as build_detector
from sample_models.detectors import decoder_feeds
from sample_models.min_max import min_max_encodings

gc.disable()  # what is imported and collected lives to the end: nobody need look through it again and again
recorded.unpack()
AIMET = Path(__file__).parent / "data" / "aimet"
DEAR = {*Path(__file__).with_name("second_tier.txt").read_text("utf-8").split("\n")}
EXAMPLES = int(os.environ.get("DEPLOYKIT_EXAMPLES", "15"))
"""Of each property, the same in every run; the laboratory looks for new ones with ``DEPLOYKIT_EXAMPLES=1000``."""


@pytest.hookimpl(tryfirst=True)  # before what is heavy is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Properties are tried on few examples, whatever they ask for themselves: all of them run while a person waits."""
    for item in items:
        if item.nodeid.partition("[")[0] in DEAR:
            item.add_marker(pytest.mark.heavy)
        test = getattr(item, "obj", None)
        if isinstance(test, types.FunctionType) and hasattr(test, "_hypothesis_internal_use_settings"):
            own = test._hypothesis_internal_use_settings or hypothesis.settings()
            few = EXAMPLES < 100
            test._hypothesis_internal_use_settings = hypothesis.settings(
                own,
                max_examples=min(own.max_examples, EXAMPLES) if few else EXAMPLES,
                derandomize=few,
                database=None,
                deadline=None,  # a time says nothing about the code on a machine that has other work
            )


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the tool remembers between its runs is not kept between runs of the tests, nor taken from the user's."""
    os.environ["DEPLOYKIT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def only_the_installed_compiler() -> Iterator[None]:
    """Second opinions come from the wheel beside this Python, whatever toolchains this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deploykit_ort_qnn.bench.opinions.toolchain_host", lambda wheel: None)
        yield


@pytest.fixture
def every_compilation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that puts something in the place of the compiler or its process: nothing that was kept answers it.

    Elsewhere one model is compiled once in a run of the tests, whatever file asks for it.
    """
    monkeypatch.setattr("deploykit_ort_qnn.compiler.jobs.is_off", lambda: True)


@pytest.fixture(scope="session")
def compiled_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One package that was really compiled and emulated, with a DLC, for whoever looks into one. Not to be changed."""
    pytest.importorskip("onnxruntime_qnn")
    asked: dict[str, object] = {"target": "sm8650", "backend": "ort-qnn", "dlc": True}
    made = deploykit.package(
        AIMET / "cnn/model.onnx",
        encodings=AIMET / "cnn/w8a16.v2.0.0.encodings",
        out=tmp_path_factory.mktemp("package") / "p",
        **asked,  # type: ignore[arg-type]
    )
    assert made.package is not None and made.exit_status == 0
    return made.package


@pytest.fixture(scope="session")
def graph_of() -> Callable[[str], GraphFacts]:
    """The facts of a model of the AIMET fixtures, by its folder's name."""
    known: dict[str, GraphFacts] = {}

    def get(name: str) -> GraphFacts:
        if name not in known:
            known[name] = collect_facts(load_model(AIMET / name / "model.onnx"))
        return known[name]

    return get


@pytest.fixture(scope="session")
def collect() -> Callable[[onnx.ModelProto], GraphFacts]:
    """Facts of any model."""
    return lambda model: collect_facts(wrap_proto(model, path=Path("model.onnx")))


class Detector(Struct, frozen=True, kw_only=True):
    """A decoder detector with the encodings AIMET would give it: W8A16 from the ranges of its calibration samples.

    ``wide`` are the ends of the names of tensors that no 16-bit grid holds: anchors, and parts of inverse sigmoids.
    """

    model: onnx.ModelProto
    facts: GraphFacts
    encodings: EncodingSet
    calibration: list[dict[str, np.ndarray]]
    feeds: list[dict[str, np.ndarray]]
    wide: tuple[str, ...] = ("unreachable", "anchors", "enc.boxes", "enc.chosen", ".ratio", ".logit")

    def without(self, *names: str) -> EncodingSet:
        """The encodings without some entries."""
        kept = {name: entry for name, entry in self.encodings.entries.items() if name not in names}
        return replace(self.encodings, entries=kept)


@pytest.fixture(scope="session")
def decoder_detector() -> Detector:
    """The detector of ``sample_models.detectors``; ``feeds`` were not used for calibration."""
    model = build_detector()
    calibration = decoder_feeds(4)
    made = Detector(
        model=model,
        facts=collect_facts(wrap_proto(model, path=Path("detector.onnx"))),
        encodings=min_max_encodings(model, calibration, bits=16),
        calibration=calibration,
        feeds=decoder_feeds(2, seed=7),
    )
    return replace(made, encodings=made.without("sizes"))  # AIMET does not look behind inputs of integers
