"""What runs inside the sandbox for an environment."""
