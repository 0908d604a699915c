"""Rules about kernels that were run by themselves. Codes QNN321 to QNN326."""

from __future__ import annotations

import shlex

from deploykit.backend.opinions import Audit, AuditedKernel
from deploykit.findings import Severity
from deploykit.findings.records import Record, replace
from deploykit.findings.rules import Finds, Found, Registry

__all__ = ["BACKWARD", "BEYOND", "COUNT_RULES", "OFTEN", "RULES", "Counted"]

BACKWARD = "indices below zero"
"""The one possible cause of a wrong kernel: such indices count from the end of an axis. Few models get any."""
BEYOND = "sums beyond the grid"
"""The file cuts off each sum that leaves its grid, a kernel continues with the full sum. Calibrated sums stay
within.
"""
OFTEN = 0.05
"""The share of far-off values above which a kernel counts as wrong even if calibrated inputs show nothing."""

_LAB = "the emulator of the compiler named in the message, against ONNX Runtime on the CPU without optimisations"

RULES = Registry[Audit]("audit", sources=(_LAB,))


@RULES.rule("QNN321", "kernel-wrong", "error")
def check_wrong(audit: Audit) -> Finds:
    """A kernel of this model, run by itself over its whole grid, computes something else than the model says.

    The compiler says nothing of it; whether the outputs of the model show it depends on what it is given.

    Fix: rewrite the operator, give its result another range, or leave it in float
    """
    # Alone or among its neighbours; less than an error if only inputs show it that few models get.
    wrong = [kernel for kernel in audit.kernels if kernel.verdict == "wrong"]
    alone = {kernel.node for kernel in wrong if kernel.place == "alone"}
    for kernel in wrong:
        if kernel.place == "alone" or kernel.node not in alone:
            found = _found(kernel, audit, f"wrong in {_where(kernel)}")
            # A fault beyond calibrated sums matters only if it is frequent.
            seldom = kernel.shown_by == BEYOND and kernel.measured.get("share", 0.0) <= OFTEN
            milder = Severity.INFO if seldom else Severity.WARNING
            yield replace(found, severity=milder) if kernel.shown_by else found


@RULES.rule("QNN322", "kernel-narrowed", "warning")
def check_narrowed(audit: Audit) -> Finds:
    """A 16-bit kernel of this model, run by itself, has the precision of about 8 bits.

    The compiler converts inside of it, without a word.

    Fix: accept it, or give the tensor another type
    """
    for kernel in audit.kernels:
        if kernel.verdict == "narrowed" and kernel.place == "alone":
            yield _found(kernel, audit, f"narrowed in {kernel.type}")


@RULES.rule("QNN323", "kernel-refused", "warning")
def check_refused(audit: Audit) -> Finds:
    """A kernel of this model is not taken when it is compiled by itself, or with its neighbours, each of which is.

    In the whole model it may be taken, where ONNX Runtime makes one operator of several; the compilation says.

    Fix: look at what the compilation of the whole says (ORT100 and later)
    """
    # Kernels refused alone and among their neighbours; and neighbours refused together, each of which is taken alone.
    # Not those that are taken with a further neighbour: there only the border's type was refused, such as bool.
    taken = [kernel for kernel in audit.kernels if kernel.verdict != "refused"]
    refused = [kernel for kernel in audit.kernels if kernel.verdict == "refused"]
    known, longer = {kernel.node for kernel in taken}, {kernel.operators for kernel in taken}
    alone = {operator for kernel in refused if kernel.place == "alone" for operator in kernel.operators}
    for kernel in refused:
        run = kernel.operators
        parts = (one[start : start + len(run)] for one in longer for start in range(len(one)))
        together = alone.isdisjoint(run) and run not in parts
        if kernel.node not in known if kernel.place == "alone" else together:
            yield _found(kernel, audit, f"refused in {_where(kernel)}")


