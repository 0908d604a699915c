"""Recognises files that are not ONNX by their first bytes, so that a refusal can say what they are.

It only looks at bytes it is given and never fails.
"""

from __future__ import annotations

__all__ = ["name_format"]

_PREFIXES = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint, an .npz file or a packed model)"),
    (b"\x80\x02", "a Python pickle (an old PyTorch checkpoint)"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file (a Keras model)"),
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run 'git lfs pull'"),
    (b"\x7fELF", "an ELF binary (a compiled model library)"),
)


def name_format(head: bytes) -> str:
    """What a file that starts with ``head`` (at least 64 bytes, if it has them) looks like, or ""."""
    for prefix, name in _PREFIXES:
        if head.startswith(prefix):
            return name
    if head[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if head[4:8] == b"ORTM":
        return "a model in ONNX Runtime's own .ort format"
    if head[8:9] == b"{" and head[4:8] == b"\x00\x00\x00\x00":
        return "a safetensors file: weights without a graph"
    return _name_text(head.removeprefix(b"\xef\xbb\xbf").lstrip())


def _name_text(text: bytes) -> str:
    if text[:1] in (b"{", b"["):
        return "JSON (an encodings or configuration file?)"
    if text.startswith((b"ir_version:", b"producer_name:", b"graph {")):
        return "ONNX in text form: convert it with onnx.parser or google.protobuf.text_format"
    if text[:1] == b"<":
        return "an XML or HTML file (an OpenVINO graph, or a web page saved by a failed download)"
    return ""
