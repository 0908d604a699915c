"""Where precision is lost, and the fewest wider layers that bring it back."""
