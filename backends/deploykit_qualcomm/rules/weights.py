"""Lint rules about the encodings of weights, biases and norm parameters. Codes QNN231, QNN236 to QNN238, QNN243 to
QNN249, QNN280 and QNN281, as far as they hold for every route to the HTP.
"""

from __future__ import annotations

import math

from deploykit.backend.backend import Situation
from deploykit.encodings.values import Affine, Lpbq
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.operators import Trait, ops
from deploykit_qualcomm.devices import capability, has, lacks
from deploykit_qualcomm.rules.constraints import constraint
from deploykit_qualcomm.rules.views import (
    about_encodings,
    arch,
    at_node,
    grid_of,
    linear_weights,
    nodes,
    option,
    quantized,
)

__all__ = ["RULES"]


_TOLERANCE = 1e-3  # scales are stored as float32, and rounding moves products of two by far less

RULES = Registry[Situation]("situation")


@RULES.rule("QNN231", "weights-16-bit", "error", constraint("w16-needs-v73").source)
def check_weights_16(situation: Situation) -> Finds:
    """16-bit weights on v68 or v69.

    Before v73 the HTP multiplies 16-bit activations by 8-bit weights only; 16-bit MatMul operands are taken with
    restricted steps (-0x8000 0x7F7F) and symmetric or per-row parameters.

    Fix: use 8-bit weights there, or a device with v73
    """
    # Weights of linear layers with 16 bits, if the architecture's table says no.
    if not lacks("a16w16", situation.target.device):
        return
    names = [
        name for _, name in linear_weights(situation) if (found := quantized(situation, name)) and found.bits == 16
    ]
    if names:
        yield about_encodings(
            situation, names, f"{len(names)} weights have 16 bits, which {arch(situation)} does not take"
        )


@RULES.rule(
    "QNN236",
    "lpbq-block-scale",
    "error",
    (
        *constraint("lpbq-integer-scale").source,
        "aimet-onnx 2.42.0 (writes 1 to 16)",
        "onnxruntime-qnn 2.7.0 (block scales of 16 compiled and run on the emulator)",
    ),
)
def check_block_scales(situation: Situation) -> Finds:
    """LPBQ whose integer block scales leave the range from 1 to 2**(decompressed - compressed) bits.

    A 4-bit weight expands to 8 bits by a factor of 1 to 16; AIMET writes 16 too, and the HTP compiler takes it.

    Fix: quantize with block scales of 1 to 16, as deploykit encodings convert --to lpbq does
    """
    for entry in situation.encodings or ():
        if isinstance(entry.value, Lpbq):
            scales, most = entry.value.block_scale, 1 << (entry.value.decompressed_bits - entry.value.bits)
            low, high = float(scales.min()), float(scales.max())
            if low < 1 or high > most:
                yield Found(
                    "tensor",
                    entry.name,
                    f"{entry.name}: block scales reach {low:g} to {high:g}, 1 to {most} can be stored",
                )


@RULES.rule("QNN237", "bfloat16", "warning", constraint("bf16").source)
def check_bfloat16(situation: Situation) -> Finds:
    """bfloat16 on a target that is not known to have it.

    Only v81 computes in bfloat16; ONNX Runtime's provider additionally demands soc_model 88 or more, which leaves
    SM8850 (87) out.

    Fix: use float16
    """
    # By the request, by entries, and by tensors of the model.
    wanted = situation.request.precision == "bf16" or option(situation, "htp_bf16_enable") == "1"
    entries = [entry.name for entry in situation.encodings or () if entry.dtype == "bfloat16"]
    tensors = [fact.name for fact in situation.facts.tensors.values() if fact.dtype == "bfloat16"]
    device = situation.target.device
    soc, gate = device.fact("soc_model"), capability("bf16_provider_soc_model", device=device)
    bound = None if gate is None or situation.target.backend != "ort-qnn" else gate.value
    taken = has("bf16", device) and (
        bound is None or (isinstance(soc, int) and isinstance(bound, int) and soc >= bound)
    )
    if (wanted or entries or tensors) and not taken:
        yield Found(
            "target",
            situation.target.device.id,
            f"{arch(situation) or 'an unknown architecture'} with soc_model {soc} is not known to have bfloat16",
            evidence={"tensors": entries or tensors},
        )


@RULES.rule("QNN238", "per-channel-asymmetric", "error", constraint("perchannel-symmetric").source)
def check_per_channel(situation: Situation) -> Finds:
    """Per-channel weights that are not symmetric.

    The HTP takes per-channel weights with offset 0 only.

    Fix: quantize the weights symmetrically (AIMET: a symmetric parameter scheme, as its htp configurations set)
    """
    # Entries with a channel axis and a zero point off the middle.
    import numpy as np

    names = []
    for _, name in linear_weights(situation):
        found, grid = quantized(situation, name), grid_of(situation, name)
        if found is None or found.granularity != "per-channel" or grid is None or grid.symmetric is True:
            continue
        middle = 0 if grid.signed else 1 << (grid.bits - 1)
        # Half a step off the middle is AIMET's symmetric grid with an even number of steps.
        if (np.abs(grid.zero_point - middle) > 0.5).any():
            names.append(name)
    if names:
        yield about_encodings(situation, names, f"{len(names)} per-channel weights are not symmetric")


