# Compiles this package for SM8650 with onnxruntime-qnn 1.22.0, on Windows on ARM.
# Written by deploykit 0.1.0. $env:PYTHON names the interpreter that has the wheel; default: python.
# Exit status: 0 compiled; 1 the provider refuses the model; 5 another wheel or machine, or none.
$ErrorActionPreference = "Stop"
Set-Location (Join-Path $PSScriptRoot "..")
$env:PYTHONUTF8 = "1"
New-Item -ItemType Directory -Force -Path "logs", "artifacts/.stamps" | Out-Null
Remove-Item -Force -ErrorAction SilentlyContinue "artifacts/.stamps/compile"
$python = if ($env:PYTHON) { $env:PYTHON } else { "python" }
& $python scripts/compile.py
if ($LASTEXITCODE -ne 0) {
    Write-Warning "not compiled; see logs/provider.log and artifacts/compile_report.json"
    exit $LASTEXITCODE
}
New-Item -ItemType File -Force -Path "artifacts/.stamps/compile" | Out-Null
