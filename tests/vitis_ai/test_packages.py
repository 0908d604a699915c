"""Packages of both product lines, made without Quark: what is in them, that they verify, and that their scripts run."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from deploykit.backend.backend import Request
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.packages.verifying import verify_package as verify
from deploykit_vitis_ai.runner import RESULT
from tables import each_row

DATA = Path(__file__).parents[1] / "data" / "quark"
POST = "/post/Slice,/post/Slice_1,/post/Sigmoid:/post/Concat_1"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(7)
    for i in range(4):
        np.save(folder / f"s{i}.npy", rng.random((1, 3, 64, 64), dtype=np.float32))
    return folder


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Callable[..., Packaged]:
    """A package, made once for whoever asks for the same; who changes one asks for a ``copy``."""
    made: dict[str, Packaged] = {}

    def package(target: str, precision: str | None = None, *, copy: Path | None = None, **options: Any) -> Packaged:
        values: dict[str, Any] = {"compile": False, "calibration": samples, "model": DATA / "fp32.onnx"} | options
        key = f"{target} {precision} {values}"
        if key not in made:
            made[key] = make_package(
                Request(target=target, precision=precision, **values), tmp_path_factory.mktemp("p") / "out"
            )
        found = made[key]
        return found if copy is None else replace(found, package=shutil.copytree(found.package or "", copy / "out"))

    return package


def read(packaged: Packaged, path: str) -> Any:
    assert packaged.package is not None
    return json.loads((packaged.package / path).read_text("utf-8"))


@each_row(
    ("target", "precision", "options"),
    ("vek385", "mixed", {"adapter_options": {"exclude_subgraph": (POST,)}}),
    ("vek385", "bf16", {"calibration": None}),
    ("vek385", "fp16", {}),
    ("xc2ve3304", None, {}),
    ("phoenix", "xint8", {"sdk": "1.7.1"}),
    ("krackan", "a16w8", {}),
    ("strix", None, {"model": DATA / "vint8.onnx"}),
)
def test_packages_of_both_product_lines_verify(
    make: Callable[..., Packaged], target: str, precision: str | None, options: dict[str, Any]
) -> None:
    packaged = make(target, precision, **options)
    assert packaged.package is not None, packaged.findings
    report = verify(packaged.package)
    assert report.ok, [check for check in report.checks if not check.ok]
    assert packaged.executed == () and "compile" in packaged.generated
    for path in packaged.package.rglob("*"):
        if path.parent.name == "scripts":
            assert os.access(path, os.X_OK) is (path.suffix != ".ps1")
        if path.suffix in (".json", ".py", ".sh", ".md", ".html"):
            assert str(DATA) not in path.read_text("utf-8")


def ran(packaged: Packaged, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A script of the package, in its folder."""
    argv = words if words[0].startswith("/") else (sys.executable, *words)
    place, given = packaged.package, {**os.environ, **env}
    return subprocess.run(argv, cwd=place, env=given, capture_output=True, encoding="utf-8", check=False)


def test_damage_is_found(make: Callable[..., Packaged], tmp_path: Path) -> None:
    from deploykit_vitis_ai import backend

    packaged = make("vek385", "vint8", copy=tmp_path)
    assert packaged.package is not None
    session = read(packaged, "config/session.json")
    session["provider_options"] |= {"cache_key": "other", "config_file": "config/lost.json"}
    session["not_for_production"] = True
    (packaged.package / "config/session.json").write_text(json.dumps(session))
    recipe = read(packaged, "config/quantize.json")
    recipe["attributes"] = {"enable_npu_cnn": False, "exclude_nodes": ["a"]}
    recipe |= {"quark": "0.12.post1", "extra_options": {"LWPUseHistogram": True, "AutoMixprecision": {"NumTarget": 1}}}
    recipe["calibration"]["files"].append("calibration/lost.npy")
    (packaged.package / "config/quantize.json").write_text(json.dumps(recipe))
    (packaged.package / "scripts/run.py").write_text("def broken(:\n")
    checks = backend.verify(packaged.package, {}).checks
    bad = [check.id for check in checks if not check.ok]
    files = ["cache-key", "random-data-marked", "provider-files"]
    assert bad == [*files, "script-syntax", "quark-options", "quark-mandatory", "calibration-files"]
    told = next(check.detail for check in checks if check.id == "quark-options")
    assert re.findall(r"(\w+): Quark would ignore it", told) == ["exclude_nodes", "LWPUseHistogram"]


