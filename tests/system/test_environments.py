"""Environments on disk: made in stages, resumed, found broken, locked, removed. The package is a local wheel."""

import fcntl
import json
import os
import platform
import re
import sys
import venv
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import fields
from packaging.specifiers import SpecifierSet

from deploykit.backend.toolchains import load_toolchains
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.cli.toolchain import known_toolchains
from deploykit.errors import InputError, ToolError, UnknownTargetError
from deploykit.system.environments import environment_of
from deploykit.system.installing import install, remove
from deploykit.system.processes import ProgramEnd
from deploykit.system.specs import Need, Stage, ToolchainSpec, select
from lent_pip import lend_pip
from stub_backend import NO_PACKAGES, a_toolchain
from tables import each_row
from told import check_file

THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def make_wheel(folder: Path) -> Path:
    wheel = folder / "tinytool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tinytool.py", "VALUE = 7\n#" + "x" * (2 << 20))
        archive.writestr("tinytool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinytool\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("tinytool-1.0.dist-info/WHEEL", tags)
        archive.writestr("tinytool-1.0.dist-info/RECORD", "")
    return wheel


def silent(line: str) -> None:
    del line


@pytest.fixture(autouse=True)
def lent_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    lend_pip(monkeypatch)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "tools"))
    return tmp_path / "tools"


@pytest.fixture
def tiny(tmp_path: Path, root: Path) -> ToolchainSpec:
    """Two stages; the second one fails until the file ``allowed`` exists."""
    wheel, allowed, runs = make_wheel(tmp_path), tmp_path / "allowed", tmp_path / "runs"
    program = (
        "import pathlib, sys, tinytool; "
        f"open({str(runs)!r}, 'a').write('x'); "
        f"sys.exit(0 if pathlib.Path({str(allowed)!r}).exists() else 'error: not allowed yet')"
    )
    return a_toolchain(
        (Stage(id="package", packages=(f"TinyTool @ {wheel.as_uri()}",)), Stage(id="probe", run=("-c", program)))
    )


def test_an_interrupted_installation_is_resumed_and_ends_ready(tiny: ToolchainSpec, tmp_path: Path) -> None:
    assert environment_of(tiny).state().state == "absent"
    with pytest.raises(ToolError) as failed:
        install(tiny, silent)
    assert "not allowed yet" in failed.value.why and "install.log" in failed.value.next
    partial = environment_of(tiny).state()
    assert (partial.state, partial.detail) == ("incomplete", "unfinished: probe")

    (tmp_path / "allowed").touch()
    news: list[str] = []
    state = install(tiny, news.append)
    assert state.state == "ready" and state.size_mb > 0
    assert not any("[1/2]" in line for line in news), "the finished stage ran again"
    assert any("[2/2] probe" in line for line in news)

    again: list[str] = []
    install(tiny, again.append)
    assert again == []
    assert (tmp_path / "runs").read_text() == "xx"
    changed = a_toolchain((tiny.stages[0], *NO_PACKAGES))
    assert environment_of(changed).state().detail == "unfinished: probe"
    for also in ({"constraints": ("a==1",)}, {"python": ">=3.10"}):
        assert environment_of(a_toolchain(tiny.stages, **also)).state().detail == "unfinished: package, probe"

    lost = next(environment_of(tiny).path.glob("venv/lib/python3*/site-packages/tinytool-1.0.dist-info"))
    lost.rename(tmp_path / "elsewhere")
    broken = environment_of(tiny).state()
    assert (broken.state, broken.detail) == ("broken", "packages are gone: tinytool")
    with pytest.raises(ToolError, match="is broken"):
        environment_of(tiny).require()

    environment_of(tiny).python.unlink()
    assert environment_of(tiny).state().detail == "its interpreter is gone"
    assert install(tiny, silent).state == "ready", "a broken environment is made anew"

    assert remove(tiny) is True and environment_of(tiny).state().state == "absent"
    assert remove(tiny) is False


def test_one_that_was_interrupted_while_it_was_made_is_made_again(root: Path) -> None:
    """Its interpreter is there before pip is: the same command has to go on from that."""
    tiny = a_toolchain(NO_PACKAGES)
    place = environment_of(tiny)
    venv.create(place.path / "venv", with_pip=False, symlinks=True)
    assert place.python.exists() and place.state().state == "incomplete"
    assert install(tiny, silent).state == "ready"


