"""`checkmate-tf check`: what it asks for, prints, keeps and ends with."""

import json

import pytest
from commands import flat, invoke

from benchmarks.product.device_check import as_markdown, merged
from checkmate_tf.check.line import failed, not_run, passed
from checkmate_tf.check.run import Checked
from checkmate_tf.cli.machine import check as command
from checkmate_tf.errors import CheckmateError

MACHINE = {
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "cores": 2,
    "devices": [{"name": "CPU:0", "details": {}}, {"name": "GPU:0", "details": {"device_name": "A CARD"}}],
}
GOOD = passed("GPU:0", "unet at 60%", "1.30 GB measured", {"peak_bytes": 13})
BAD = failed("GPU:0", "unet at 40%", "refused")
LEFT = not_run("CPU:0", "unet", "no time was left")


@pytest.fixture
def answers(monkeypatch):
    """Lines to be found, and what was asked."""
    asked, lines = [], [GOOD, LEFT]

    def check(what, tell, told):
        asked.append(what)
        tell("GPU:0 unet: compile", 0, 1, "60%")
        for line in lines:
            told(line)
        return Checked(MACHINE, list(lines), 12.0)

    monkeypatch.setattr(command, "check", check)
    return asked, lines


def test_a_line_each(answers):
    result = invoke("check")
    assert result.exit_code == 0
    text = flat(result.stdout)
    assert "passed GPU:0 unet at 60%: 1.30 GB measured" in text and "could not be run CPU:0 unet: no time" in text
    assert text.endswith("1 passed, 1 could not be run, 12 s")
    (asked,) = answers[0]
    assert asked.networks == () and asked.devices == () and asked.memory_bytes is None and asked.jobs == 0


def test_what_failed_is_the_exit_status(answers):
    answers[1].append(BAD)
    result = invoke("check")
    assert result.exit_code == 1 and "1 FAILED" in result.stdout


def test_options(answers):
    chosen = ["--device", "GPU:0", "--network", "unet", "--network", "lstm", "--memory", "8GB", "--jobs", "3"]
    assert invoke("check", *chosen, "--seconds", "60").exit_code == 0
    (asked,) = answers[0]
    assert (asked.devices, asked.networks, asked.memory_bytes) == (("GPU:0",), ("unet", "lstm"), 8 * 10**9)
    assert (asked.jobs, asked.seconds) == (3, 60.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--network", "alexnet"], "choose among mobilenet"),
        (["--memory", "much"], "much"),
        (["--memory", "60%"], "is not a size"),
        (["--output", "/proc/nowhere"], "cannot be written"),
    ],
)
def test_bad_input(answers, arguments, says):
    result = invoke("check", *arguments)
    assert result.exit_code == 2 and says in flat(result.stderr) and not answers[0]


def test_one_json_document(answers, tmp_path):
    answers[1].append(BAD)
    result = invoke("check", "--json", "--output", tmp_path / "found")
    document = json.loads(result.stdout)
    assert document["format"] == "checkmate-check/1" and [line["state"] for line in document["lines"]] == [
        "passed", "could not be run", "FAILED",
    ]  # fmt: skip
    assert document["lines"][0]["figures"] == {"peak_bytes": 13}
    assert json.loads((tmp_path / "found" / "check.json").read_text()) == document
    page = (tmp_path / "found" / "check.md").read_text()
    assert "GPU:0 (A CARD)" in page and "| GPU:0 | unet at 40% | FAILED | refused |" in page


def test_an_interrupt_leaves_what_an_earlier_check_wrote(tmp_path, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "check", interrupted)
    for name in command.FILES:
        (tmp_path / name).write_text("earlier")
    assert invoke("check", "--output", tmp_path).exit_code == 130
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(command.FILES, "earlier")


def test_a_folder_in_the_way_is_told_before_anything_runs(answers, tmp_path):
    (tmp_path / "check.md").mkdir()
    result = invoke("check", "--output", tmp_path)
    assert result.exit_code == 2 and "it is not a file" in flat(result.stderr) and not answers[0]


def test_tensorflow_that_does_not_start_is_no_failed_check(monkeypatch):
    def check(*given):
        raise CheckmateError("TensorFlow does not start here: no module")

    monkeypatch.setattr(command, "check", check)
    result = invoke("check", "--json")
    assert result.exit_code == 2 and "no module" in json.loads(result.stdout)["error"]["message"]


def test_a_table_keeps_its_columns(answers):
    page = command.as_markdown(Checked(MACHINE, [failed("CPU:0", "unet", "a | b\n  c")], 1.0))
    assert page.endswith("| CPU:0 | unet | FAILED | a \\| b c |\n")


def test_checks_in_parts_are_joined(answers):
    """Of lines about the same thing the first counts."""
    first = command.as_document(Checked(MACHINE, [GOOD], 10.0))
    second = command.as_document(Checked(MACHINE, [BAD, failed("GPU:0", "unet at 60%", "later")], 5.0))
    both = merged([first, second])
    assert [line["text"] for line in both["lines"]] == ["1.30 GB measured", "refused"] and both["seconds"] == 15.0
    assert "1 passed, 1 FAILED, 15 s" in as_markdown(both)
    with pytest.raises(SystemExit, match="checkmate-check/1"):
        merged([{"format": "other"}])
