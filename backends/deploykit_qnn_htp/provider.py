"""The route without a converter: the backend of ONNX Runtime's provider prepares, decides, writes and judges.

All calls use the contract between core and backends, so neither adapter depends on the other. It selects no route.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from deploykit.backend.backend import (
    Aids,
    AnyBackend,
    Check,
    Execution,
    PackageFile,
    SharedWork,
    Situation,
    Verification,
)
from deploykit.backend.plans import Plan, Step
from deploykit.backend.plugins import load_backend, own_options
from deploykit.backend.targets import Target
from deploykit.errors import DeploykitError
from deploykit.findings.records import Json, Record, replace
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.carriers import Carried, carrier_for, judge_loading

__all__ = ["ProviderPart", "carried_for", "prepare_provider", "verify_provider"]

# The backend that compiles.
PROVIDER = "ort-qnn"

# Options that both backends have with the same meaning.
_SHARED = ("emit",)

# The provider's own step and script for the device are left out: here the device has no ONNX Runtime.
_ON_DEVICE = ("run", "scripts/run_on_device.sh")


def carried_for(target: Target, *, insisted: bool = False, ask: str = "") -> Carried | None:
    """The compiler in a public wheel for a target; None if there is no such
    wheel, or the provider does not know the device.
    """
    runtime = target.requested or ("" if target.sdk is None else target.sdk.version)
    wheel = carrier_for(runtime)
    if wheel is None or PROVIDER not in target.device.backends:
        return None
    return Carried(wheel, target.device, runtime=runtime, insisted=insisted, ask=ask)


class ProviderPart(Record):
    """What the provider's backend prepared for a situation, and its plan, None before it has decided."""

    backend: AnyBackend
    prepared: Any
    plan: Plan[Any] | None = None

    def planned(self) -> ProviderPart:
        """A copy with the provider's decision. It reads and starts nothing."""
        return replace(self, plan=self.backend.plan(self.prepared))

    @property
    def decision(self) -> Plan[Any]:
        """The provider's plan; call it only after ``planned``."""
        assert self.plan is not None
        return self.plan

    @property
    def steps(self) -> tuple[Step, ...]:
        """The provider's steps without the run on the device."""
        return tuple(step for step in self.decision.steps if step.id != _ON_DEVICE[0])

    @property
    def model(self) -> str:
        """The package path of the model that is compiled."""
        return self._compiling.inputs[0]

    @property
    def binary(self) -> str:
        """The package path of the context binary."""
        return next(path for path in self._compiling.outputs if path.endswith(".bin"))

    @property
    def dlc(self) -> str:
        """The package path of the DLC, "" if none is made."""
        return next((path for path in self._compiling.outputs if path.endswith(".dlc")), "")

    @property
    def _compiling(self) -> Step:
        return next(step for step in self.decision.steps if step.id == "compile")

    def files(self, templates: Path | None) -> Iterator[PackageFile]:
        """The provider's files without the script for the device."""
        files = self.backend.render(self.prepared, self.decision, templates)
        return (file for file in files if file.path != _ON_DEVICE[1])

    def execute(self, package: Path, aids: Aids) -> Execution:
        """Compiles and emulates what can run here; the provider's proposal of another request is dropped."""
        return replace(self.backend.execute(package, self.prepared, self.decision, aids), instead=None)


def prepare_provider(situation: Situation, carried: Carried, shared: SharedWork, *, dlc: bool) -> ProviderPart:
    """Has the provider's backend prepare the situation for a wheel; with ``dlc`` it also writes a DLC."""
    backend = load_backend(PROVIDER)
    own = situation.request.adapter_options
    same = {name: own[name] for name in _SHARED if name in own}
    request = replace(
        situation.request,
        backend=PROVIDER,
        sdk=carried.wheel.version,
        options=(),
        adapter_options=own_options(backend, {**same, "dlc": dlc}),
    )
    target = backend.resolve(carried.device, carried.wheel.version)
    return ProviderPart(
        backend=backend, prepared=backend.prepare(replace(situation, request=request, target=target), shared)
    )


def verify_provider(package: Path, manifest: Json) -> Verification:
    """The provider's verification, and whether this package's runtime loads the binary as one whole graph."""
    backend = load_backend(PROVIDER)
    judged = backend.verify(package, manifest)
    return replace(judged, checks=(*judged.checks, *_binary(backend, package, manifest)))


def _binary(backend: AnyBackend, package: Path, manifest: Json) -> Iterator[Check]:
    outputs = (path for step in manifest.get("steps", ()) if step["id"] == "compile" for path in step["outputs"])
    binary = next((package / path for path in outputs if path.endswith(".bin")), None)
    if binary is None or not binary.is_file():
        return
    try:
        told = backend.inspect(binary)
    except DeploykitError as error:
        # Without the vendor's library the binary cannot be read, which says nothing against it.
        yield Check("context-loads", ok=True, detail=f"not read: {error.why or error.what}")
        return
    target, sdk = manifest.get("target", {}), manifest.get("sdk", {})
    parts = judge_loading(told["release"], told["arch"], str(sdk.get("version")), str(target.get("arch") or ""))
    made = f"soc_model {told['soc_model']}, QNN API {told['core_api']}, blob {told['blob_version']}"
    words = "; ".join(part.why for part in parts)
    yield Check(
        "context-loads",
        ok=all(part.status is not Status.UNSUPPORTED for part in parts),
        detail=f"{made}: {words} (inferred: not loaded on a device)",
    )
    yield Check("context-whole", ok=told["graph_count"] == 1, detail=_graphs(told["graphs"], told["graph_count"]))


def _graphs(graphs: Iterable[Json], count: int) -> str:
    if count != 1:
        return f"{count} graphs in the binary: what lies between them is not in it"
    (graph,) = graphs
    names = {side: ", ".join(tensor["name"] for tensor in graph[side]) for side in ("inputs", "outputs")}
    return f"one graph, {graph['name']}: {names['inputs']} to {names['outputs']}"