@RULES.rule(
    "QNN243",
    "bias-scale",
    "warning",
    (*constraint("perchannel-symmetric").source, "qualcomm/aimet pull requests 3846 and 3870"),
)
def check_bias_scale(situation: Situation) -> Finds:
    """An int32 bias whose scale is not input scale times weight scale, or whose offset is not 0.

    The accumulator has exactly that scale; another one is requantized or ignored.

    Fix: export int32 biases with AIMET (export_int32_bias=True), or leave the bias out: deploykit derives it
    """
    # Every 32-bit bias entry, compared with the entries of input and weight.
    import numpy as np

    for node in nodes(situation, *ops(Trait.TAKES_BATCHNORM)):
        grids = [grid for name in node.inputs[:3] if name and (grid := grid_of(situation, name))]
        if len(grids) < 3 or grids[2].bits != 32:
            continue
        source, weight, bias = (np.asarray(grid.scale, np.float64).reshape(-1) for grid in grids)
        if source.size != 1 or (weight.size != bias.size and 1 not in (weight.size, bias.size)):
            continue
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = bias / (source[0] * weight)
        finite = ratios[np.isfinite(ratios)]
        worst = float(finite[np.argmax(np.abs(finite - 1))]) if finite.size else 1.0
        if abs(worst - 1) > _TOLERANCE:
            yield at_node(node, f"its bias scale is {worst:.4g} times input scale x weight scale", ratio=worst)


@RULES.rule(
    "QNN248",
    "norm-scale-signed-8-bit",
    "warning",
    ("user lab notes, QAIRT 2.48 on SM8750", "onnxruntime-qnn 2.3.0 to 2.7.0 run on Linux x86-64"),
)
def check_norm_scale(situation: Situation) -> Finds:
    """The scale of an RMS or layer normalization as signed 8-bit integers.

    A globally symmetric scheme makes it so, and the HTP refuses it (RmsNorm with SFIXED_POINT_8, code 3110). ONNX
    Runtime's provider refuses LayerNormalization with it when the bias is int32.

    Fix: keep symmetric weights to linear layers; give norm scales unsigned 8 or 16 bits
    """
    for node in nodes(situation, "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        found = quantized(situation, node.operand(1))
        if found is not None and found.dtype == "int8":
            yield at_node(node, f"its scale {node.inputs[1]} is int8, which the HTP refuses")


_SWAMPED = 1e6  # with 16 bits a step of 15, which is too coarse for any network


@RULES.rule(
    "QNN275",
    "swamped-grid",
    "warning",
    (
        "qualcomm/aimet#4102 (ranges up to 2.7e34)",
        "RT-DETRv2 topology with aimet-onnx 2.42.0: 807 pixels, 306 with anchors clamped to 20",
    ),
    cure=("simplify", "mask-constant"),
)
def check_swamped(situation: Situation) -> Finds:
    """An integer encoding with a range so wide that ordinary values all become one step.

    A mask or padding constant (1e30, 3.4e38) sets the range: every other value of the tensor is rounded away. On a
    detector the boxes were off by 807 pixels, while compiler and types were content.

    Fix: give --calibration, so that a mask or a constant that only saturates is clamped by itself, or clamp the
    constant before quantizing
    """
    # Activations and constants, by the largest magnitude of the grid.
    for entry in situation.encodings or ():
        if not isinstance(entry.value, Affine) or entry.value.bits > 16:
            continue
        most = max(map(abs, entry.value.ends))
        if most > _SWAMPED:
            yield Found(
                "tensor",
                entry.name,
                f"{entry.name}: its grid reaches {most:.3g}",
                evidence={"magnitude": most if math.isfinite(most) else None},
            )


@RULES.rule("QNN280", "signed-activations", "warning", "qualcomm/aimet#4090")
def check_signed_activations(situation: Situation) -> Finds:
    """Asymmetric activations on a signed grid.

    AIMET's force_activation_as='signed' is meant for other targets: on the HTP an Exp was refused with 0xc26.

    Fix: export with force_activation_as=None (symmetric signed, asymmetric unsigned) or 'unsigned' for 16 bits
    """
    # Entries of computed tensors that are signed and off-centre.
    names = []
    for entry in situation.encodings or ():
        stored = situation.facts.is_stored(entry.name) or entry.name not in situation.facts.tensors
        if stored or not isinstance(entry.value, Affine) or not entry.value.signed:
            continue
        if entry.value.symmetric is not True and (abs(entry.value.zero_point) > 0.5).any():
            names.append(entry.name)
    if names:
        yield about_encodings(situation, names, f"{len(names)} asymmetric activations are signed")
