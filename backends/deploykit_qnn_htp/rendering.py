"""Every file of a qnn-htp package: models, encodings, calibration data, configurations, scripts. It touches no disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.samples import read_samples
from deploykit.backend.backend import BytesFile, CopiedFile, JsonFile, PackageFile, Situation, TextFile, copied_model
from deploykit.backend.plans import Plan
from deploykit.errors import InputError
from deploykit.model.weights import whole_model
from deploykit_qnn_htp.lending import Lent
from deploykit_qnn_htp.parts import Part
from deploykit_qnn_htp.prepare import Prepared
from deploykit_qnn_htp.scripts import scripts

if TYPE_CHECKING:
    from deploykit_qnn_htp.draft import Candidate

__all__ = ["package_files"]


def package_files(prepared: Prepared, plan: Plan[tuple[Part, ...]], templates: Path | None) -> Iterator[PackageFile]:
    """The files of the package, one after the other, so that calibration data is never held as a whole."""
    situation, parts = prepared.situation, plan.details or ()
    yield from _external(parts)
    for part in parts:
        if part.lent is not None:
            yield from _lent(part.lent, situation, plan, templates)
            return
        yield from _models(situation, part)
        yield from _encodings(part)
        yield JsonFile(path=part.paths.types, value=_intended_types(part))
        yield from _calibration(part.draft.situation, part.candidate)
    for path, value in plan.configs.items():
        yield JsonFile(path=path, value=value)
    yield from scripts(situation, plan, parts, templates)


def _lent(
    lent: Lent, situation: Situation, plan: Plan[tuple[Part, ...]], templates: Path | None
) -> Iterator[PackageFile]:
    """The lender's package but for the device, where the binary is loaded as any other.

    Where the SDK compiles what the lender made, the script that builds is this backend's.
    """
    theirs = lent.files(templates)
    yield from (file for file in theirs if not (lent.dlc and file.path.startswith("scripts/build.")))
    for path in plan.configs.keys() - lent.decision.configs.keys():
        yield JsonFile(path=path, value=plan.configs[path])
    built = ("scripts/check_types.py", *(() if lent.dlc else ("scripts/build.sh",)))
    yield from (file for file in scripts(situation, plan, plan.details or (), templates) if file.path not in built)


def _external(parts: Sequence[Part]) -> Iterator[PackageFile]:
    """The files of weights that parts of a model cut by size read, each once. InputError for two of one name."""
    models = {part.paths.model for part in parts}
    found: dict[str, Path] = {}
    for part in parts:
        for file in part.draft.situation.model.external if part.context else ():
            place = str(PurePosixPath("model", file.location))
            if found.setdefault(place, file.path) != file.path or place in models:
                raise InputError(
                    f"{file.path}: another file of this package is called {file.location}",
                    next="save one of the models again, with another name for its data",
                )
    yield from (CopiedFile(path=place, source=source) for place, source in found.items())


def _models(situation: Situation, part: Part) -> Iterator[PackageFile]:
    if part.segment:
        data = whole_model(part.draft.situation.model.proto).SerializeToString(deterministic=True)
        yield BytesFile(path=part.paths.model, data=data)
    else:
        yield from copied_model(situation, part.paths.model)


def _encodings(part: Part) -> Iterator[PackageFile]:
    if part.conversion is None:
        return
    yield TextFile(path=part.paths.encodings, text=part.conversion.text)
    if part.conversion.float_tensors:
        yield JsonFile(
            path="encodings/float_tensors.json",
            value={"schema": 1, "float_tensors": sorted(part.conversion.float_tensors)},
        )


def _intended_types(part: Part) -> dict[str, Any]:
    """What ``check_types.py`` compares the converter's types with."""
    return {"schema": 1, "types": dict(sorted(part.precision.expected.items()))}


def _calibration(situation: Situation, candidate: Candidate) -> Iterator[PackageFile]:
    path = situation.request.calibration
    if path is None or not candidate.route.input_list:
        return
    lines = []
    for index, sample in enumerate(read_samples(path, situation.facts)):
        words = []
        for position, (name, values) in enumerate(sample.items()):
            file = f"calibration/sample_{index:05d}/input_{position}.raw"
            yield BytesFile(path=file, data=values.tobytes())
            words.append(f"{name}:={file}")
        lines.append(" ".join(words))
    yield TextFile(path="calibration/input_list.txt", text="\n".join(lines) + "\n")
