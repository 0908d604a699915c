"""A package in strange hands: every changed bit, planted artifacts, forged manifests, digests and signatures."""

import hashlib
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from deploykit.errors import DeploykitError, InputError, PackageError
from deploykit.packages.building import SCRIPT
from deploykit.packages.manifests import MANIFEST, read_manifest, sealed
from deploykit.packages.rejudging import judge_of
from deploykit.packages.verifying import verify_package
from deploykit.packages.writing import record_build
from text_models import text_model
from victims import run_here

FLIPS = 60


def refuses(package: Path, digest: str) -> bool:
    """Whether verification with the digest that was kept says no, in whatever way an answer may be given."""
    try:
        return not verify_package(package, expect_digest=digest).ok
    except DeploykitError as error:
        return error.exit_status == 6


def test_every_byte_of_the_manifest_counts(package: Path) -> None:
    """None is passed over, with whatever bit of it changed: the file must be what deploykit writes for what it says."""
    from deploykit.packages.manifests import parse_manifest

    data = bytearray((package / MANIFEST).read_bytes())
    unseen = []
    for position in range(min(len(data), 600)):
        data[position] ^= 1 << position % 8
        try:
            parse_manifest(bytes(data), where="m")
            unseen.append(position)
        except PackageError:
            pass
        data[position] ^= 1 << position % 8
    assert unseen == []


def test_models_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name, read, made in (("a", "y", "x"), ("b", "x", "y")):
        model = text_model(f"float[1,4] {read}", f"{made} = Relu ({read})", f"float[1,4] {made}")
        onnx.save(model, tmp_path / "model" / f"{name}.onnx")
    with pytest.raises(InputError, match="exists already"):
        judge_of(tmp_path, {})


def test_a_changed_bit_anywhere_is_found(package: Path) -> None:
    digest = str(read_manifest(package)["digest"])
    assert not refuses(package, digest)
    chance = random.Random(0)
    files = sorted(path for path in package.rglob("*") if path.is_file())
    for _ in range(FLIPS):
        path = chance.choice(files)
        before = path.read_bytes()
        data = bytearray(before)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert refuses(package, digest), path
        path.write_bytes(before)
    assert not refuses(package, digest)


