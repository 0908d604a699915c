from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema
import pytest

from deploykit_qualcomm.tables import DATA
from schemas import SCHEMAS, schema_texts, write_schemas
from tables import each_row


@each_row("name", sorted(SCHEMAS))
def test_every_data_file_fits_its_schema(name: str) -> None:
    pattern, schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    paths = sorted(DATA.glob(pattern))
    assert paths
    for path in paths:
        errors = [error.message for error in check.iter_errors(tomllib.loads(path.read_text(encoding="utf-8")))]
        assert errors == [], path


def test_a_wrong_row_does_not_fit() -> None:
    data = tomllib.loads((DATA / "sdks/2.33.0.toml").read_text(encoding="utf-8"))
    data["feature"][0]["confidence"] = "sure"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMAS["qualcomm-sdk"][1])


def test_writing_gives_the_same_files(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == schema_texts()
