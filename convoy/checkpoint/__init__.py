"""Checkpoints as folders of safetensors and JSON files, verified before they are read."""
