"""Commands about the machine: `doctor` says what is there, `check` whether all that is promised holds on it."""
