/* dxcore.dll for a Wine that has none: ONNX Runtime imports one function, to look for NPUs, and takes "none". */
#include <windows.h>

__declspec(dllexport) HRESULT WINAPI DXCoreCreateAdapterFactory(const GUID *kind, void **factory) {
  (void)kind;
  if (factory) *factory = NULL;
  return E_NOTIMPL;
}
