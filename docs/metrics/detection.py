"""Mean average precision at an overlap of 0.5 against a folder of label files: an example of ``--metric``.

    deploykit … --data images.npz --metric detection:mean_average_precision --references labels/

One text file per sample, in the order of the data, one object per line: ``class x1 y1 x2 y2`` in pixels. The model
gives ``boxes`` (objects x 4, corners in pixels), ``scores`` (objects) and ``labels`` (objects); rename them below.
"""

from __future__ import annotations

import numpy as np

BOXES, SCORES, LABELS = "boxes", "scores", "labels"
OVERLAP = 0.5


def mean_average_precision(outputs, references):
    """Between 0 and 1; more is better. Classes without any object in the labels do not count."""
    truth = [np.loadtxt(path, ndmin=2) if path.stat().st_size else np.zeros((0, 5)) for path in references]
    classes = sorted({int(row[0]) for rows in truth for row in rows})
    return float(np.mean([_average_precision(kind, outputs, truth) for kind in classes])) if classes else 0.0


def _average_precision(kind, outputs, truth):
    """The area under precision over recall, precision made falling, as in PASCAL VOC from 2010 on."""
    found = []
    for sample, made in enumerate(outputs):
        boxes, scores = made[BOXES].reshape(-1, 4), made[SCORES].reshape(-1)
        chosen = made[LABELS].reshape(-1) == kind
        found += [(float(score), sample, box) for score, box in zip(scores[chosen], boxes[chosen], strict=True)]
    wanted = [rows[rows[:, 0] == kind][:, 1:] for rows in truth]
    taken = [np.zeros(len(rows), bool) for rows in wanted]
    hits = []
    for _, sample, box in sorted(found, key=lambda item: -item[0]):
        overlaps = _overlaps(box, wanted[sample])
        best = int(overlaps.argmax()) if len(overlaps) else -1
        hit = best >= 0 and overlaps[best] >= OVERLAP and not taken[sample][best]
        if hit:
            taken[sample][best] = True
        hits.append(hit)
    right = np.cumsum(hits) if hits else np.zeros(0)
    recall = right / sum(map(len, wanted))
    precision = right / np.arange(1, len(hits) + 1)
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * falling))


def _overlaps(box, others):
    """Intersection over union of one box with each of some others."""
    corner = np.maximum(box[:2], others[:, :2])
    sides = np.clip(np.minimum(box[2:], others[:, 2:]) - corner, 0, None)
    shared = sides.prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod()
    return shared / np.maximum(areas - shared, 1e-9)
