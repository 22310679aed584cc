"""`python -m checkmate_tf.cli`."""

from . import main

if __name__ == "__main__":
    main()
