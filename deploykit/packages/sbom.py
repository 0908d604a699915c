"""Writes the CycloneDX bill of materials of a package: inputs, deploykit, its libraries, the vendor's tools.

CycloneDX's own library writes the format (the extra ``sbom``). The content is that of the manifest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from deploykit.errors import ToolError
from deploykit.findings.records import Json
from deploykit.packages.manifests import json_text, sealed

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

__all__ = ["SBOM", "sbom_text"]

SBOM = "sbom.cdx.json"
_COMPUTES_WITH = ("click", "jinja2", "numpy", "onnx", "onnxruntime", "packaging", "protobuf")


def sbom_text(manifest: Json) -> str:
    """Return the document for a manifest; equal manifests give equal documents. Raises ToolError without the extra."""
    try:
        from cyclonedx.model.bom import Bom
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError:
        raise ToolError("--sbom needs cyclonedx-python-lib", next="pip install 'deploykit[sbom]'") from None
    bom = Bom(
        components=[*_inputs(manifest), *_libraries(manifest), *_vendor(manifest)],
        serial_number=uuid5(NAMESPACE_URL, sealed(manifest)[1]),
    )
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    # A package holds no timestamp, so that the same inputs give the same bytes.
    document.get("metadata", {}).pop("timestamp", None)
    return json_text(document)


def _inputs(manifest: Json) -> Iterator[Component]:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType

    named = Counter[str]()
    for row in manifest["inputs"]:
        kind = ComponentType.MACHINE_LEARNING_MODEL if row["role"] == "model" else ComponentType.DATA
        # For equal references the library would choose random suffixes, different each time.
        reference = f"{row['role']}:{row['name']}"
        named[reference] += 1
        again = f"#{named[reference]}" if named[reference] > 1 else ""
        yield Component(
            type=kind,
            name=row["name"],
            description=row["role"],
            bom_ref=f"{reference}{again}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=row["sha256"])],
        )


def _libraries(manifest: Json) -> Iterator[Component]:
    from importlib.metadata import PackageNotFoundError, version

    yield _tool("deploykit", manifest["deploykit"])
    for name in _COMPUTES_WITH:
        try:
            yield _tool(name, version(name))
        except PackageNotFoundError:
            continue


def _vendor(manifest: Json) -> Iterator[Component]:
    """Yield the SDK that the package is for, and the tools that the adapter recorded to have run."""
    from cyclonedx.model.component import Component, ComponentType

    sdk = manifest["sdk"]
    if sdk.get("version"):
        name = str(sdk.get("name") or "SDK")
        yield Component(type=ComponentType.APPLICATION, name=name, version=str(sdk["version"]), bom_ref=f"sdk:{name}")
    for key, value in sorted(manifest["record"].items()):
        if isinstance(value, Mapping) and isinstance(value.get("wheel"), str):
            yield Component(
                type=ComponentType.APPLICATION, name=f"{key} wheel", version=value["wheel"], bom_ref=f"run:{key}"
            )


def _tool(name: str, version: str) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    purl = PackageURL(type="pypi", name=name, version=version)
    return Component(type=ComponentType.LIBRARY, name=name, version=version, purl=purl, bom_ref=str(purl))
