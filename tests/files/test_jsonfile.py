"""Files are written all or not at all, whoever else writes them."""

from __future__ import annotations

from checkmate_tf.files import jsonfile
from checkmate_tf.fit import cache


def test_who_writes_the_same_file_meanwhile_is_not_in_the_way(tmp_path):
    """As a thread of the same process would be."""
    path, beside = tmp_path / f"{'a' * 64}.json", []

    def slowly(temporary):
        beside.append(temporary.name)
        temporary.write_text("slow", encoding="utf-8")
        jsonfile.write_text("fast", path)
        assert path.read_text(encoding="utf-8") == "fast"

    jsonfile._write(path, slowly)
    assert path.read_text(encoding="utf-8") == "slow" and [*tmp_path.iterdir()] == [path]
    assert cache._PART.fullmatch(beside[0])  # what a killed process leaves in the cache is swept
