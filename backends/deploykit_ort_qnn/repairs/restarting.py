"""What an execution does about kernels that are wrong: the same package again, with nodes done in other ways.

It packages nothing: what is found is a request for the core to start again with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.backend.audits import Audit
from deploykit.backend.backend import Instead, Progress
from deploykit.backend.status import Right
from deploykit.model.nodes import label
from deploykit_ort_qnn.compiler import installed_wheel
from deploykit_ort_qnn.excerpts import PAIR
from deploykit_ort_qnn.hosts import Host
from deploykit_ort_qnn.kernel_bench import bench_of
from deploykit_ort_qnn.numbers import correctness
from deploykit_ort_qnn.prepare import Draft, whole_model
from deploykit_ort_qnn.repairs.driver import Repair, find_repairs
from deploykit_ort_qnn.repairs.trying import repairs_of
from deploykit_ort_qnn.repairs.ways import WAYS
from deploykit_ort_qnn.rules.audit import OFTEN
from deploykit_ort_qnn.rules.numerics import NumericScope
from deploykit_qualcomm.atlas.verdicts import Verdict

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["done_otherwise", "suspects_of", "wanted_repairs"]

_FEW = 12
_ABOUT = ("QNN320", "QNN321")
"""What is said of a node whose kernel is wrong."""


def wanted_repairs(
    draft: Draft, audit: Audit | None, numeric: NumericScope, host: Host | None, progress: Progress
) -> Instead | None:
    """Another request, with every node that is wrong and can be done otherwise; None where there is none.

    Under suspicion is what the audit found wrong (``suspects_of``), and the first node after which the emulator parts
    from the CPU; all of a few nodes where the outputs differ and none of them could be named.
    """
    wheel = installed_wheel() if host is None else dict(host.identity)
    if _is_off(draft) or draft.soc_model is None or wheel is None or draft.options.get("repair"):
        return None
    is_right = correctness(numeric).state is Right.YES
    suspects = set() if audit is None else suspects_of(audit, is_right=is_right)
    differs = numeric.device is not None and numeric.device.right is False
    if not suspects and not differs:
        return None
    model = whole_model(draft.situation) if draft.prepared is None else draft.prepared.model
    named = {numeric.first} if numeric.first else _if_few(model) if differs and not suspects else set()
    bench = bench_of(wheel, host, draft.soc_model, progress, "looking for another way")
    found = find_repairs(model, suspects | named, bench, named=named)
    return _restarted(draft, found) if found else None


def suspects_of(audit: Audit, *, is_right: bool) -> set[str]:
    """The nodes of wrong kernels; where the outputs are right on inputs that mean something, of those far off often.

    What is off at a few places of its grid that such inputs do not reach is told, and not worth a slower type.
    """
    wrong = [one for one in audit.kernels if one.verdict == Verdict.WRONG]
    if is_right:
        wrong = [one for one in wrong if one.measured.get("odd") or one.measured.get("share", 0.0) > OFTEN]
    return {name for one in wrong for name in (one.node, *one.nodes)}


def _if_few(model: ModelProto) -> set[str]:
    named = {label(node) for node in model.graph.node if node.op_type not in (*PAIR, "Constant")}
    return named if len(named) <= _FEW else set()


def _is_off(draft: Draft) -> bool:
    """True where kernels are not to be run by themselves."""
    return str(draft.options.get("audit", "off")) == "off"


def _restarted(draft: Draft, found: Sequence[Repair]) -> Instead:
    request = draft.situation.request
    words = tuple(f"{node}={repair.way}" for repair in found for node in repair.nodes)
    how = "; ".join(f"{one.operator} {', '.join(one.nodes)} is done in another way: {one.told}" for one in found)
    return Instead(
        request=replace(request, adapter_options={**request.adapter_options, "repair": words}),
        how=how,
        handles={("QNN321", node): one.told for one in found for node in one.nodes},
    )


def done_otherwise(draft: Draft) -> dict[tuple[str, str], str]:
    """What was said of nodes that are done in another way now."""
    repairs = repairs_of(draft.options)
    return {
        (code, node): f"it is done in another way: {WAYS[way].told}" for node, way in repairs.items() for code in _ABOUT
    }
