"""What the tools count is read from their lines: how much the NPU takes, as part of a whole."""

from __future__ import annotations

import io

import pytest

from deploykit.answers.diagnosis import diagnose
from deploykit.cli.diagnose import diagnosis_text
from deploykit_vitis_ai.tables import known_errors as vitis_errors


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("[Vitis AI EP] No. of Operators :   CPU     2    NPU   398", (398, 400)),
        ("[Vitis AI EP] No. of Operators :   CPU   440", (0, 440)),
        ("[Vitis AI EP] No. of Operators :   CPU     8    NPU  2356 VITIS_EP_CPU    13", (2356, 2377)),
        ("[Vitis AI EP] No. of Operators :   CPU    41 MATMULNBITS   195  SSMLP    32", (227, 268)),
        ("[Vitis AI EP] No. of Operators :   CPU     2    IPU   398  99.50%", (398, 400)),
    ],
)
def test_how_many_operators_leave_the_cpu(line: str, counted: tuple[int, int]) -> None:
    diagnosis = diagnose(io.BytesIO(line.encode()), vitis_errors())
    assert diagnosis.numbers["operators-off-the-cpu"] == counted
    assert f"operators-off-the-cpu {counted[0]} of {counted[1]}" in diagnosis_text(diagnosis)


def test_the_last_summary_counts() -> None:
    log = b"No. of Operators :   CPU     2    NPU   398\nNo. of Operators :   CPU   400\n"
    assert diagnose(io.BytesIO(log), vitis_errors()).numbers["operators-off-the-cpu"] == (0, 400)


def test_a_line_without_numbers_counts_nothing() -> None:
    assert "operators-off-the-cpu" not in diagnose(io.BytesIO(b"No. of Operators : none"), vitis_errors()).numbers
