"""`python -m checkmate_tf`, the same command as `checkmate-tf`."""

from .cli import main

if __name__ == "__main__":
    main()
