"""The backend-extension files, a pair to prepare and a pair to run, made by the key table of the SDK version.

Every key is looked up first; a key that the table does not have for that version is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deploykit.backend.targets import nearest_names
from deploykit.errors import DefectError, UsageError
from deploykit.tables.capabilities import ConfigKey, SdkTable, Status
from deploykit.tables.devices import Device
from deploykit_qnn_htp.commands import Paths

__all__ = ["build_configs", "parse_settings"]

_LIBRARY = "libQnnHtpNetRunExtensions.so"
_OURS = ("backend_extensions.shared_library_path", "backend_extensions.config_file_path", "graphs[].graph_names")
_BOOLS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def parse_settings(options: Iterable[tuple[str, str]], sdk: SdkTable, device: Device) -> dict[str, Any]:
    """The ``--option KEY=VALUE`` pairs as values, by the paths of their keys. Raises UsageError for unsupported ones.

    A key may be written in full (``graphs[].vtcm_mb``), without brackets, or by its last part if that is unique.
    """
    settings = dict[str, Any]()
    for name, text in options:
        key = _find(name, sdk)
        # The text as the key's type; a wrong type, range or word is a UsageError.
        value = _typed(key, text)
        if key.range and not key.range[0] <= value <= key.range[1]:
            raise UsageError(f"--option {key.path}={text}: not in {key.range[0]} .. {key.range[1]}")
        if key.values and str(value) not in key.values:
            raise UsageError(f"--option {key.path}={text}: not one of {', '.join(key.values)}")
        settings[key.path] = value
    vtcm, asked = device.fact("vtcm_mb"), settings.get("graphs[].vtcm_mb")
    if asked is not None and isinstance(vtcm, int) and asked > vtcm:
        raise UsageError(
            f"--option graphs[].vtcm_mb={asked}: {device.name} has {vtcm} MB",
            why="a larger value makes a binary that does not load (error 5005)",
            next=f"at most {vtcm}, or 0 for the SoC's maximum",
        )
    soc = device.facts.get("soc_model")
    known = (None,) if soc is None else (soc.value, *soc.alternatives)
    for path in ("devices[].soc_model", "devices[].soc_id"):
        if path in settings and settings[path] not in known:
            raise UsageError(
                f"--option {path}={settings[path]}: the soc_model of {device.name} is {device.fact('soc_model')}",
                why="the QNN numbering is not the Android SoC id",
            )
    return settings


def _find(name: str, sdk: SdkTable) -> ConfigKey:
    wanted, keys = name.replace("[]", ""), {key.path.replace("[]", ""): key for key in sdk.config_keys}
    exact = keys.get(wanted)
    found = [exact] if exact is not None else [key for path, key in keys.items() if path.endswith(f".{wanted}")]
    if len(found) > 1:
        raise UsageError(f"--option {name}: means {' or '.join(key.path for key in found)}", next="write it in full")
    if not found:
        near = nearest_names(wanted, list(keys)) + nearest_names(wanted, [path.rpartition(".")[2] for path in keys])
        raise UsageError(
            f"--option {name}: no such key in the configuration of {sdk.sdk} {sdk.version}",
            next=f"did you mean {', '.join(dict.fromkeys(near[:3]))}?" if near else "see 'deploykit compat config'",
        )
    key = found[0]
    if key.path in _OURS:
        raise UsageError(f"--option {name}: deploykit sets {key.path} itself")
    if key.status is not Status.SUPPORTED:
        what = f"--option {name}: {key.path} is {key.status} in {sdk.sdk} {sdk.version}"
        instead = f"use {key.renamed_to}" if key.renamed_to else "leave it out, or use another SDK version"
        raise UsageError(what, why=key.note or key.contradicts, next=instead)
    return key


def _typed(key: ConfigKey, text: str) -> Any:
    kinds = {"object": dict, "list[string]": list, "list[int]": list, "list[object]": list}
    expected = f"JSON of type {key.type}"
    try:
        match key.type:
            case "string" | "enum":
                return text
            case "int":
                expected = "a whole number"
                value = int(text)
                if value < 0:
                    expected = "a number from 0 on"
                    raise ValueError
                return value
            case "bool":
                expected = "true or false"
                return _BOOLS[text.lower()]
            case _:
                value = json.loads(text)
                if key.type in kinds and not isinstance(value, kinds[key.type]):
                    raise ValueError
                return value
    except (ValueError, KeyError, RecursionError):
        if key.type == "unknown":
            return text
        example = f", for instance {key.example}" if key.example else ""
        raise UsageError(f"--option {key.path}={text}: {expected} is expected{example}") from None


def build_configs(
    settings: Mapping[str, Any],
    sdk: SdkTable,
    device: Device,
    paths: Paths,
    *,
    named: bool = True,
    graphs: Sequence[str] = (),
    prepares: bool = True,
) -> dict[str, Any]:
    """The four files by package path: outer and inner, for the context-binary generator and for the device.

    ``named`` is False if the graph's name is not known before a DLC is written. ``prepares`` is False if the generator
    does not run: then it gets no files, and a setting for it is a UsageError. ``graphs`` are the names of all graphs of
    a context with several: they share their weights.
    """
    names, vtcm = [*(graphs or [paths.graph])], device.fact("vtcm_mb")
    inner = {**({"graphs": [{"graph_names": names}]} if named else {}), "devices": [{}]}
    if len(names) > 1:
        _put(inner, sdk, "context.weight_sharing_enabled", True)
    _put(inner, sdk, "devices[].soc_model", device.fact("soc_model"))
    _put(inner, sdk, "devices[].dsp_arch", device.fact("arch"))
    if isinstance(vtcm, int) and named:
        # Without it one user measured 4 MB instead of the SoC's maximum.
        _put(inner, sdk, "graphs[].vtcm_mb", vtcm)
    inner_run = dict[str, Any]()
    _put(inner_run, sdk, "devices[].cores[].perf_profile", "burst")
    outer, outer_run = (
        {"backend_extensions": {"shared_library_path": _LIBRARY, "config_file_path": path}}
        for path in (paths.inner, paths.inner_run)
    )
    for path, value in settings.items():
        key = _find(path, sdk)
        if prepares and not named and path.startswith("graphs[]"):
            raise UsageError(f"--option {path}: the graph has no name before the DLC is written")
        if not prepares and key.phase == "prepare":
            raise UsageError(
                f"--option {path}: the context-binary generator does not run on this route",
                next="leave it out; the provider has options of its own (--backend ort-qnn)",
            )
        is_outer = key.file == "outer"
        if key.phase != "net-run":
            _place(outer if is_outer else inner, path, value)
        if key.phase != "prepare":
            _place(outer_run if is_outer else inner_run, path, value)
    files = {paths.outer: outer, paths.inner: inner} if prepares else {}
    return {**files, paths.outer_run: outer_run, paths.inner_run: inner_run}


def _put(target: dict[str, Any], sdk: SdkTable, path: str, value: Any) -> None:
    """Writes one of deploykit's own keys. Raises DefectError if the SDK's table does not list it."""
    key = sdk.key(path)
    if key is None or key.status is not Status.SUPPORTED:
        raise DefectError(f"{sdk.sdk} {sdk.version}: the table does not list the key {path}")
    _place(target, path, value)


def _place(target: dict[str, Any], path: str, value: Any) -> None:
    here = target
    *folders, last = path.split(".")
    for folder in folders:
        here = here.setdefault(folder[:-2], [{}])[0] if folder.endswith("[]") else here.setdefault(folder, {})
    here[last] = value
