"""The report page: complete, self-contained, true to the plan, and alive in a browser without complaints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.ir import parse
from tilewright.running.executable import Executable
from tilewright.tools.cli import main
from tilewright.tools.report import FusedOps, ReportFacts, collect, report_page
from tilewright.tools.report.facts import timing_of
from tilewright.tools.report.memory_figure import live_bytes, spans_of
from tilewright.tuning import tuner as tuning

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "headless_shell")
FIGURES = {"time-kernels", "time-classes", "timeline", "roofline", "graph", "memory"}
#: two blocks that are alike share one kernel; a shortcut joins them
CONV_NET = """#[version = "0.0.5"]
def @main(%data: Tensor[(1, 8, 16, 16), float32], %w0: Tensor[(8, 8, 3, 3), float32],
          %w1: Tensor[(8, 8, 3, 3), float32], %w2: Tensor[(10, 8), float32]) -> Tensor[(1, 10), float32] {
  %0 = nn.conv2d(%data, %w0, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, %w1, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %3 = nn.relu(%2);
  %4 = add(%3, %1);
  %5 = nn.global_avg_pool2d(%4);
  %6 = nn.batch_flatten(%5);
  %7 = nn.dense(%6, %w2, units=10);
  nn.softmax(%7)
}
"""
DENSE_NET = """#[version = "0.0.5"]
def @main(%data: Tensor[(16, 32), float32], %w: Tensor[(24, 32), float32]) -> Tensor[(16, 24), float32] {
  nn.dense(%data, %w, units=24)
}
"""


class Page(HTMLParser):
    """Tags with their attributes, the texts of `pre` elements, ids and links; checks that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.code: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        if tag == "pre":
            self.code.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "pre":
            self.code[-1] += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        """Attributes of the elements with this tag and these attributes (`class_` for class)."""
        pairs = {(k.rstrip("_"), v) for k, v in wanted.items()}
        return [a for t, a in self.tags if t == tag and pairs <= set(a.items())]

    @property
    def ids(self) -> list[str]:
        return [a["id"] or "" for _, a in self.tags if "id" in a]


@dataclass(frozen=True)
class Sample:
    """A compiled network, what was collected of it, and its page."""

    exe: Executable
    facts: ReportFacts
    text: str
    page: Page


def sample(path: str, *, repeats: int = 1, name: str = "net.relay", tune: str = "model") -> Sample:
    module = tw.frontends.relay.load(path, params="random", inputs=("data",), seed=0)
    fused = FusedOps()
    exe = tw.compile(module, target="opencl", instruments=(fused,), progress=False, tune=tune)  # type: ignore[arg-type]
    with exe:
        facts = collect(exe, name, fused=fused, repeats=repeats)
    text = report_page(facts)
    return Sample(exe, facts, text, Page(text))


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("report") / "conv.relay"
    path.write_text(CONV_NET)
    return sample(str(path))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("report") / "dense.relay"
    path.write_text(DENSE_NET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "PATIENCE", 2)
        return sample(str(path), tune="measure")


@pytest.fixture(scope="module")
def mlp(data_dir: Path) -> Sample:
    return sample(str(data_dir / "relay" / "mlp.relay"))


@pytest.fixture(params=["mlp", "conv"])
def either(request: pytest.FixtureRequest) -> Sample:
    found: Sample = request.getfixturevalue(request.param)
    return found


def test_page_loads_nothing(either: Sample) -> None:
    for tag, attributes in either.page.tags:
        assert tag not in ("link", "img", "image", "iframe", "object", "embed", "base")
        assert not {"src", "srcset", "data", "action", "xlink:href"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = [a["content"] or "" for a in either.page.all("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"@import|url\((?!#)", either.text)
    assert "<!-- " not in either.text


def test_links_lead_somewhere_and_ids_are_unique(either: Sample) -> None:
    ids = either.page.ids
    assert len(ids) == len(set(ids))
    links = {(a["href"] or "")[1:] for _, a in either.page.tags if "href" in a}
    assert links <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", either.text)) <= set(ids)


def test_every_figure_and_kernel_is_there(either: Sample) -> None:
    facts, page = either.facts, either.page
    assert {a.get("id") for a in page.all("svg")} >= FIGURES
    assert len(page.all("details", class_="kernel")) == len(either.exe.plan.kernels)
    assert len(page.all("a", class_="launch")) == len(either.exe.plan.launches)
    computing = [i for i, k in enumerate(facts.kernels, 1) if k.operations]
    assert {f"roofline-point-{i}" for i in computing} == {i for i in page.ids if "roofline-point-" in i}
    assert sum("memory-buffer-" in i for i in page.ids) == len(spans_of(either.exe.plan)) > 0
    for kernel in either.exe.plan.kernels:
        assert kernel.source in page.code
    assert sum(text.startswith("thread.func @") for text in page.code) == len(facts.kernels)
    assert sum(text.startswith("tensor.func @") for text in page.code) == len(facts.kernels)


def test_kernels_are_ordered_and_times_add_up(either: Sample) -> None:
    facts = either.facts
    assert facts.timing.measured
    assert facts.timing.where == either.exe.device
    either.exe.close()
    totals = [k.total_s for k in facts.kernels]
    assert totals == sorted(totals, reverse=True)
    assert sum(totals) == pytest.approx(sum(facts.timing.launches_s))
    assert sum(facts.class_seconds().values()) == pytest.approx(sum(totals))
    assert "Times are measured on" in either.text


def test_work_of_the_convolution_is_counted(conv: Sample) -> None:
    products = [k for k in conv.facts.kernels if k.operator_class == "convolution 3x3"]
    taps = 2 * 8 * 8 * 9 * 16 * 16
    for k in products:
        assert taps < k.operations < 1.02 * taps  # the fused ops beside the products
    tensor = 8 * 16 * 16 * 4
    assert all(2 * tensor + 8 * 8 * 9 * 4 <= k.bytes <= 3 * tensor + 8 * 8 * 9 * 4 for k in products)
    assert {k.operator_class for k in conv.facts.kernels} == {
        "convolution 3x3",
        "pooling",
        "matrix product",
        "softmax",
    }


def test_each_launch_names_its_own_ops(conv: Sample, mlp: Sample) -> None:
    assert conv.facts.exact_ops
    ops = [op for launch in conv.facts.launches for op in launch.ops]
    assert {"conv2d #0 3x3", "conv2d #1 3x3", "relu #0", "relu #1", "softmax #0"} <= set(ops)
    for s in (conv, mlp):
        for a in s.page.all("a", class_="launch"):
            launch = s.facts.launches[int((a["id"] or "").removeprefix("node-")) - 1]
            assert all(op.lower() in (a["data-words"] or "") for op in launch.ops)
            assert a["href"] == f"#kernel-{launch.kernel + 1}"


def test_measured_candidates_are_listed_fastest_first(measured: Sample, mlp: Sample) -> None:
    products = [k for k in measured.facts.kernels if k.template == "contract"]
    assert products
    for k in products:
        seconds = [c.measured_s or 0.0 for c in k.candidates]
        assert 1 < len(seconds) == len({str(c.params) for c in k.candidates})
        assert seconds[0] > 0
        assert seconds == sorted(seconds)
        # the replay of the whole network decides, so it need not be the fastest alone
        assert [c.params for c in k.candidates if c.chosen] == [k.params]
    assert "Candidates measured" in measured.text
    assert "Candidates measured" not in mlp.text
    assert "not measured" in mlp.text


def test_memory_plan_is_drawn_as_planned(either: Sample) -> None:
    plan = either.exe.plan
    assert max(live_bytes(plan)) <= plan.arena_bytes
    spans = spans_of(plan)
    for i, a in enumerate(spans):
        for b in spans[i + 1 :]:
            if a.first <= b.last and b.first <= a.last:  # both hold data: no byte in common
                (low, high) = sorted((a.buffer, b.buffer), key=lambda x: x.offset)
                assert low.offset + low.nbytes <= high.offset


@pytest.mark.parametrize(
    "body",
    [
        "(%x: f32[2, 3]) -> f32[2, 3] {\n graph.return(%x)",
        "(%x: f32[2, 3]) -> f32[2, 3], f32[2, 3] {\n %0 = graph.relu(%x) : f32[2, 3]\n graph.return(%0, %0)",
        "(%x: f32[0, 3]) -> f32[0, 3] {\n %0 = graph.relu(%x) : f32[0, 3]\n graph.return(%0)",
    ],
    ids=["no kernel", "one result twice", "no elements"],
)
def test_small_networks_have_a_page(body: str) -> None:
    with tw.compile(parse(f"module @net {{\n graph.func @main{body}\n }}\n}}"), target="opencl") as exe:
        page = Page(report_page(collect(exe, "net.ir", repeats=1)))
    assert {a.get("id") for a in page.all("svg")} >= FIGURES
    assert len(page.all("a", class_="launch")) == len(exe.plan.launches)
    assert len(page.all("g", class_="pill")) == len(exe.plan.inputs) + len(exe.plan.outputs)


def test_times_are_the_model_s_where_nothing_was_measured(conv: Sample) -> None:
    estimates = [1e-6 * (1 + i) for i in range(len(conv.exe.plan.launches))]
    asked = timing_of(conv.exe, estimates, repeats=0)
    elsewhere = timing_of(Executable(conv.exe.artifact, "emulator:sm_90a"), estimates, repeats=3)
    for timing in (asked, elsewhere):
        assert not timing.measured
        assert timing.network_s is None
        assert timing.launches_s == tuple(estimates)
    assert "emulator" in elsewhere.where


def test_a_saved_executable_has_a_report_too(conv: Sample, tmp_path: Path) -> None:
    conv.exe.save(tmp_path / "net.tw")
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "net.tw"), "-o", str(out), "--repeats", "0"]) == 0
    text = out.read_text()
    assert len(Page(text).all("a", class_="launch")) == len(conv.exe.plan.launches)
    assert "first launch only" in text
    assert "Times are the cost model" in text
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("report")] == ["report.html"]


def test_hostile_names_stay_text(conv: Sample) -> None:
    name = "</title></script><script>alert(1)</script><!-- data -->"
    with conv.exe as exe:
        text = report_page(collect(exe, name, repeats=0))
    assert len(Page(text).all("script")) == 1
    assert "alert(1)</script>" not in text


def test_missing_matplotlib_is_one_clear_line(data_dir, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    net, out = str(data_dir / "relay" / "mlp.relay"), tmp_path / "report.html"
    assert main(["report", net, "--target", "opencl", "-o", str(out)]) == 2
    assert "pip install 'tilewright[report]'" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["{net}", "--target", "opencl", "-o", "{out}/no/such/folder.html", "--repeats", "0"],
        ["{net}", "--target", "opencl", "-o", "{out}/report.html", "--repeats", "-1"],
        ["{net}", "--target", "reference", "-o", "{out}/report.html"],
        ["missing.relay", "-o", "{out}/report.html"],
    ],
)
def test_bad_arguments_are_one_line(arguments, data_dir, tmp_path, capsys) -> None:
    net = data_dir / "relay" / "mlp.relay"
    assert main(["report", *(a.format(net=net, out=tmp_path) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_documented_code_runs(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = data_dir.parents[1]
    monkeypatch.chdir(root)
    (code,) = re.findall(r"```python\n(.*?)```", (root / "docs" / "report.md").read_text(), re.DOTALL)
    space: dict[str, object] = {}
    exec(compile(code, "docs/report.md", "exec"), space)
    facts = space["facts"]
    assert isinstance(facts, ReportFacts)
    assert len(facts.launches) == 4
    assert str(space["html"]).startswith("<!doctype html>")


def in_browser(path: Path, folder: Path) -> tuple[str, list[str]]:
    """The document after its scripts ran, and everything the page wrote to the console."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the PATH")
    run = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={folder}", "--enable-logging=stderr", "--virtual-time-budget=5000",
            "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return run.stdout, [line for line in run.stderr.splitlines() if ":CONSOLE" in line]


USE = """<script>
const find = document.getElementById("find");
find.value = "SOFTMAX #0";
find.dispatchEvent(new Event("input"));
const filter = document.getElementById("filter");
filter.value = "softmax";
filter.dispatchEvent(new Event("input"));
document.querySelector('[data-key="rank"]').click();
document.querySelector('[data-key="rank"]').click();
document.querySelector('[data-zoom="1.25"]').click();
location.hash = "#kernel-1";
setTimeout(() => {
  document.documentElement.dataset.last = document.querySelector("#list details").id;
  document.querySelector("#kernel-1 details.code").open = true;
}, 50);
setTimeout(() => {
  const comments = (kind) => document.querySelectorAll(`#kernel-1 pre.${kind} .c`).length;
  document.documentElement.dataset.comments = `${Boolean(comments("source"))} ${comments("ir")}`;
}, 500);
</script></body>"""


def test_browser_runs_the_page_without_complaints(either: Sample, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(either.text.replace("</body>", USE), encoding="utf-8")
    text, complaints = in_browser(path, tmp_path / "profile")
    assert complaints == []
    page = Page(text)
    kernels = len(either.facts.kernels)
    (root,) = page.all("html")
    assert root["data-kernels"] == str(kernels)
    assert root["data-launches"] == str(len(either.facts.launches))
    assert root["data-last"] == f"kernel-{kernels}"
    assert {a.get("id") for a in page.all("svg")} >= FIGURES
    found = [a for a in page.all("a") if "match" in (a.get("class") or "")]
    assert len(found) == 1
    assert "softmax #0" in (found[0]["data-words"] or "")
    shown = {f"#{a['id']}" for a in page.all("details", class_="kernel") if "hidden" not in a}
    assert shown == {found[0]["href"], "#kernel-1"}  # found, and linked to
    (opened,) = page.all("details", id="kernel-1")
    assert "open" in opened
    assert page.all("span", class_="k")
    assert root["data-comments"] == "true 0"  # in the IR // divides


def test_a_fault_in_a_script_would_be_seen(mlp: Sample, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(mlp.text.replace("</body>", "<script>nothing.at.all()</script></body>"), encoding="utf-8")
    _, complaints = in_browser(path, tmp_path / "profile")
    assert len(complaints) == 1
