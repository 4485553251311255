"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const CONTEXT = 3;
  let current = 0;
  let change = -1;

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // A step without lines of its own shows those of the step before it.
  data.steps.forEach((step, i) => { step.lines = step.lines || data.steps[i - 1].lines; });
  const lineAt = (step, i) => data.table[step.lines[i]];

  const milliseconds = (s) => (s * 1000 < 10 ? (s * 1000).toFixed(2) : Math.round(s * 1000)) + " ms";

  function listPasses() {
    byId("file").textContent = data.file;
    const changed = data.steps.filter((s) => s.changed).length;
    const total = data.steps.reduce((sum, s) => sum + s.seconds, 0);
    byId("about").textContent =
      `${data.target} · ${data.steps.length - 1} steps, ${changed} changed something · ${milliseconds(total)}`;
    data.steps.forEach((step, i) => {
      const button = make("button", step.changed ? "changed" : "unchanged");
      button.append(make("span", "mark", step.changed ? "●" : "○"), make("span", "name", step.label));
      button.append(make("span", "time", step.seconds ? milliseconds(step.seconds) : ""));
      button.title = step.summary + (step.changed ? "" : " (unchanged)");
      button.addEventListener("click", () => go(i));
      const item = make("li");
      item.append(button);
      byId("passes").append(item);
    });
  }

  // Marks what differs between two lines: all but their common beginning and end.
  function marked(cell, line, other) {
    let head = 0;
    while (head < Math.min(line.length, other.length) && line[head] === other[head]) head++;
    let tail = 0;
    while (tail < Math.min(line.length, other.length) - head && line.at(-1 - tail) === other.at(-1 - tail)) tail++;
    if (head + tail === 0) { cell.textContent = line; return; }
    cell.append(line.slice(0, head), make("mark", "", line.slice(head, line.length - tail)));
    cell.append(line.slice(line.length - tail));
  }

  function row(left, right) {
    const tr = make("tr");
    for (const [side, other, kind] of [[left, right, "gone"], [right, left, "new"]]) {
      const differs = !left || !right || left.text !== right.text;
      const name = !side ? "void" : differs ? kind : "";
      tr.append(make("td", `number ${name}`.trim(), side ? side.number : ""));
      const cell = make("td", name);
      if (side && differs && other) marked(cell, side.text, other.text);
      else cell.textContent = side ? side.text : "";
      tr.append(cell);
    }
    return tr;
  }

  function pair(before, after, i, k) {
    const at = (step, n) => ({ number: n + 1, text: lineAt(step, n) });
    return row(i === null ? null : at(before, i), k === null ? null : at(after, k));
  }

  function equalRows(body, before, after, i, k, count, atStart, atEnd) {
    const rows = (from, to) => {
      const fragment = document.createDocumentFragment();
      for (let n = from; n < to; n++) fragment.append(pair(before, after, i + n, k + n));
      return fragment;
    };
    const head = atStart ? 0 : CONTEXT;
    const tail = atEnd ? 0 : CONTEXT;
    if (byId("all").checked || count <= head + tail + 1) { body.append(rows(0, count)); return; }
    body.append(rows(0, head));
    const fold = make("tr", "fold");
    const cell = make("td");
    cell.colSpan = 4;
    const button = make("button", "", `${count - head - tail} unchanged lines`);
    button.addEventListener("click", () => fold.replaceWith(rows(head, count - tail)));
    cell.append(button);
    fold.append(cell);
    body.append(fold, rows(count - tail, count));
  }

  function editRows(body, before, after, [i, j, k, n]) {
    const count = Math.max(j - i, n - k);
    for (let r = 0; r < count; r++) {
      const tr = pair(before, after, i + r < j ? i + r : null, k + r < n ? k + r : null);
      if (r === 0) tr.classList.add("edit");
      body.append(tr);
    }
  }

  function table(step, before) {
    const out = make("table");
    const columns = make("colgroup");
    for (const name of ["number", "", "number", ""]) columns.append(make("col", name));
    const body = make("tbody");
    out.append(columns, body);
    let i = 0;
    let k = 0;
    for (const edit of step.edits || []) {
      equalRows(body, before, step, i, k, edit[0] - i, i === 0, false);
      editRows(body, before, step, edit);
      [, i, , k] = edit;
    }
    equalRows(body, before, step, i, k, step.lines.length - k, i === 0, true);
    return out;
  }

  // The input, and what no pass changed, is shown once and in full.
  function plain(step) {
    const out = make("table");
    const columns = make("colgroup");
    for (const name of ["number", ""]) columns.append(make("col", name));
    const body = make("tbody");
    step.lines.forEach((_, n) => {
      const tr = make("tr");
      tr.append(make("td", "number", n + 1), make("td", "", lineAt(step, n)));
      body.append(tr);
    });
    out.append(columns, body);
    return out;
  }

  function go(i) {
    current = Math.max(0, Math.min(i, data.steps.length - 1));
    change = -1;
    const step = data.steps[current];
    byId("label").textContent = step.label;
    byId("summary").textContent = step.summary;
    const state = current === 0 ? "" : step.changed ? `, ${step.edits.length} changes` : ", unchanged";
    byId("counts").textContent = `${step.ops} ops, ${step.lines.length} lines${state}`;
    byId("view").replaceChildren(step.changed ? table(step, data.steps[current - 1]) : plain(step));
    byId("view").scrollTop = 0;
    [...byId("passes").querySelectorAll("button")].forEach((button, n) => {
      if (n === current) { button.setAttribute("aria-current", "step"); button.scrollIntoView({ block: "nearest" }); }
      else button.removeAttribute("aria-current");
    });
    history.replaceState(null, "", `#${current}`);
  }

  function goChanged(direction) {
    for (let i = current + direction; i >= 0 && i < data.steps.length; i += direction) {
      if (data.steps[i].changed) { go(i); return; }
    }
  }

  function goChange(direction) {
    const rows = [...byId("view").querySelectorAll("tr.edit")];
    if (!rows.length) return;
    if (change >= 0) rows[change].classList.remove("here");
    change = Math.max(0, Math.min(change + direction, rows.length - 1));
    rows[change].classList.add("here");
    rows[change].scrollIntoView({ block: "center" });
  }

  const keys = {
    ArrowDown: () => go(current + 1), ArrowRight: () => go(current + 1),
    ArrowUp: () => go(current - 1), ArrowLeft: () => go(current - 1),
    Home: () => go(0), End: () => go(data.steps.length - 1),
    n: () => goChanged(1), p: () => goChanged(-1), j: () => goChange(1), k: () => goChange(-1),
    a: () => byId("all").click(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  byId("all").addEventListener("change", () => go(current));
  window.addEventListener("hashchange", () => go(Number(location.hash.slice(1)) || 0));

  listPasses();
  go(Number(location.hash.slice(1)) || 0);
})();
