"""Verifies a package on disk: every file against the manifest, the models, and the checks of the adapter.

It only reads, and never repairs; the only program it starts is ssh-keygen, to check who signed the manifest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_ISGID, S_ISUID

from deploykit.backend.backend import Check, Verification
from deploykit.backend.plugins import load_backend
from deploykit.backend.status import PackageStatus, status_of
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.errors import DeploykitError, InputError, PackageError, ToolError
from deploykit.findings import exit_status
from deploykit.findings.records import Json, Published, replace
from deploykit.model.load import load_model
from deploykit.packages.manifests import (
    BUILD_FOLDERS,
    MANIFEST,
    SIGNATURE,
    HashMemory,
    content_of,
    hash_file,
    list_files,
    read_manifest,
)
from deploykit.system.files import read_regular

__all__ = ["VerifyReport", "require_integrity", "verify_package"]

NAMESPACE = "deploykit"
"""The namespace of the signature by ``ssh-keygen -Y sign``: one made for mail or git does not count."""
_DIED = "of an earlier build, beside those of one that died ('deploykit build' ends it)"
_LARGEST_SIGNATURE = 64 << 10
_SIGNATURE_SECONDS = 30.0


class VerifyReport(Verification, Published):
    """The result: every check, the intended and actual types of tensors where both are known, and findings."""

    package: Path
    status: PackageStatus

    @property
    def ok(self) -> bool:
        """True if every check passed, no finding is an error, all types agree, and nothing is refused or wrong."""
        sound = all(check.ok for check in self.checks) and not exit_status(self.findings)
        return sound and not self.mismatches and self.status.good

    @property
    def mismatches(self) -> tuple[tuple[str, str, str], ...]:
        """The tensors whose actual type differs from the intended one: (name, intended, actual)."""
        rows = ((name, wanted, self.actual.get(name, wanted)) for name, wanted in sorted(self.intended.items()))
        return tuple(row for row in rows if row[1] != row[2])

    @property
    def exit_status(self) -> int:
        """0 if ok, 6 if a file is damaged, missing or extra, 1 for any other failure."""
        if self.ok:
            return 0
        return 6 if any(not check.ok and check.id in _INTEGRITY for check in self.checks) else 1

    def as_published(self) -> Json:
        """The JSON that ``deploykit verify --json`` prints."""
        mismatches = [{"tensor": name, "intended": wanted, "actual": got} for name, wanted, got in self.mismatches]
        return {
            "ok": self.ok,
            "status": self.status,
            "checks": self.checks,
            "precision": {"intended": self.intended, "actual": self.actual, "mismatches": mismatches},
            "findings": self.findings,
        }


_INTEGRITY = (
    "files-present",
    "files-unchanged",
    "files-of-one-build",
    "files-no-extra",
    "files-regular",
    "files-modes",
    "digest-expected",
    "signature",
)


def verify_package(
    package: Path,
    *,
    numerics: bool = False,
    expect_digest: str | None = None,
    allowed_signers: Path | None = None,
    witnessed: HashMemory | None = None,
) -> VerifyReport:
    """Verify one package folder. Raises PackageError if it has no readable manifest.

    ``numerics`` also runs the packaged models with their encodings on the recorded samples and judges them again.
    ``expect_digest`` is the digest that the manifest must have; ``allowed_signers`` is a file of people who may have
    signed it; None skips either check. With either one, build files that the manifest does not record are errors too.
    ``witnessed`` holds the hashes that this process computed while writing the files.
    """
    manifest = read_manifest(package)
    vouched = list[Check]()
    if expect_digest is not None:
        digest, wanted = manifest["digest"], expect_digest.strip().lower()
        same = digest.removeprefix("sha256:") == wanted.removeprefix("sha256:")
        told = digest if same else f"it is {digest}, not {expect_digest}"
        vouched.append(Check("digest-expected", ok=same, detail=told))
    if allowed_signers is not None:
        vouched.append(check_signature(package, allowed_signers))
    files = (*vouched, *_integrity(package, manifest["files"], strict=bool(vouched), seen=witnessed))
    status = status_of(manifest, content_of(manifest))
    if all(check.ok for check in files):
        files = (*files, *_models(package, manifest["files"]))
    if any(not check.ok for check in files):
        return VerifyReport(package=package, checks=files, status=status.damaged())
    backend = load_backend(str(manifest.get("backend")))
    try:
        judged = backend.verify(package, manifest)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        # Files that the adapter cannot read are damaged, even if they are sealed.
        raise PackageError(
            f"{package}: its files are not what {manifest.get('backend')} writes",
            why=f"reading them ended with {type(error).__name__}: {error}",
            next="make the package again",
        ) from error
    # Files that this process has just written need no parsing.
    encodings = () if witnessed is not None else _encodings(package, manifest["files"])
    checks = (*files, *encodings, *judged.checks)
    if numerics:
        from deploykit.packages.rejudging import rejudge

        check, right = rejudge(package, manifest)
        checks, status = (*checks, check), replace(status, right=right or status.right)
    return VerifyReport(
        package=package,
        checks=checks,
        intended=judged.intended,
        actual=judged.actual,
        findings=judged.findings,
        status=status,
    )


def verify_integrity(package: Path) -> tuple[Check, ...]:
    """Check only the files: each exists, is regular and unchanged, and there are no others, not even of a build."""
    return _integrity(package, read_manifest(package)["files"], strict=True, seen=None)


def require_integrity(package: Path, advice: str) -> None:
    """Raise PackageError with ``advice`` if the files of a package are not as recorded."""
    bad = "; ".join(f"{check.id}: {check.detail}" for check in verify_integrity(package) if not check.ok)
    if bad:
        raise PackageError(f"{package}: is not as it was made", why=bad, next=advice)


def _integrity(package: Path, files: Json, *, strict: bool, seen: HashMemory | None) -> tuple[Check, ...]:
    hashed = hash_file if seen is None else seen.hash
    found = set(list_files(package, with_empty=True))

    def linked(paths: Iterable[str]) -> list[str]:
        return sorted(path for path in paths if not path.endswith("/") and (package / path).is_symlink())

    # A link could point anywhere, so its target is never hashed.
    links = linked(found)
    missing = sorted(files.keys() - found)
    changed, odd, new, old = (list[str]() for _ in range(4))
    for path in sorted(files.keys() & found - set(links)):
        record = files[path]
        # A killed run may have left the page in its earlier state.
        known = [(row["bytes"], row["sha256"]) for row in (record, record.get("before")) if row]
        try:
            age = known.index(hashed(package / path, size=max(known)[0], follow=False))
            if len({*known}) > 1 and path.startswith(BUILD_FOLDERS[0]):
                (old if age else new).append(path)
        except (InputError, ValueError):
            changed.append(path)
        mode = (package / path).lstat().st_mode
        # A hash does not show changed execute, set-user or set-group permissions.
        if mode & (S_ISUID | S_ISGID) or bool(mode & 0o111) != record.get("executable", False):
            odd.append(path)
    # A folder may have become a link while its files were read.
    links = sorted({*links, *linked(list_files(package))})
    beside = sorted(found - files.keys())
    unrecorded = [path for path in beside if f"{path}/".startswith(BUILD_FOLDERS) and not path.endswith("/")]
    extra = [path for path in beside if not path.startswith(BUILD_FOLDERS)]
    extra += unrecorded if strict else []
    rows = (
        ("files-present", missing, f"{len(files)} files of the manifest are there", "missing"),
        ("files-regular", links, "no links", "symbolic links"),
        ("files-unchanged", changed, "every file has its recorded SHA-256", "changed"),
        ("files-of-one-build", old if new else [], "artifacts of one build", _DIED),
        ("files-modes", odd, "only what was made to run can run", "may run, or no longer, unlike recorded"),
        ("files-no-extra", extra, "no file beside the recorded ones", "not in the manifest"),
    )
    vouched = f"not recorded, so nothing vouches for them: {', '.join(unrecorded)}"
    return (
        *(
            Check(name, ok=not bad, detail=f"{word}: {', '.join(bad)}" if bad else good)
            for name, bad, good, word in rows
        ),
        Check("build-outputs", ok=True, detail=vouched if unrecorded else "no unrecorded build output"),
    )


def _models(package: Path, files: Json) -> Iterator[Check]:
    for path in sorted(files):
        if path.startswith("model/") and path.endswith(".onnx"):
            words, ok = path, True
            try:
                load_model(package / path)
            except DeploykitError as error:
                words, ok = f"{path}: {error.what}", False
            yield Check("model-readable", ok=ok, detail=words)


def _encodings(package: Path, files: Json) -> Iterator[Check]:
    """Check that the encodings file of each model can be read."""
    for path in map(Path, sorted(files)):
        beside = f"encodings/{path.stem}.json"
        if path.match("model/*.onnx") and beside in files:
            try:
                read, ok = read_encodings(package / beside), True
                words = f"{len(read)} entries, version {read.version}"
            except DeploykitError as error:
                words, ok = error.what, False
            yield Check("encodings-readable", ok=ok, detail=f"{beside}: {words}")


def check_signature(package: Path, allowed_signers: Path) -> Check:
    """Check whether anyone in ``allowed_signers`` (the format of ssh-keygen(1), ALLOWED SIGNERS) signed the manifest.

    Raises InputError for an unreadable list of signers, ToolError without ssh-keygen.
    """
    from deploykit.system.processes import run

    program = shutil.which("ssh-keygen")
    if program is None:
        raise ToolError("ssh-keygen is not installed", next="install OpenSSH's client (Debian, Ubuntu: openssh-client)")
    read_regular(allowed_signers)
    signature = package / SIGNATURE
    try:
        read_regular(signature, limit=_LARGEST_SIGNATURE)
    except InputError as error:
        return Check("signature", ok=False, detail=f"{SIGNATURE}: {error.why or 'the package is not signed'}")
    places = ["-f", str(allowed_signers.resolve()), "-s", str(signature.resolve())]
    found = run([program, "-Y", "find-principals", *places], timeout=_SIGNATURE_SECONDS)
    who = next((line for line in found.tail if line.strip()), "") if found.ok else ""
    if not who:
        return Check("signature", ok=False, detail=f"{SIGNATURE}: by nobody whom {allowed_signers.name} names")
    asked = ["-Y", "verify", "-I", who, "-n", NAMESPACE, *places]
    done = run([program, *asked], timeout=_SIGNATURE_SECONDS, given=read_regular(package / MANIFEST))
    told = f"signed by {who}" if done.ok else f"not by {who} for these bytes: {' '.join(done.tail)[:200]}"
    return Check("signature", ok=done.ok, detail=told)
