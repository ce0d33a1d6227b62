"""Programs: find the code in a completion, run it against a task's tests in the sandbox."""