def test_the_second_of_two_processes_waits_and_says_so_in_a_log_too(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock is another process's until somebody waits; progress is silent without a terminal, this is not."""
    tiny = a_toolchain(NO_PACKAGES)
    root.mkdir()
    monkeypatch.setattr("deploykit.cli.toolchain.known_toolchains", lambda: (tiny,))
    with (root / ".tiny-1.0.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert environment_of(tiny).state().state == "installing"
        with pytest.raises(ToolError, match="another process"):
            environment_of(tiny).path.mkdir()
            remove(tiny)
        environment_of(tiny).path.rmdir()
        waits = iter((fcntl.LOCK_EX, fcntl.LOCK_UN))
        monkeypatch.setattr("deploykit.system.folders.time.sleep", lambda _: fcntl.flock(held, next(waits)))
        assert run(cli, ["toolchain", "install", "tiny"]) == 0
    assert environment_of(tiny).state().state == "ready"
    told = "tiny==1.0: another process is installing or removing it; waiting"
    assert capsys.readouterr().err.count(told) == 1


def test_choosing_a_version() -> None:
    known = [a_toolchain((Stage(id="a"),), version=version) for version in ("0.9", "0.11.10", "0.11.2", "0.12.post1")]
    known.append(a_toolchain((Stage(id="a"),), name="early", version="2.0rc1"))
    wanted = {"TINY": "0.12.post1", "early": "2.0rc1", "early>=1.9": "2.0rc1"}
    wanted |= {"tiny==0.11.2": "0.11.2", "tiny<0.11": "0.9", "tiny-0.11": "0.11.10"}
    assert {word: select(known, word).version for word in wanted} == wanted
    with pytest.raises(UnknownTargetError, match=r"no toolchain 'tiny-0\.1' is known"):
        select(known, "tiny-0.1")


def test_a_bad_specification_is_answered_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('schema = 1\nname = "x"\ncolour = "red"\n')
    with pytest.raises(InputError, match="colour"):
        load_toolchains(tmp_path, backend="b")
    with pytest.raises(ValueError, match="only lower-case"):
        a_toolchain((Stage(id="a"),), name="../evil")
    with pytest.raises(ValueError, match="stages need ids that differ"):
        a_toolchain((Stage(id="a"), Stage(id="a")))
    with pytest.raises(ValueError, match="belong to exactly one package"):
        Stage(id="a", packages=("x", "y"), hashes=("ab",))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["quark", "--target", "vek385"], "quark==0.12.post1"),
        (["--target", "vek385"], "quark==0.12.post1"),
        (["quark", "--target", "vek385", "--sdk", "6.2"], "quark==0.11.2"),
        (["aimet", "--target", "sm8650"], "aimet==2.42.0"),
        (["quark"], "quark==0.13"),
    ],
)
def test_the_version_that_a_target_wants_is_installed(
    words: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """Not the newest one, which its packages would not use."""
    installed: list[str] = []

    def instead(spec: ToolchainSpec, progress: object, *, anew: bool, waiting: object) -> object:
        installed.append(spec.id)
        return environment_of(spec).state()

    monkeypatch.setattr("deploykit.cli.toolchain.install", instead)
    assert run(cli, ["toolchain", "install", *words]) == 0
    assert installed == [wanted]


def locked_spec(wheel: Path, digest: str) -> ToolchainSpec:
    folder = wheel.parent
    (folder / "tiny.lock").write_text(f"tinytool @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    stage = Stage(id="package", packages=("tinytool==1.0",), lock="tiny.lock", lock_python=(THIS_PYTHON,))
    return a_toolchain((stage,), files=str(folder))


def test_a_lock_lets_in_what_has_its_hash_and_nothing_else(root: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with pytest.raises(ToolError, match="package: ended with status"):
        install(locked_spec(wheel, "0" * 64), silent)
    assert "DO NOT MATCH THE HASHES" in (root / "tiny-1.0" / "install.log").read_text("utf-8")
    good = locked_spec(wheel, sha256(wheel.read_bytes()).hexdigest())
    assert install(good, silent).state == "ready"
    (tmp_path / "tiny.lock").write_text("# another pin\n" + (tmp_path / "tiny.lock").read_text())
    assert environment_of(good).state().detail == "unfinished: package", "a changed lock makes its stage run again"


def test_without_a_hash_pins_decide(root: Path, tmp_path: Path) -> None:
    """A lock names the files of one kind of machine for some Pythons: elsewhere it would refuse every one."""
    wheel = make_wheel(tmp_path)
    (tmp_path / "other.lock").write_text("nothing==0 --hash=sha256:" + "0" * 64 + "\n")
    stage = Stage(id="p", packages=(f"tinytool @ {wheel.as_uri()}",), lock="other.lock", lock_python=("3.1",))
    news: list[str] = []
    assert install(a_toolchain((stage,), files=str(tmp_path)), news.append).state == "ready"
    assert any("hashes are known for Python 3.1 on linux-x86_64 only" in line for line in news)


LOCKED = [one for one in known_toolchains() if any(stage.lock for stage in one.stages)]


@each_row("one", *LOCKED)
def test_every_lock_pins_what_its_toolchain_pins(one: ToolchainSpec) -> None:
    """The two lists are one fact: the constraints count where no hash is known. It is for every Python allowed."""
    allowed = tuple(f"3.{minor}" for minor in range(11, 20) if SpecifierSet(one.python).contains(f"3.{minor}.0"))
    assert [stage.lock_python for stage in one.stages if stage.lock and stage.lock_python != allowed] == []
    pinned: set[str] = set()
    for stage in one.stages:
        if stage.lock:
            found = entries(Path(one.files, stage.lock).read_text("utf-8"))
            assert all(re.fullmatch(r"(--hash=sha256:[0-9a-f]{64}( |$))+", hashes) for hashes in found.values())
            pinned |= {pin.partition("+")[0] for pin in found}
        elif stage.hashes:
            pinned |= {pin.lower() for pin in stage.packages}
    assert pinned == {pin.lower() for pin in one.constraints}


def test_nothing_is_fetched_without_its_hash() -> None:
    """Whatever stage asks pip for packages has a lock or hashes; what a stage's program fetches has its own."""
    stages = [(one.id, stage) for one in known_toolchains() for stage in one.stages]
    assert [(name, s.id) for name, s in stages if s.packages and not s.lock + "".join(s.hashes)] == []


def entries(lock: str) -> dict[str, str]:
    """The hashes of each pin of a lock, as written, by the pin in small letters."""
    lines = re.sub(r" *\\\n *", " ", lock).splitlines()
    return {pin.lower(): hashes for pin, _, hashes in (line.partition(" ") for line in lines if line[:1] != "#")}


STAGE = {"id": "s", "packages": ("a", "b==2")}
MACHINE: dict[str, Any] = {"ends": (), "has": (), "free": 1000, "index": True, "kind": "linux-x86_64", "made": True}


def test_what_is_run_and_told_where_one_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``key=value`` of a stage, of its toolchain, or of the machine: programs that it ``has``, how those ``ends``."""
    (tmp_path / "x.lock").touch()
    spoken = {sys.executable: "PYTHON", THIS_PYTHON: "MINOR", platform.python_version(): "THIS"}

    def answer(question: str) -> list[str]:
        for text, word in spoken.items():
            question = question.replace(word, text)
        given = {key: json.loads(value) for key, _, value in (word.partition("=") for word in question.split())}
        on = {key: given.pop(key, usual) for key, usual in MACHINE.items()} | {"lost": given.pop("lost", "")}
        stage = Stage(**STAGE | {field.name: given.pop(field.name) for field in fields(Stage) if field.name in given})
        heard, ends = list[str](), list(on["ends"])

        def ran(arguments: Sequence[str], **_how: object) -> ProgramEnd:
            heard.append(" ".join(arguments))
            end, tail = ends.pop(0) if ends else 0, ("ERROR: one", "error: two", " Error: three", "error: four", "")
            return ProgramEnd(argv=(), returncode=end % 9, tail=tail * (end != 8), seconds=0.0, timed_out=end == 9)

        patches: dict[Any, Any] = {"shutil.which": lambda name: f"/bin/{name}" if name in on["has"] else None}
        patches |= {"shutil.disk_usage": lambda _: SimpleNamespace(free=on["free"] << 20)}
        patches |= {"sysconfig.get_platform": lambda: on["kind"], "deploykit.system.installing.run": ran}
        inside = {"run": lambda _, arguments, **how: ran(arguments, **how), "trouble": lambda _: on["lost"]}
        patches |= {f"deploykit.system.environments.Environment.{name}": value for name, value in inside.items()}
        for name, value in patches.items():
            monkeypatch.setattr(name, value)
        monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / str(abs(hash(question)))))
        monkeypatch.setenv("DEPLOYKIT_NO_EXTRA_INDEX", "" if on["index"] else "1")
        place = environment_of(
            a_toolchain((stage,), **{"constraints": ("a==1", "c==3"), "files": str(tmp_path), **given})
        )
        for path in ("venv/bin", f"venv/lib/python{THIS_PYTHON}", "stages") if on["made"] else ():
            (place.path / path).mkdir(parents=True)
            (place.path / "stages/venv.done").touch() if path == "stages" else (place.path / "venv/bin/python").touch()
        try:
            install(place.spec, lambda line: heard.append(f"told: {line}"))
            heard.append("finished" if place.finished(stage) else "not finished")
        except ToolError as error:
            heard += str(error).splitlines()
        heard += [f"{path.name}: {path.read_text()!r}" for path in sorted(place.path.glob("*.txt"))]
        for text, word in {str(place.path): "HERE", str(place.path.parent.parent): "THERE", **spoken}.items():
            heard = [line.replace(text, word) for line in heard]
        return heard

    check_file(Path(__file__).with_name("installing.told"), answer)


def test_a_program_inside_sees_only_what_is_installed_and_its_folder_is_measured(root: Path) -> None:
    place = environment_of(a_toolchain())
    place.python.parent.mkdir(parents=True)
    place.python.write_text('#!/bin/sh\necho "$PYTHONSAFEPATH $PYTHONNOUSERSITE $PYTHONPATH $(pwd) $*"\n')
    place.python.chmod(0o755)
    (place.path / "large").write_bytes(os.urandom(3 << 20))
    assert [place.run(("-c", "x"), cwd=cwd).tail for cwd in (None, root)] == [
        (f"1 1  {there} -c x",) for there in (place.path, root)
    ]
    assert (place.state().size_mb, place.state(with_size=False).size_mb) == (3, 0)


def test_one_that_is_not_there_is_asked_for(root: Path) -> None:
    with pytest.raises(ToolError) as absent:
        environment_of(a_toolchain(version="2.0")).require()
    told = f"the toolchain tiny==2.0 is absent\n  why: {root / 'tiny-2.0'}\n  next: run "
    assert str(absent.value) == f"{told}'deploykit toolchain install tiny==2.0'"


def test_what_a_toolchain_needs_of_the_system_is_found_or_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = (
        Need(name="shell", programs=("none", "sh"), install="?"),
        Need(name="own", programs=("no",), install="get it"),
    )
    place = environment_of(
        a_toolchain((Stage(id="s", run=("{root}", "{files}/a", "{shell}")),), needs=needs[:1], files="f")
    )
    assert place.arguments(place.spec.stages[0]) == (str(place.path), "f/a", needs[0].find())
    with pytest.raises(ToolError) as refused:
        environment_of(a_toolchain(needs=needs)).program("own")
    assert (refused.value.what, refused.value.next) == ("tiny==1.0 needs own, which is not installed", "get it")
    found = environment_of(a_toolchain(environment={"OWN": "{root}/x"})).variables
    assert found == {**dict.fromkeys(("PYTHONPATH", "VIRTUAL_ENV"), ""), "OWN": f"{place.path}/x"} | {
        "PYTHONNOUSERSITE": "1",
        "PYTHONUTF8": "1",
    }
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert environment_of(place.spec).path == Path("/cache/deploykit/toolchains/tiny-1.0")
    assert place.python == place.path / "venv/bin/python"
