"""Import and export weights of other programs: torchvision, timm and the Hugging Face Hub."""
