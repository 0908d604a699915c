"""The tests of files, packages and the command line once more, where little is allowed and the locale knows no UTF-8.

No rights beyond the user's (root without its capabilities is refused what anybody is), no home, files that only the
user may read, and a temporary folder of its own. The whole suite in such surroundings: docs/contributing.md.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[2]
FILES: tuple[str, ...] = ("tests/cli/test_frame.py", "tests/model/test_external.py", "tests/packages/test_sbom.py")
FILES += ("tests/packages/test_writing.py", "tests/system/test_jobs.py", "tests/system/test_store.py")
LOCALES = {"C": "ascii", "de_DE.ISO-8859-1": "iso8859-1"}


def without_capabilities() -> list[str]:
    """Words before a command that take from root what other users do not have; none for other users."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root, and no setpriv to give up its capabilities with")
    return [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


@pytest.fixture(params=LOCALES)
def surroundings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The variables of a locale that is not UTF-8, and of a home that is nowhere."""
    if request.param != "C":
        name, _, charset = request.param.partition(".")
        compiler = shutil.which("localedef")
        (tmp_path / "locales").mkdir()
        made = str(tmp_path / "locales" / request.param)
        if compiler is None or subprocess.run([compiler, "-i", name, "-f", charset, made], check=False).returncode > 1:
            pytest.skip(f"the locale {request.param} cannot be made here")
    (tmp_path / "temporary").mkdir()
    given = {
        **dict.fromkeys(("PYTHONUTF8", "PYTHONCOERCECLOCALE"), "0"),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": request.param,
        "TMPDIR": str(tmp_path / "temporary"),
        "LOCPATH": str(tmp_path / "locales"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in (".", "backends", "templates")),
    }
    asked = "import codecs, locale; print(codecs.lookup(locale.getpreferredencoding(False)).name)"
    found = subprocess.run([sys.executable, "-c", asked], env=given, capture_output=True, encoding="ascii", check=True)
    assert found.stdout.strip() == LOCALES[request.param]
    return given


@pytest.mark.parametrize(
    ("words", "status"), [(("list",), 0), (("install", "htp==2.50.40"), 5), (("install", "quark"), 5)]
)
def test_a_home_that_may_not_be_looked_into(words: tuple[str, ...], status: int, tmp_path: Path) -> None:
    """Somebody else's: there are no toolchains then, and none can be installed."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    variables = {"PATH": os.environ["PATH"], "HOME": str(closed), "PYTHONPATH": ":".join(sys.path)}
    command = [*without_capabilities(), sys.executable, "-m", "deploykit", "toolchain", *words]
    done = subprocess.run(command, env=variables, capture_output=True, encoding="utf-8", check=False)
    closed.chmod(0o700)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert status == 0 or "may not be written to" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("doctor", "--clear-cache"), ("toolchain", "list"), ("compat", "lpbq"), ("doctor",)],
    ids=lambda words: words[0],
)
def test_a_user_whom_the_system_does_not_know_has_no_home(words: tuple[str, ...], tmp_path: Path) -> None:
    """As where a container runs under a number that nobody has: what would be kept is not."""
    code = "import pwd, sys\n"
    code += "def unknown(number): raise KeyError(number)\n"
    code += "pwd.getpwuid = unknown\n"
    code += "from deploykit.cli import main; main()"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0 or (done.returncode == 1 and words == ("doctor",)), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_suite_needs_neither_rights_nor_home_nor_utf_8(surroundings: dict[str, str], tmp_path: Path) -> None:
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--tb=short", *FILES]
    command = ["sh", "-c", 'umask 077; exec "$@"', "sh", *without_capabilities(), *pytest_]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, check=False)
    told = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, told[-6000:]
    assert " passed" in told.splitlines()[-1]
