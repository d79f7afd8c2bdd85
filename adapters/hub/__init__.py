"""Where models come from: folders, Hugging Face, and packages that ship one."""
