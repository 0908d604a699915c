"""The share of samples whose first output has its largest value at the label: an example of ``--metric``.

    deploykit … --data images.npz --metric accuracy:top1 --references labels.npz

``labels.npz`` holds one array of whole numbers, one per sample. Without ``--references`` the float model's own answers
are the labels, and the number is how often the quantized model agrees with it.
"""

from __future__ import annotations

import numpy as np


def top1(outputs, references):
    """Between 0 and 1; more is better."""
    right = 0
    for made, wanted in zip(outputs, references, strict=True):
        answer = next(iter(made.values())).argmax(axis=-1)
        label = next(iter(wanted.values()))
        label = label if np.issubdtype(label.dtype, np.integer) else label.argmax(axis=-1)
        right += float(np.mean(answer.ravel() == label.ravel()))
    return right / len(outputs)
