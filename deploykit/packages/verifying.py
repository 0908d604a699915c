"""Judges a package on disk: every file as the manifest has it, a valid model, and what the adapter knows.

It reads and never repairs; starting programs is left to ``deploykit build``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deploykit.contract.backend import Check
from deploykit.contract.plugins import load_backend
from deploykit.contract.status import Status, status_from_json
from deploykit.errors import DeploykitError, PackageError
from deploykit.findings import Finding, exit_status
from deploykit.graph import load_model
from deploykit.packages.rejudging import Rejudged, rejudge
from deploykit.packages.writing import BUILD_FOLDERS, hash_file, list_files, read_manifest

__all__ = ["VerifyReport", "verify_integrity", "verify_package"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The judgement: every check, the intended and the actual types where both are known, and findings."""

    package: Path
    checks: tuple[Check, ...]
    intended: Mapping[str, str] = field(default_factory=dict)
    actual: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    status: Status = field(default_factory=Status)

    @property
    def ok(self) -> bool:
        """True when every check passed, no finding blocks, no type differs, and nothing is refused or wrong."""
        sound = all(check.ok for check in self.checks) and not exit_status(self.findings)
        return sound and not self.mismatches and self.status.good

    @property
    def mismatches(self) -> tuple[tuple[str, str, str], ...]:
        """Tensors whose actual type is not the intended one: (name, intended, actual)."""
        rows = ((name, wanted, self.actual.get(name, wanted)) for name, wanted in sorted(self.intended.items()))
        return tuple(row for row in rows if row[1] != row[2])

    @property
    def exit_status(self) -> int:
        """0 ok; 6 when a file is damaged, missing or extra; 1 for every other no."""
        if self.ok:
            return 0
        return 6 if any(not check.ok and check.id in _INTEGRITY for check in self.checks) else 1

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit verify --json``."""
        return {
            "ok": self.ok,
            "status": self.status.to_json(),
            "checks": [check.to_json() for check in self.checks],
            "precision": {
                "intended": dict(self.intended),
                "actual": dict(self.actual),
                "mismatches": [
                    {"tensor": name, "intended": wanted, "actual": got} for name, wanted, got in self.mismatches
                ],
            },
            "findings": [finding.to_json() for finding in self.findings],
        }


_INTEGRITY = ("files-present", "files-unchanged", "files-no-extra", "files-regular")


def verify_package(package: Path, *, numerics: bool = False) -> VerifyReport:
    """Judge one package folder; raises PackageError when it has no readable manifest.

    ``numerics`` simulates every packaged model with its encodings as well, on the recorded samples, and judges it anew.
    """
    manifest = read_manifest(package)
    files = _integrity(package, manifest["files"])
    recorded = manifest.get("status")
    status = status_from_json(recorded if isinstance(recorded, Mapping) else {})
    if any(not check.ok for check in files):
        return VerifyReport(package=package, checks=files, status=status.damaged())
    backend = load_backend(str(manifest.get("backend")))
    judged = backend.verify(package, manifest)
    again = rejudge(package) if numerics else Rejudged()
    return VerifyReport(
        package=package,
        checks=(
            *files,
            *_models(package, manifest["files"]),
            *judged.checks,
            *again.checks,
        ),
        intended=judged.intended,
        actual=judged.actual,
        findings=judged.findings,
        status=status if again.right is None else replace(status, right=again.right),
    )


def verify_integrity(package: Path) -> tuple[Check, ...]:
    """Only the files: each one there, regular, unchanged, and none beside them."""
    return _integrity(package, read_manifest(package)["files"])


def _integrity(package: Path, files: Mapping[str, Any]) -> tuple[Check, ...]:
    found = set(list_files(package))
    # A link could point anywhere, so what it names is never hashed.
    links = sorted(path for path in found if (package / path).is_symlink())
    missing = sorted(files.keys() - found)
    changed = sorted(p for p in files.keys() & found - set(links) if _differs(package / p, files[p]))
    extra = sorted(path for path in found - files.keys() if not path.startswith(BUILD_FOLDERS))
    unrecorded = [path for path in found - files.keys() if path.startswith(BUILD_FOLDERS)]
    return (
        _check("files-present", missing, f"{len(files)} files of the manifest are there", "missing"),
        _check("files-regular", links, "no links", "symbolic links"),
        _check("files-unchanged", changed, "every file has its recorded SHA-256", "changed"),
        _check("files-no-extra", extra, "no file beside the recorded ones", "not in the manifest"),
        Check(
            id="build-outputs",
            ok=True,
            detail=f"{len(unrecorded)} files under artifacts/ and logs/ are not in the manifest"
            if unrecorded
            else "no unrecorded build output",
        ),
    )


def _differs(path: Path, record: Any) -> bool:
    try:
        size, digest = hash_file(path)
    except OSError as error:
        raise PackageError(f"{path}: cannot be read", why=error.strerror or str(error)) from None
    return not isinstance(record, dict) or (size, digest) != (record.get("bytes"), record.get("sha256"))


def _check(identifier: str, bad: list[str], good: str, word: str) -> Check:
    return Check(id=identifier, ok=not bad, detail=f"{word}: {', '.join(bad)}" if bad else good)


def _models(package: Path, files: Mapping[str, Any]) -> Iterator[Check]:
    for path in sorted(files):
        if path.startswith("model/") and path.endswith(".onnx"):
            try:
                load_model(package / path)
            except DeploykitError as error:
                yield Check(id="model-readable", ok=False, detail=f"{path}: {error.what}")
            else:
                yield Check(id="model-readable", ok=True, detail=path)
