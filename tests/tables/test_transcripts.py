"""What is typed and what is printed: the transcripts of this folder, with devices of the reader's own."""

from collections.abc import Iterator

import pytest

from deploykit_qualcomm.devices import qualcomm_devices
from deploykit_vitis_ai.tables import devices
from transcripts import transcripts_of


def forget() -> None:
    qualcomm_devices.cache_clear()
    devices.cache_clear()


@pytest.fixture(autouse=True)
def own_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the folder ``devices``; a process reads it once."""
    monkeypatch.setenv("DEPLOYKIT_DEVICES", "devices")
    forget()
    yield
    forget()


test_transcript = transcripts_of(__file__)
