"""The report page: one file that loads nothing, escapes everything, and replays the plans that it shows."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from answers import answer
from commands import flat, invoke
from graphs import chain

from checkmate_tf.errors import OutputError
from checkmate_tf.files.answers import answer_from_dict
from checkmate_tf.files.graphs import graph_to_dict, write_graph
from checkmate_tf.files.jsonfile import write_text
from checkmate_tf.files.results import result_to_dict
from checkmate_tf.graph import Graph
from checkmate_tf.report.html import Section, Table, page
from checkmate_tf.schedule import keep_all

EVIL = '<script>alert("1")</script><img src=x onerror=alert(2)>&\'$a$\x07'

MODELS = """
import keras

L = keras.layers


def wide():
    stack = [L.Conv2D(8, 3, padding="same", activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((16, 16, 3)), *stack, L.Flatten(), L.Dense(4, activation="softmax")])
"""


class Elements(HTMLParser):
    """Tags with their attributes, and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]


@pytest.fixture
def files(tmp_path):
    """A graph and an answer, and where to put the page."""
    graph, result = tmp_path / "graph.json", tmp_path / "result.json"
    write_graph(chain(4), graph)
    result.write_text(json.dumps(answer()))
    return graph, result, tmp_path / "page.html"


# -- the page ---------------------------------------------------------------------------------------------------------


