"""Calibration data: what is read, what is refused by name, and which guideline each kind of bad data breaks."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict

from deploykit.accuracy.samples.calibration import load_calibration
from deploykit.accuracy.samples.data_quality import survey
from deploykit.accuracy.samples.data_rules import GUIDELINE_RULES, Survey
from deploykit.accuracy.samples.images import inspect_image
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.errors import InputError
from pictures import png
from rule_cases import check_pairs
from sums import flat
from told import check_file

IMAGES = (InputSpec(name="images", dtype="float32", shape=(1, 3, 4, 4)),)
RNG = np.random.default_rng(0)


def good(**changes: object) -> Survey:
    values: dict[str, object] = {"kind": "arrays", "origin": "data", "samples": 200, "neighbours": 0.1}
    return Survey(**{**values, **changes})  # type: ignore[arg-type]


CASES: dict[str, tuple[Survey, Survey]] = {
    "DK621": (good(samples=99), good(samples=100)),
    "DK622": (good(samples=0), good()),
    "DK623": (good(unusable=(("a.npy", "damaged", ""),)), good()),
    "DK624": (good(identical=(("a", "b"),)), good()),
    "DK625": (good(neighbours=0.951, samples=8), good(neighbours=0.95, samples=8)),
    "DK627": (Survey(kind="random", origin="random data", samples=0), good()),
    "DK628": (good(constant=("a",)), good()),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, GUIDELINE_RULES)


def codes(folder: Path) -> set[str]:
    return {finding.code for finding in GUIDELINE_RULES.run(survey(load_calibration(folder), IMAGES))}


def save(folder: Path, count: int, name: str = "s{:03}") -> None:
    for i in range(count):
        np.save(folder / f"{name.format(i)}.npy", RNG.random((1, 3, 4, 4), dtype=np.float32))


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    save(tmp_path, 119)
    (tmp_path / "s118.npy").rename(tmp_path / "CAPITALS.NPY")
    (tmp_path / "s.webp").write_bytes(b"RIFF")
    np.save(tmp_path / "turned.npy", np.zeros((1, 4, 4, 3), np.float32))
    np.savez(tmp_path / "renamed.npz", image=np.zeros((1, 3, 4, 4), np.float32))
    np.save(tmp_path / "words.npy", np.full((1, 3, 4, 4), "x"))
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01")
    data = load_calibration(tmp_path)
    assert data.unused == ("s.webp",)
    found = survey(data, IMAGES)
    reasons = {file: why for file, why, _ in found.unusable}
    assert set(reasons) == {"turned.npy", "renamed.npz", "words.npy", "torn.npy"}
    assert "[1, 4, 4, 3]" in reasons["turned.npy"] and "'images'" in reasons["renamed.npz"]
    assert found.samples == 119


def test_rows_of_features_are_no_film(tmp_path: Path) -> None:
    """Columns of unlike size make all rows alike; of pictures the same says that they follow each other."""
    rows = np.array([1000, 1, 20, 3], np.float32) + RNG.random((20, 1, 4), dtype=np.float32)
    for shape, alike in (((1, 4), None), ((1, 1, 2, 2), 1.0)):
        np.save(tmp_path / "rows.npy", rows.reshape(20, *shape[1:]))
        found = survey(load_calibration(tmp_path), (InputSpec(name="x", dtype="float32", shape=shape),))
        assert (found.samples, found.neighbours) == (20, alike and pytest.approx(alike, abs=0.01))


def test_what_a_survey_tells_of_arrays(tmp_path: Path) -> None:
    """A shape, and the values of each sample, which is a file."""

    def told(question: str) -> list[str]:
        shape, *samples = question.split("; ")
        spec = InputSpec(name="x", dtype="float32", shape=tuple(None if d == "?" else int(d) for d in shape.split("x")))
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        for at, values in enumerate(samples):
            one = np.fromstring(values, np.float32, sep=" ")
            np.save(folder / f"{at}.npy", one.reshape([dim or -1 for dim in spec.shape]))
        found = asdict(survey(load_calibration(folder), (spec,)))
        return [flat({name: value for name, value in found.items() if name != "origin" and value != ()}, 3)]

    check_file(Path(__file__).with_name("surveys.told"), told)


@pytest.mark.parametrize(("gap", "said"), [(20, {"DK625"}), (4, set())])
def test_frames_of_images_are_noticed_by_name(gap: int, said: set[str], tmp_path: Path) -> None:
    (tmp_path / "calibration.toml").write_text("schema = 1\nwidth = 4\nheight = 4\n")
    for number in [number for number in range(160) if number % gap][:120]:
        (tmp_path / f"frame_{number:05}.png").write_bytes(plain(4, 4 + number))
    assert codes(tmp_path) == said


def test_copies_constants_and_nan_are_named(tmp_path: Path) -> None:
    save(tmp_path, 120)
    (tmp_path / "copy.npy").write_bytes((tmp_path / "s000.npy").read_bytes())
    np.save(tmp_path / "black.npy", np.zeros((1, 3, 4, 4), np.float32))
    np.save(tmp_path / "infinite.npy", np.full((1, 3, 4, 4), np.inf, np.float32))
    assert codes(tmp_path) == {"DK624", "DK628"}
    np.save(tmp_path / "nan.npy", np.full((1, 3, 4, 4), np.nan, np.float32))
    assert codes(tmp_path) == {"DK623", "DK624", "DK628"}, "no quantizer is run on NaN"


def test_labels_count(tmp_path: Path) -> None:
    save(tmp_path, 120)
    rows = [f"s{i:03}.npy,{'rare' if i < 4 else 'often'}" for i in range(120)]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    told = {
        "kind": "arrays",
        "origin": tmp_path.name,
        "samples": 120,
        "unusable": [],
        "labels": {"rare": 4, "often": 116},
    }
    assert survey(load_calibration(tmp_path, IMAGES), IMAGES).to_json() == told


def plain(width: int, height: int) -> bytes:
    return png(np.zeros((height, width, 3), np.uint8))


JPEG = b"\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x0b\x08\0\x10\0\x20\x01\x01\x11\0\xff\xda\0\2data\xff\xd9"


@pytest.mark.parametrize("whole", [plain(6, 5)[:-8], JPEG], ids=["png", "jpeg"])
def test_a_cut_image_is_refused(tmp_path: Path, whole: bytes) -> None:
    for length in range(len(whole)):
        (tmp_path / "x").write_bytes(whole[:length])
        with pytest.raises(InputError):
            inspect_image(tmp_path / "x")


def test_what_arrays_hold_outweighs_how_they_are_called(tmp_path: Path) -> None:
    save(tmp_path, 120, name="frame_{:05}")
    assert codes(tmp_path) == set()
