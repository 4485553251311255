"""The files and the program that the cluster model's page shows work as they stand there."""

import re
from pathlib import Path

from tilewright.costmodel.cluster import load_cluster, load_model, load_training, record_names, search

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")


def test_files_of_the_page_load_and_can_be_planned(tmp_path):
    loaded = {}
    for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        kind = re.match(r'kind = "(\w+)"', text)[1]
        (tmp_path / f"{kind}.toml").write_text(text, encoding="utf-8")
        load = {"cluster": load_cluster, "model": load_model, "training": load_training}[kind]
        loaded[kind] = load(tmp_path / f"{kind}.toml")
    assert set(loaded) == {"cluster", "model", "training"}
    assert search(**loaded).feasible > 100


def test_the_program_of_the_page_runs(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "cluster.md", "exec"), {})
    assert capsys.readouterr().out.startswith("2249.39")


def test_the_page_names_every_record():
    for kind in ("cluster", "model", "training"):
        assert all(f"`{name}`" in PAGE for name in record_names(kind))