@RULES.rule("QNN324", "kernels-left-out", "info")
def check_left_out(audit: Audit) -> Finds:
    """Not every kernel of this model was run by itself: as many as are soon done were, the suspect ones first.

    Nothing was measured of the others; what the atlas says of them stands.

    Fix: --kernels full runs all of them
    """
    if audit.left_out:
        of = audit.left_out + len(audit.kernels)
        yield Found(
            "model",
            "model",
            f"{audit.left_out} of {of} kernels were not run by themselves, of which nothing is known",
            evidence={"left_out": audit.left_out, "of": of},
        )


@RULES.rule("QNN326", "steps-grow", "info")
def check_grown(audit: Audit) -> Finds:
    """Operators that are right one by one are off what the file says together: a step of one grows in the next.

    Kernels round elsewhere than the file does. What that grows to the file's own rounding grows to as well: the float
    model judges both, and the numbers say how far either is off it.

    Fix: give the tensor between them 16 bits where that is too far
    """
    # Kernels among neighbours for which both were compared with the float model.
    for kernel in audit.kernels:
        if kernel.verdict == "right" and "from_float" in kernel.measured:
            file, own = kernel.measured["file_from_float"], kernel.measured["from_float"]
            most = f"up to {kernel.measured['most']:.4g} of {kernel.measured['span']:.4g} steps off the file"
            told = f"{most}; {own:.4g} steps off the float model, off which the file is {file:.4g}"
            yield _found(kernel, audit, f"right alone, as {' > '.join(kernel.operators)} {told}")


def _where(kernel: AuditedKernel) -> str:
    return kernel.type if kernel.place == "alone" else f"{kernel.type}, as {' > '.join(kernel.operators)}"


def _way_out(kernel: AuditedKernel) -> str:
    """The ways that were tried and are right, the package's choice first; ""
    without a trial, so that the rule's text counts.
    """
    ways = [f"with no {kernel.shown_by} it is right, as measured"] if kernel.shown_by else []
    for name, _, told in (way.partition(" (") for way in kernel.ways or ()):
        ways.append(f"--repair {shlex.quote(f'{kernel.node}={name}')} ({told}: right, as measured")
    if kernel.ways is None or ways:
        return "; ".join(ways)
    return "write it with other operators: in no way that is known is it right"


def _found(kernel: AuditedKernel, audit: Audit, verdict: str) -> Found:
    operator = kernel.operators[0 if kernel.place == "alone" else len(kernel.operators) // 2]
    more = f", and {kernel.count - 1} more of the same" if kernel.count > 1 else ""
    return Found(
        "node",
        kernel.node,
        f"{operator} {kernel.node}{more}: {verdict}{': ' if kernel.why else ''}{kernel.why}",
        hint=_way_out(kernel),
        sources=(audit.by,),
        evidence={"verdict": kernel.verdict, "place": kernel.place, "type": kernel.type, **kernel.measured},
    )


_VERDICTS = ("right", "wrong", "narrowed", "refused", "not judged")


class Counted(Record):
    """An audit that is part of a larger result, and how many nodes have a repair way."""

    audit: Audit
    otherwise: int = 0


COUNT_RULES = Registry[Counted]("audit-count", sources=(_LAB,))


@COUNT_RULES.rule("QNN325", "kernels-run", "info")
def check_count(scope: Counted) -> Finds:
    """So many kernels of this model were run by themselves, over all that their grids hold, with these verdicts.

    It says how much of the model was looked at: a kernel that was not run is right only as far as anyone knows.

    Fix: 'deploykit check --kernels full' runs all, and lists those that are not right
    """
    # The counts by verdict do not depend on whether a kernel was run now or before.
    audit = scope.audit
    counts = {word: audit.counts[word] for word in _VERDICTS if word in audit.counts}
    if not audit.kernels:
        return
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    more = f"; {scope.otherwise} done in another way" if scope.otherwise else ""
    left = f"; {audit.left_out} left out (QNN324)" if audit.left_out else ""
    plural = "" if len(audit.kernels) == 1 else "s"
    yield Found(
        "model",
        "model",
        f"{len(audit.kernels)} kernel{plural} run on the emulator: {told}{more}{left}",
        sources=(audit.by,),
        evidence={"run": len(audit.kernels), **counts, "otherwise": scope.otherwise, "left_out": audit.left_out},
    )
