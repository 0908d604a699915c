"""Asks ssh-keygen who signed the manifest of a package; there is no cryptography here, and no key is read.

``ssh-keygen -Y sign -f KEY -n deploykit PACKAGE/manifest.json`` signs it, and leaves ``manifest.json.sig`` beside it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from deploykit.backend.backend import Check
from deploykit.errors import InputError, ToolError
from deploykit.packages.manifests import MANIFEST, SIGNATURE
from deploykit.system.files import read_regular
from deploykit.system.processes import run

__all__ = ["NAMESPACE", "check_signature"]

NAMESPACE = "deploykit"
"""What a signature is for: one made for mail or git does not count."""
_LARGEST = 64 << 10
_SECONDS = 30.0


def check_signature(package: Path, allowed_signers: Path) -> Check:
    """Whether somebody in ``allowed_signers`` (the format of ssh-keygen(1), ALLOWED SIGNERS) signed the manifest.

    Raises InputError for an unreadable list of signers, ToolError without ssh-keygen.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise ToolError("ssh-keygen is not installed", next="install OpenSSH's client (Debian, Ubuntu: openssh-client)")
    read_regular(allowed_signers)
    signature = package / SIGNATURE
    try:
        read_regular(signature, limit=_LARGEST)
    except InputError as error:
        return Check(id="signature", ok=False, detail=f"{SIGNATURE}: {error.why or 'the package is not signed'}")
    places = ["-f", str(allowed_signers.resolve()), "-s", str(signature.resolve())]
    found = run([program, "-Y", "find-principals", *places], timeout=_SECONDS)
    who = next((line for line in found.tail if line.strip()), "") if found.ok else ""
    if not who:
        return Check(id="signature", ok=False, detail=f"{SIGNATURE}: by nobody whom {allowed_signers.name} names")
    asked = ["-Y", "verify", "-I", who, "-n", NAMESPACE, *places]
    done = run([program, *asked], timeout=_SECONDS, given=read_regular(package / MANIFEST))
    told = f"signed by {who}" if done.ok else f"not by {who} for these bytes: {' '.join(done.tail)[:200]}"
    return Check(id="signature", ok=done.ok, detail=told)
