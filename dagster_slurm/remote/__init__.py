"""Running scripts on the login node and reading their replies."""
