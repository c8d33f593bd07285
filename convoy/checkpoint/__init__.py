"""What is kept: checkpoints as folders of safetensors and JSON, verified before they are read."""
