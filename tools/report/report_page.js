"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const graph = byId("graph");
  const kernels = all("details.kernel");

  // A link to a kernel opens its section.
  function openTarget() {
    const target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.matches("details.kernel")) return;
    target.hidden = false;
    target.open = true;
    target.scrollIntoView({ block: "start" });
  }

  // Finding: boxes whose words hold every word asked for stand out; Enter goes from one to the next.
  const boxes = all("a.launch").sort((a, b) => Number(a.id.slice(5)) - Number(b.id.slice(5)));
  let matches = [];
  let current = -1;
  const holds = (text, words) => words.every((word) => text.includes(word));
  const wordsOf = (input) => input.value.toLowerCase().split(/\s+/).filter(Boolean);

  function find() {
    const words = wordsOf(byId("find"));
    matches = words.length ? boxes.filter((box) => holds(box.dataset.words, words)) : [];
    current = -1;
    for (const box of boxes) {
      box.classList.remove("here");
      box.classList.toggle("match", matches.includes(box));
    }
    graph.classList.toggle("searching", words.length > 0);
    byId("found").textContent = words.length ? `${matches.length} found` : "";
    if (matches.length) step(1);
  }

  function step(direction) {
    if (!matches.length) return;
    if (current >= 0) matches[current].classList.remove("here");
    current = (current + direction + matches.length) % matches.length;
    const box = matches[current];
    box.classList.add("here");
    byId("found").textContent = `${current + 1} of ${matches.length}`;
    const canvas = byId("canvas");
    const at = box.getBoundingClientRect();
    const frame = canvas.getBoundingClientRect();
    canvas.scrollBy(at.x + at.width / 2 - frame.x - frame.width / 2, at.y + at.height / 2 - frame.y - frame.height / 2);
  }

  // Edges of the box under the pointer stand out.
  const edges = new Map();
  for (const edge of all("g.edge")) {
    for (const node of edge.dataset.ends.split(" ")) {
      if (!edges.has(node)) edges.set(node, []);
      edges.get(node).push(edge);
    }
  }
  for (const node of all("a.launch, g.pill", graph)) {
    const mine = edges.get(node.id.slice(5)) || [];
    const mark = (on) => () => mine.forEach((edge) => edge.classList.toggle("near", on));
    node.addEventListener("pointerenter", mark(true));
    node.addEventListener("pointerleave", mark(false));
  }

  const [, , width, height] = graph.getAttribute("viewBox").split(" ").map(Number);
  let scale = 1;
  function zoom(factor) {
    scale = factor ? Math.min(4, Math.max(0.1, scale * factor)) : 1;
    graph.setAttribute("width", width * scale);
    graph.setAttribute("height", height * scale);
    document.querySelector('[data-zoom="0"]').textContent = `${Math.round(100 * scale)} %`;
  }

  function filter() {
    const words = wordsOf(byId("filter"));
    let shown = 0;
    for (const kernel of kernels) {
      kernel.hidden = !holds(kernel.dataset.words, words);
      shown += !kernel.hidden;
    }
    byId("shown").textContent = words.length ? `${shown} of ${kernels.length}` : "";
  }

  // Times and ratios are wanted longest first, names and ranks in their own order.
  function sortBy(button) {
    const key = button.dataset.key;
    const again = button.getAttribute("aria-sort");
    const down = again ? again === "ascending" : !["rank", "class", "limit"].includes(key);
    const value = (kernel) => kernel.dataset[key];
    const words = ["class", "limit"].includes(key);
    const order = (a, b) => (words ? value(a).localeCompare(value(b)) : value(a) - value(b)) * (down ? -1 : 1);
    byId("list").append(...kernels.sort(order));
    all("button", byId("columns")).forEach((other) => other.removeAttribute("aria-sort"));
    button.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  // Code gets its colours when it is first looked at. In the IR // is a division, and %3 a name.
  const C_TOKEN = /(\/\/[^\n]*|\/\*[\s\S]*?\*\/)|\b(\d[\w.]*)|([A-Za-z_]\w*)(?=(\()?)/g;
  const IR_TOKEN = /(?!)()|(?<![%\w])(\d[\w.]*)|([%@]?[A-Za-z_]\w*(?:\.\w+)*|%\d+)(?=(\()?)/g;
  const KEYWORDS = new Set(("if else for while return const void int float double half bool char short long unsigned " +
    "struct typedef static inline restrict volatile extern __global__ __shared__ __device__ __restrict__ " +
    "__launch_bounds__ __kernel __global __local __private __attribute__ thread.func tensor.func tensor.return " +
    "thread.loop thread.if scalar.yield in mask at").split(" "));
  const VECTOR_TYPE = /^(?:float|double|half|u?int|u?char|u?short|u?long)(?:\d+|_t)$|^[fiu](?:8|16|32|64)(?:x\d+)?$|^bf16$/;

  function colour(pre) {
    const text = pre.textContent;
    const out = document.createDocumentFragment();
    let at = 0;
    for (const match of text.matchAll(pre.classList.contains("ir") ? IR_TOKEN : C_TOKEN)) {
      const [, comment, number, word, call] = match;
      const kind = comment ? "c" : number ? "n" : KEYWORDS.has(word) || VECTOR_TYPE.test(word) ? "k" : call ? "f" : "";
      if (!kind) continue;
      const span = document.createElement("span");
      span.className = kind;
      span.textContent = comment || number || word;
      out.append(text.slice(at, match.index), span);
      at = match.index + span.textContent.length;
    }
    out.append(text.slice(at));
    pre.replaceChildren(out);
  }
  for (const code of all("details.code")) {
    code.addEventListener("toggle", () => all("pre", code).forEach(colour), { once: true });
  }

  // The part being read is marked in the list of parts.
  const links = new Map(all("nav li a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("main > section").forEach((section) => seen.observe(section));

  byId("find").addEventListener("input", find);
  byId("find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") { byId("find").value = ""; find(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input")) return;
    event.preventDefault();
    byId("graph-part").scrollIntoView();
    byId("find").focus();
  });
  all("button[data-zoom]").forEach((button) => button.addEventListener("click", () => zoom(Number(button.dataset.zoom))));
  byId("filter").addEventListener("input", filter);
  all("button", byId("columns")).forEach((button) => button.addEventListener("click", () => sortBy(button)));
  window.addEventListener("hashchange", openTarget);
  const canvas = byId("canvas");
  canvas.scrollLeft = (canvas.scrollWidth - canvas.clientWidth) / 2;
  openTarget();
  document.documentElement.dataset.kernels = String(kernels.length);
  document.documentElement.dataset.launches = String(boxes.length);
})();
