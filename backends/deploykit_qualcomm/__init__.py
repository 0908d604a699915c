"""What the Qualcomm adapters share: SoC and SDK tables."""
