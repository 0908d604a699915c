"""Rules about models that are stored in float16: whether and how they become integers. They judge a draft."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit_vitis_ai.draft import Draft

__all__ = ["RULES"]

RULES: Registry[Draft] = Registry("draft")

_PAGE = 'AMD documentation page "Model Quantization", Vitis AI 6.2 (June 2026)'
_LAB = "observed with amd-quark 0.13, 0.12.post1 and 0.11.2 on Linux x86-64"


@RULES.rule(
    "VAI113",
    "float16-source",
    "error",
    what="The model is stored in float16.",
    why="Quark's ways to take float16 models mostly give files that ONNX Runtime rejects, or nothing at all; the "
    "compiler is documented for float32 models.",
    fix="Export the model in float32.",
    sources=[_LAB, _PAGE],
)
def check_float16(draft: Draft) -> Iterator[Found]:
    """A float16 source, handled where a valid way was observed for this Quark."""
    if draft.source != "float16":
        return
    way = draft.float16_way
    handled = None
    if draft.needs_quark and way is not None:
        what = "what is quantized" if draft.keep_float16 else "it"
        handled = f"quantize.py turns {what} into float32 first ({way.way} of {draft.toolchain})"
    yield Found(
        kind=SubjectKind.MODEL,
        name=draft.facts.model_name,
        message=f"float16 source for {draft.precision or 'no precision'}",
        handled=handled,
    )


@RULES.rule(
    "VAI284",
    "bundled-quark-and-float16",
    "warning",
    what="The model is stored in float16, and the vendor warns of that with the Quark that this release bundles.",
    why="Quantizing float16 models to int8 is a feature of Quark 0.12; an older one was seen to make nothing, or "
    "models that ONNX Runtime rejects, in most ways.",
    fix="Export the model in float32, or quantize with --option quark=0.12.post1.",
    sources=[_PAGE, _LAB],
)
def check_bundled_float16(draft: Draft) -> Iterator[Found]:
    """A float16 source for the very Quark that the vendor's page warns of."""
    release = draft.release
    if draft.source != "float16" or not draft.needs_quark or release is None or not release.float16_warning:
        return
    if draft.toolchain == release.toolchain:
        yield Found(
            kind=SubjectKind.SDK,
            name=f"{release.name} {release.version}",
            message=f"{release.float16_warning}; {draft.toolchain} is used here",
        )


@RULES.rule(
    "VAI285",
    "float16-not-kept",
    "error",
    what="What stays in float is to stay float16, and that is not possible here.",
    why="The model is none in float16, or nothing is left out of quantizing, or this Quark turns whole models only.",
    fix="Leave --keep-float16 out, or use --option quark=0.12.post1 with --precision mixed.",
    sources=[_LAB, "AMD Quark documentation, Shapeshifter: onnx_convert_fp16_to_fp32, subgraphs_to_include"],
)
def check_kept_float16(draft: Draft) -> Iterator[Found]:
    """The option without a model, a part, or a Quark for it."""
    if not draft.keep_float16:
        return
    wrong = (
        (draft.source != "float16", f"the model is {draft.source}"),
        (not draft.needs_quark or not draft.exclusions, "nothing of it stays in float beside integers"),
        (draft.float16_way is None, f"{draft.toolchain} turns whole models only"),
    )
    why = next((text for is_wrong, text in wrong if is_wrong), "")
    if why:
        yield Found(kind=SubjectKind.MODEL, name=draft.facts.model_name, message=f"--keep-float16: {why}")