def check_self_contained(text):
    """No scripts, nothing from elsewhere, all pictures inline."""
    found = Elements(text)
    assert not found.named("script", "link", "iframe", "object", "embed", "base")
    pictures = found.named("img")
    assert pictures
    for attributes in pictures:
        assert attributes["src"].startswith("data:image/png;base64,iVBORw0KGgo")  # a PNG's first bytes
        assert attributes["alt"]
    bare = re.sub(r'src="data:[^"]*"', "", text)
    assert "http:" not in bare and "https:" not in bare and "url(" not in bare and "@import" not in bare
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("srcset", "href")]
    (policy,) = [a["content"] for a in found.named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    return found


def test_a_graph_and_its_result(files):
    graph, result, html = files
    done = invoke("report", graph, result, "--html", html)
    assert done.exit_code == 0, done.output
    found = check_self_contained(html.read_text(encoding="utf-8"))
    assert len(found.named("img")) == 4  # memory, R and S, costs, the graph
    texts = " ".join(found.texts)
    for part in ("chain4", "by hand", "9: 4 forward, 4 backward", "Computed again by by hand", "2: f2", "2 times"):
        assert part in texts, part
    assert not [attributes for attributes in found.named("p") if attributes.get("class") == "warning"]


def test_several_results_and_graphs(files, tmp_path):
    graph, result, html = files
    plain, other = tmp_path / "plain.json", tmp_path / "other.json"
    plain.write_text(json.dumps(result_to_dict(keep_all(chain(4)))))
    write_graph(chain(2), other)
    done = invoke("report", graph, result, plain, other, "--html", html, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["graphs"], told["results"], told["models"]) == (2, 2, 0)
    assert told["bytes"] == html.stat().st_size
    found = check_self_contained(html.read_text(encoding="utf-8"))
    assert len(found.named("img")) == 5 + 3
    assert "checkpoint-all computes nothing again" in " ".join(found.texts)


def test_a_model(tmp_path):
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    html = tmp_path / "page.html"
    options = ["--costs", "flops", "--time-limit", "2", "--no-verify", "--batch-size", "64", "--budget", "70%"]
    done = invoke("report", f"{tmp_path}/models.py:wide", "--html", html, *options)
    assert done.exit_code == 0, done.output
    found = check_self_contained(html.read_text(encoding="utf-8"))
    texts = " ".join(found.texts)
    for part in ("batch 64", "measured peak", "not measured", "asked: 70%", "recomputation"):
        assert part in texts, part
    assert len(found.named("img")) == 4


def test_everything_from_a_file_is_escaped(files):
    graph, result, html = files
    evil = graph_to_dict(chain(4)) | {"name": EVIL, "cost_unit": EVIL}
    for node in evil["nodes"]:
        node["name"] = EVIL
    graph.write_text(json.dumps(evil))
    result.write_text(json.dumps(answer(strategy=EVIL, solver=EVIL, status=EVIL)))
    done = invoke("report", graph, result, "--html", html)
    assert done.exit_code == 0, done.output
    text = html.read_text(encoding="utf-8")
    check_self_contained(text)
    assert "<script" not in text and "onerror=alert(2)>" not in text.replace("&gt;", "")
    assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;" in text
    assert "\x07" not in text


def test_tables_and_titles_are_escaped():
    text = page(EVIL, [Section(EVIL, [EVIL], [Table(EVIL, (EVIL, EVIL), [(EVIL, EVIL)])])], EVIL)
    found = Elements(text)
    assert not found.named("script", "img")
    assert text.count("&lt;script&gt;") == 10


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(OutputError, match="there is no folder"):
        write_text("text", tmp_path / "missing" / "page.html")
    write_text("text", tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_claims_are_not_believed(files):
    graph, result, html = files
    result.write_text(json.dumps(answer(cost=1.0, peak_bytes=3, budget_bytes=4)))
    assert invoke("report", graph, result, "--html", html).exit_code == 0
    warnings = re.findall(r'<p class="warning">(.*?)</p>', html.read_text(encoding="utf-8"))
    assert len(warnings) == 3
    assert "cost is claimed to be 1, and is" in warnings[0]
    assert "peak_bytes is claimed to be 3" in warnings[1]
    assert "above its budget of 4" in warnings[2]


def test_a_result_without_a_plan(files):
    graph, result, html = files
    none = dict.fromkeys(("plan", "cost", "peak_bytes", "lower_bound", "gap"))
    result.write_text(json.dumps(answer(**none, status="infeasible")))
    assert invoke("report", graph, result, "--html", html).exit_code == 0
    found = Elements(html.read_text(encoding="utf-8"))
    assert "no plan" in found.texts and "infeasible" in found.texts


# -- the command ------------------------------------------------------------------------------------------------------


def test_bad_input_ends_with_status_2_and_writes_nothing(files, tmp_path):
    graph, result, html = files
    other = tmp_path / "other.json"
    other.write_text('{"format": "something"}')
    for arguments, message in (
        ([result], "is a result; give its graph before it"),
        ([other], "is neither a graph nor a result: its format is 'something'"),
        ([tmp_path / "none.json"], "cannot be read"),
        ([graph, "--budget", "50%", "--costs", "flops"], "only models are planned"),
        ([graph, "--budget", "50%", "--costs", "flops"], "leave out --budget, --costs"),
        ([graph, "--gap", 0.5, "--no-verify"], "leave out --gap, --no-verify"),
        (["NoSuchNet", "--budget", "7 apples"], "cannot be read"),
        (["NoSuchNet", "--strategy", "none"], "--strategy 'none' is unknown"),
    ):
        done = invoke("report", *arguments, "--html", html)
        assert done.exit_code == 2, done.output
        assert message in flat(done.output)
        assert not html.exists()
    done = invoke("report", graph, "--html", tmp_path / "missing" / "page.html")
    assert done.exit_code == 2
    assert "there is no folder" in flat(done.output)


def test_a_large_graph_is_not_drawn_as_a_matrix(monkeypatch):
    from checkmate_tf.report import page as module

    monkeypatch.setattr(module, "_CELLS", 10)
    monkeypatch.setattr(module, "_NODES", 3)
    graph = chain(4)
    section = module.graph_section(graph, [answer_from_dict(answer(graph), graph)])
    assert len(section.pictures) == 2  # memory and costs


def test_a_graph_of_one_node_without_cost():
    from checkmate_tf.report.page import graph_section

    graph = Graph("one", ["a"], np.array([0]), np.zeros(1), np.zeros(1), [[]])
    assert len(graph_section(graph).pictures) == 3
