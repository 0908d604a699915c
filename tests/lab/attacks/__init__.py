"""What the attacks share: command lines in processes that may be killed or starved, and made-up bad files."""