def forge(package: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Change the manifest and seal it again, as whoever knows how can; the digest that it had."""
    manifest = read_manifest(package)
    digest = str(manifest["digest"])
    change(manifest)
    (package / MANIFEST).write_text(sealed(manifest)[0], "utf-8")
    return digest


def test_a_model_that_is_none_is_named_before_anything_reads_it(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed by somebody who knows how: the weights of one tensor are said to lie in a file without a name."""
    path = "model/model.onnx"
    model = onnx.load(package / path)
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    data = model.SerializeToString()
    (package / path).write_bytes(data)
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    forge(package, lambda m: m["files"][path].update(record))
    monkeypatch.setattr("deploykit.packages.verifying.load_backend", lambda _name: pytest.fail("the adapter was asked"))
    report = verify_package(package)
    assert [check.id for check in report.checks if not check.ok] == ["model-readable"]
    assert report.exit_status == 1


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no sdk": lambda m: m.update(sdk=None),
    "an empty step": lambda m: m.update(steps=[{}]),
    "steps that are a number": lambda m: m.update(steps=3),
    "a step without words": lambda m: m["steps"][0].update(argv=[]),
    "a step of numbers": lambda m: m["steps"][0].update(argv=[1, 2]),
    "no target": lambda m: m.update(target=None),
    "a target that is a list": lambda m: m.update(target=[]),
    "no backend": lambda m: m.update(backend=None),
    "another backend": lambda m: m.update(backend="vitis-ai"),
    "an unknown backend": lambda m: m.update(backend="../../etc"),
    "precision of numbers": lambda m: m.update(precision={"intended": {"a": 1}}),
    "status of numbers": lambda m: m.update(status={"compiled": 1, "numbers": [1], "samples": 3}),
    "a file above": lambda m: m["files"].update({"../x": {"bytes": 1, "sha256": "", "origin": ""}}),
    "a file of the root": lambda m: m["files"].update({"/etc/passwd": {"bytes": 1, "sha256": "", "origin": ""}}),
    "a record that is a text": lambda m: m["files"].update({"README.md": "x"}),
    "a negative size": lambda m: m["files"]["README.md"].update(bytes=-1),
    "executed numbers": lambda m: m.update(executed=[1]),
    "findings that are a text": lambda m: m.update(findings="x"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_manifest_is_an_answer(edit: str, package: Path) -> None:
    forge(package, EDITS[edit])
    for command in ("verify", "build"):
        ending = run_here(command, package)
        # What is not believed of the status is passed over: it says "not run" and "not judged" then.
        assert ending.status in ((0, 5) if edit == "status of numbers" else (1, 3, 4, 5, 6)), ending.output
        assert "Traceback" not in ending.output


CONTENTS = ("null", "[]", "3", '{"provider_options": 3}', '{"types": 3, "stored": 1, "strict": []}', "{", "")


@pytest.mark.parametrize("content", CONTENTS)
def test_a_configuration_of_another_shape_is_an_answer(content: str, package: Path) -> None:
    """With its hash brought up to date, so that the adapter has to read it."""
    import hashlib

    configs = sorted((package / "config").glob("*.json"))
    for path in configs:
        path.write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    names = [f"config/{path.name}" for path in configs]
    forge(package, lambda m: [m["files"][name].update(bytes=len(content), sha256=digest) for name in names])
    ending = run_here("verify", package)
    assert ending.status in (1, 3, 6), ending.output
    assert "Traceback" not in ending.output


def test_planted_artifacts_are_named_and_not_built_upon(package: Path) -> None:
    (package / "artifacts" / ".stamps").mkdir(parents=True)
    (package / "artifacts" / ".stamps" / "convert").write_text("made by hand")
    (package / "artifacts" / "model.bin").write_bytes(b"planted")
    told = run_here("verify", package)
    assert told.status == 0, told.output
    assert "artifacts/model.bin" in told.output
    digest = str(read_manifest(package)["digest"])
    assert run_here("verify", package, "--expect-digest", digest).status == 6
    built = run_here("build", package)
    assert built.status == 6, built.output
    assert "artifacts/.stamps/convert" in built.output


def test_what_a_build_recorded_is_vouched_for(package: Path) -> None:
    (package / "artifacts").mkdir()
    (package / "artifacts" / "model.bin").write_bytes(b"built")
    digest = str(record_build(package, ["convert"], package)["digest"])
    assert run_here("verify", package, "--expect-digest", digest).status == 0
    (package / "artifacts" / "model.bin").write_bytes(b"other")
    assert run_here("verify", package).status == 6


@pytest.mark.parametrize("mode", [0o755, 0o4644, 0o2644])
def test_a_file_that_can_suddenly_run_is_named(mode: int, package: Path) -> None:
    (package / "README.md").chmod(mode)
    ending = run_here("verify", package)
    assert ending.status == 6 and "files-modes" in ending.output


CHANGES: dict[str, Callable[[Path], object]] = {
    SCRIPT: lambda package: (package / SCRIPT).chmod(0o644),
    "config/more/": lambda package: (package / "config" / "more").mkdir(),
    "config/new.json": lambda package: (package / "config" / "new.json").write_text("{}"),
    "config/backend_config.json": lambda package: (package / "config" / "backend_config.json").unlink(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_another_file_gone_or_new_is_named(name: str, package: Path) -> None:
    CHANGES[name](package)
    ending = run_here("verify", package)
    assert ending.status == 6 and name in ending.output


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    for name in ("ours", "other"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / name)]
        subprocess.run(argv, check=True)
    key = (tmp_path / "ours.pub").read_text()
    (tmp_path / "signers").write_text(f'release@example.org namespaces="deploykit" {key}')
    return tmp_path


def sign(package: Path, key: Path, namespace: str = "deploykit") -> None:
    argv = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", namespace, str(package / MANIFEST)]
    subprocess.run(argv, check=True, capture_output=True)


def test_a_signature_of_an_allowed_signer(package: Path, keys: Path) -> None:
    signers = ("--allowed-signers", keys / "signers")
    assert run_here("verify", package, *signers).status == 6
    sign(package, keys / "ours")
    good = run_here("verify", package, *signers)
    assert good.status == 0, good.output
    assert "signed by release@example.org" in good.output
    (package / "artifacts").mkdir()
    (package / "artifacts" / "x").write_text("planted")
    assert run_here("verify", package, *signers).status == 6


def test_other_signatures_are_none(package: Path, keys: Path) -> None:
    signers = ("--allowed-signers", keys / "signers")
    sign(package, keys / "other")
    assert run_here("verify", package, *signers).status == 6
    (package / "manifest.json.sig").unlink()
    sign(package, keys / "ours", "git")
    assert run_here("verify", package, *signers).status == 6
    (package / "manifest.json.sig").unlink()
    sign(package, keys / "ours")
    forge(package, lambda m: m.update(route={"id": "other"}))
    assert run_here("verify", package, *signers).status == 6
