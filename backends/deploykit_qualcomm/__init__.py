"""The library that both Qualcomm adapters share: tables of SoCs and SDKs, rules, AIMET."""