def test_the_run_script_and_evaluate_agree_and_compile_misses_the_provider(
    make: Callable[..., Packaged], samples: Path, tmp_path: Path
) -> None:
    """run.py --cpu runs alone, and what it saves is what evaluate reads; four samples are few for it too."""
    packaged = make("strix", "bf16", copy=tmp_path)
    assert packaged.package is not None
    assert "DK621" in {finding.code for finding in packaged.findings}
    done = ran(packaged, "scripts/run.py", "--cpu", "--data", str(samples), "--out", "artifacts/outputs")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (packaged.package / "artifacts/outputs").iterdir()) == [f"s{i}.npz" for i in range(4)]
    assert np.load(packaged.package / "artifacts/outputs/s0.npz")["output0"].shape == (1, 8, 64)
    done = ran(packaged, "scripts/compile.py")
    assert done.returncode == 5 and "has no VitisAIExecutionProvider" in done.stderr


FAKE = """
    import pathlib, os
    __version__ = "0"
    def get_available_providers(): return ["VitisAIExecutionProvider", "CPUExecutionProvider"]
    class SessionOptions:
        def add_session_config_entry(self, key, value): pass
    class InferenceSession:
        def __init__(self, path, options=None, providers=None, provider_options=None):
            (given,) = provider_options
            assert providers == ["VitisAIExecutionProvider"]
            folder = pathlib.Path(given["cache_dir"]) / given["cache_key"]
            folder.mkdir(parents=True, exist_ok=True)
            text = os.environ.get("FAKE_SUMMARY", "")
            if text:
                (folder / "final-vaiml-pass-summary.txt").write_text(text)
"""
GOOD = "Number of operators offloaded by VAIML: 9 (100.000%)\nGOPs offloaded by VAIML: 1.5 (100.000%)\n"


@each_row(
    ("summary", "status", "told"),
    ("", 1, "nothing was compiled for the NPU"),
    ("Number of operators offloaded by VAIML: 0 (0.000%)", 1, "no operator runs on the NPU"),
    (GOOD + "Number of subgraphs with compilation errors (fall back to CPU): 2", 1, "2 subgraphs failed"),
    (GOOD, 0, ""),
)
def test_compile_judges_by_the_summary(
    make: Callable[..., Packaged], tmp_path: Path, summary: str, status: int, told: str
) -> None:
    """A stand-in for the provider returns without an error each time; only its summary differs."""
    packaged = make("vek385", "bf16", copy=tmp_path)
    assert packaged.package is not None
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/onnxruntime.py").write_text(textwrap.dedent(FAKE))
    done = ran(packaged, "scripts/compile.py", PYTHONPATH=str(tmp_path / "fake"), FAKE_SUMMARY=summary)
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert (packaged.package / "logs/compile.json").is_file()


def test_the_scripts_are_good_shell(make: Callable[..., Packaged]) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck is not installed")
    packaged = make("vek385", "vint8")
    assert packaged.package is not None
    done = ran(packaged, str(shellcheck), *map(str, (packaged.package / "scripts").glob("*.sh")))
    assert done.returncode == 0, done.stdout


def test_build_goes_on_where_it_stopped(make: Callable[..., Packaged], tmp_path: Path) -> None:
    packaged = make("vek385", "vint8", copy=tmp_path)
    assert packaged.package is not None
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$1" >> "$CALLS"\ncase "$1" in *compile.py) exit "$STATUS";; esac\n')
    python.chmod(0o755)
    calls = tmp_path / "calls"
    for status in ("3", "0"):
        script = str(packaged.package / "scripts/build.sh")
        done = ran(packaged, "/bin/bash", script, PYTHON=str(python), CALLS=str(calls), STATUS=status)
        assert done.returncode == (5 if status == "3" else 0), done.stderr
    assert calls.read_text().split() == ["scripts/quantize.py", "scripts/compile.py", "scripts/compile.py"]


def test_without_the_toolchain_the_package_says_that_nothing_ran(
    make: Callable[..., Packaged], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "none"))
    packaged = make("vek385", "vint8", compile=None)
    assert packaged.executed == () and "quantize" in packaged.generated
    (finding,) = [finding for finding in packaged.findings if finding.code == "VAI301"]
    assert finding.hint == "deploykit toolchain install quark==0.12.post1"
    assert packaged.package is not None and not (packaged.package / RESULT).exists()
    assert "toolchain" not in make("vek385", "bf16", compile=None, calibration=None).status.right.why
    right = make("vek385", "bf16", compile=None).status.right
    assert str(right.state) == "not judged" and "toolchain install quark==0.12.post1" in right.why
