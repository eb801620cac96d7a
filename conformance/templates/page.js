"use strict";
(() => {
  const { cells, texts, rank } = JSON.parse(document.getElementById("data").textContent);
  const dialog = document.getElementById("cases");
  const SHOWN = 200;

  const element = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const line = (key, said, code) =>
    said ? element("p", {}, element("span", { className: "key" }, key), " ", code ? element("code", {}, said) : said) : null;

  /* A case as it stands in the data: case, verdict, five texts, rerun, seconds, outputs. */
  const read = ([id, verdict, failing, message, source, reason, link, rerun, seconds, outputs]) => ({
    id, verdict, word: rank[verdict], failing: texts[failing], message: texts[message], source: texts[source],
    reason: texts[reason], link: texts[link], rerun: texts[rerun].replaceAll("\u0000", id), seconds,
    outputs: outputs.map(([name, used, error, bound, place, expected, got, drawn]) => (
      { name: texts[name], used, error, bound, place, expected, got, picture: drawn || [] })),
  });
  /* Numbers that JSON lacks come as "inf", "-inf" and "nan"; what is not a number is worse than any. */
  const size = (x) => (x === "nan" ? Infinity : x === "inf" ? Number.MAX_VALUE : x === "-inf" ? -Number.MAX_VALUE : Number(x));
  const shown = (x) => (x === null || x === undefined ? "" : x === "nan" ? "NaN" : x === "inf" ? "∞" : x === "-inf" ? "-∞" : String(x));
  const worst = (one) => one.outputs.reduce((most, o) => (size(o.used) > size(most) ? o.used : most), 0);
  const label = (one) => {
    if (!one.outputs.length) return one.failing || "";
    const used = worst(one);
    if (size(used) === 0) return one.word === "pass" ? "exact" : one.failing;
    if (used === "inf") return "must be equal, and is not";
    return used === "nan" ? "NaN" : `${shown(used)} of its bound`;
  };

  /* Where an output is wrong: the letters of the report as squares. */
  const picture = (o) => {
    if (!o.picture.length) return null;
    const [title, ...rows] = o.picture;
    const make = (name, given) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
      return made;
    };
    const side = 9, wide = Math.max(...rows.map((row) => row.length));
    const drawing = make("svg", { class: "picture", width: wide * side, height: rows.length * side, role: "img",
      viewBox: `0 0 ${wide * side} ${rows.length * side}`, "aria-label": `where ${o.name} is wrong: ${title}` });
    rows.forEach((row, y) => [...row].forEach((letter, x) => drawing.append(make("rect",
      { x: x * side, y: y * side, width: side - 1, height: side - 1, class: `w${letter === "." ? 0 : letter}` }))));
    return element("figure", {}, drawing, element("figcaption", {}, `where ${o.name} is wrong: ${title}; a stronger colour is a larger error`));
  };

  const outputs = (one) => {
    if (!one.outputs.length) return null;
    const head = element("tr", {}, ...["output", "error / bound", "error", "bound", "at", "expected", "got"].map((t) => element("th", { scope: "col" }, t)));
    const rows = one.outputs.map((o) =>
      element("tr", {}, ...[o.name, o.used, o.error, o.bound, o.place, o.expected, o.got].map((t) => element("td", {}, shown(t)))));
    return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  };
  const inside = (one) => {
    const rerun = element("p", { className: "rerun" }, element("code", { tabIndex: 0 }, one.rerun));
    return element("div", { className: "inside" }, one.message ? element("p", {}, one.message) : null, outputs(one), ...one.outputs.map(picture),
      line("kind", one.failing), line("known", [one.reason, one.link].filter(Boolean).join("  ")), line("tests", one.source),
      line("seconds", String(one.seconds)), one.rerun ? rerun : null);
  };
  const item = (one, where) => {
    const used = label(one);
    const summary = element("summary", {}, element("span", { className: `tag v-${one.word}` }, one.word),
      element("code", {}, one.id), where ? element("span", { className: "used" }, where) : null,
      element("span", { className: "used" }, used));
    const details = element("details", {}, summary);
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(inside(one)); });
    return element("li", {}, details);
  };
  const byVerdict = (a, b) => b.verdict - a.verdict || size(worst(b)) - size(worst(a)) || 0;

  const open = (number) => {
    const [adapter, subject, contract, operation] = cells[number].name;
    const found = cells[number].cases.map(read).sort(byVerdict);
    const list = element("ul", { className: "list" }, ...found.map((one) => item(one)));
    const words = [...new Set(found.map((one) => one.word))];
    const choice = element("select", {}, element("option", { value: "" }, `all ${found.length} cases`),
      ...words.map((w) => element("option", { value: w }, `${found.filter((one) => one.word === w).length} ${w}`)));
    const text = element("input", { type: "search", placeholder: "softplus=off t33", autocomplete: "off" });
    const filter = () => {
      const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      const fits = (one) => wanted.every((w) => `${one.id} ${one.failing} ${one.message}`.toLowerCase().includes(w));
      list.replaceChildren(...found.filter((one) => (!choice.value || one.word === choice.value) && fits(one)).map((one) => item(one)));
    };
    choice.addEventListener("change", filter);
    text.addEventListener("input", filter);
    const close = element("button", { type: "button", className: "close" }, "Close");
    close.addEventListener("click", () => dialog.close());
    const title = element("h2", { id: "cases-title" }, `${operation} of ${subject}`, element("small", {}, `${adapter}, ${contract}`));
    dialog.replaceChildren(
      element("div", { className: "bar" }, title, element("label", {}, "Show ", choice), element("label", {}, "with ", text), close), list);
    if (!dialog.open) dialog.showModal();
    const first = list.querySelector("summary");
    if (found[0].word !== "pass") first.parentElement.open = true;
    first.focus();
    history.replaceState(null, "", `#cell-${number}`);
  };
  dialog.addEventListener("close", () => {
    const from = document.querySelector(`[data-cell="${location.hash.slice(6)}"]`);
    history.replaceState(null, "", location.pathname);
    if (from) from.focus();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-cell]");
    if (cell) open(Number(cell.dataset.cell));
  });

  /* Arrow keys move between the cells of a table. */
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.(".cell");
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!cell || !way) return;
    const column = cell.parentElement.cellIndex;
    let row = cell.closest("tr"), at = column;
    for (;;) {
      if (way[0]) row = way[0] > 0 ? row.nextElementSibling : row.previousElementSibling;
      else at += way[1];
      const next = row?.cells[at];
      if (!row || (!next && !way[0])) return;
      const target = next?.querySelector(".cell");
      if (target) { event.preventDefault(); target.focus(); return; }
    }
  });

  const rows = document.getElementById("rows");
  rows?.addEventListener("change", () => {
    for (const row of document.querySelectorAll(".matrix tbody tr:not(.adapter)")) {
      row.hidden = rows.value === "bad" && !row.querySelector(".v-fail, .v-unknown, .v-known-failure");
    }
  });

  /* What is folded is open on paper. */
  addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("main details")) one.open = true; });

  const find = document.getElementById("find"), found = document.getElementById("found");
  find.addEventListener("input", () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    found.hidden = !words.length;
    if (!words.length) { found.replaceChildren(); return; }
    const hits = [];
    for (const { name, cases } of cells) {
      for (const one of cases) {
        const told = `${name.join(" ")} ${one[0]} ${rank[one[1]]} ${texts[one[2]]}`.toLowerCase();
        if (words.every((w) => told.includes(w))) hits.push([one, `${name[1]}, ${name[2]}`]);
      }
    }
    const more = hits.length > SHOWN ? `, the first ${SHOWN} shown` : "";
    found.replaceChildren(element("h2", {}, `${hits.length} case${hits.length === 1 ? "" : "s"} found${more}`),
      element("ul", { className: "list" }, ...hits.slice(0, SHOWN).map(([one, where]) => item(read(one), where))));
  });

  const asked = /^#cell-(\d+)$/.exec(location.hash);
  if (asked && cells[Number(asked[1])]) open(Number(asked[1]));
})();
