"""The command line as a test calls it, and what it prints without frames."""

from __future__ import annotations

from typer.testing import CliRunner

from checkmate_tf.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def flat(text):
    """Without the frame and line breaks of a block."""
    return " ".join(text.replace("│", " ").split())


def assert_refused(done, says):
    """A command ended with status 2 and a message, and printed nothing else."""
    assert done.exit_code == 2
    assert says in flat(done.stderr)
    assert done.stdout == "" and "Traceback" not in done.stderr
