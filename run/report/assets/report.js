"use strict";
(function () {
  const root = document.documentElement;
  let failures = 0;
  addEventListener("error", () => { root.dataset.errors = ++failures; });
  addEventListener("unhandledrejection", () => { root.dataset.errors = ++failures; });
  addEventListener("securitypolicyviolation", () => { root.dataset.errors = ++failures; });

  let data = JSON.parse(document.getElementById("data").textContent);
  const host = document.getElementById("charts");
  const plots = []; // {chart, figure, plot, u}
  const make = (tag, attributes, text) => {
    const e = document.createElement(tag);
    for (const k in attributes || {}) e.setAttribute(k, attributes[k]);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const colour = name => getComputedStyle(root).getPropertyValue("--" + name).trim() || getComputedStyle(root).getPropertyValue("--accent").trim();
  const show = (v, digits) => v === null || v === undefined ? "–" :
    Math.abs(v) >= 10000 ? Math.round(v).toLocaleString("en-US") : String(Number(v.toPrecision(digits)));

  // What the reader chose: how much of a curve a mean goes over, in percent, and which axes are logarithmic.
  const view = { smooth: 26, logY: false, logX: false };

  // A running mean over the neighbours, the wider the more points there are. It is drawn only; numbers stay as they are.
  function mean(values) {
    const half = Math.max(1, Math.round(values.length * Math.pow(view.smooth / 100, 2) / 4));
    let sum = 0, n = 0;
    const add = (v, sign) => { if (v !== null && v !== undefined) { sum += sign * v; n += sign; } };
    for (let i = 0; i < Math.min(half, values.length); i++) add(values[i], 1);
    return values.map((v, i) => {
      add(values[i + half], 1);
      add(values[i - half - 1], -1);
      return v === null || n === 0 ? null : sum / n;
    });
  }

  const smooths = chart => chart.smooth && chart.x.length > 20 && view.smooth > 0;

  // A logarithmic axis has no place for what is not positive.
  const place = values => view.logY ? values.map(v => v > 0 ? v : null) : values;

  function columns(chart) {
    const raw = chart.series.map(s => s.values);
    return [chart.x, ...raw.map(place), ...(smooths(chart) ? raw.map(mean).map(place) : [])];
  }

  // The places of a logarithmic axis of steps: 0, 10, 30, 100 … between its ends, or these where there are too few.
  function decades(least, most) {
    const all = [0];
    for (let d = 10; d <= most; d *= 10) all.push(d, 3 * d);
    const some = all.filter(v => v >= least && v <= most);
    return some.length > 1 ? some : [least, most];
  }

  function options(chart, width) {
    const scatter = smooths(chart), digits = chart.digits;
    const line = (s, extra) => Object.assign({
      label: s.label, stroke: colour(s.kind), width: 2, spanGaps: chart.dots === true,
      value: (u, v) => show(v, digits), points: { show: chart.dots === true && s.kind !== "teacher", size: 7 },
      dash: s.kind === "teacher" ? [6, 5] : s.kind === "control" && !chart.smooth && !chart.dots ? [8, 8] : undefined,
    }, extra);
    const series = [{ label: "step", value: (u, v) => v === null ? "–" : v.toLocaleString("en-US") }];
    for (const s of chart.series) series.push(line(s, scatter ? { width: 1, alpha: 0.3 } : {}));
    if (scatter) for (const s of chart.series) series.push(line(s, { label: s.label + ", mean", class: "mean" }));
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    return {
      width: width, height: 250, series: series, cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
      scales: { x: view.logX ? { time: false, distr: 4, asinh: 10, range: (u, least, most) => [least, most] } : { time: false }, y: view.logY ? { distr: 3, log: 10 } : {} },
      legend: { markers: { stroke: (u, i) => colour((chart.series[(i - 1) % chart.series.length] || {}).kind), width: 2 } },
      axes: [Object.assign(view.logX ? { splits: (u, i, least, most) => decades(least, most), filter: (u, all) => all } : {}, axis), Object.assign({ size: 64, values: (u, all) => all.map(v => v === null ? "" : show(v, 4)) }, axis)],
    };
  }

  // What a picture says, in words.
  function words(chart) {
    return chart.title + " over " + chart.x.length + " steps. " + chart.series.map(s => {
      const v = s.values.filter(x => x !== null);
      if (v.length === 0) return s.label + ": no number";
      return s.label + ": from " + show(v[0], chart.digits) + " to " + show(v[v.length - 1], chart.digits) +
        ", least " + show(v.reduce((a, b) => Math.min(a, b)), chart.digits) + ", most " + show(v.reduce((a, b) => Math.max(a, b)), chart.digits);
    }).join("; ") + ".";
  }

  // The table holds what the picture holds, every number in full.
  function fill(p) {
    const table = p.figure.querySelector("details table");
    if (!p.figure.querySelector("details").open || !table) return;
    const head = make("tr"), body = make("tbody");
    const columns = view.logY ? [p.chart.x, ...p.chart.series.map(s => s.values)] : p.u.data;
    head.append(make("th", { class: "n" }, "step"));
    for (const s of p.chart.series) head.append(make("th", { class: "n" }, s.label));
    for (let i = 0; i < columns[0].length; i++) {
      const row = make("tr");
      row.append(make("td", { class: "n" }, String(columns[0][i])));
      for (let j = 1; j <= p.chart.series.length; j++) row.append(make("td", { class: "n" }, columns[j][i] === null ? "" : String(columns[j][i])));
      body.append(row);
    }
    const thead = make("thead");
    thead.append(head);
    table.replaceChildren(thead, body);
  }

  function add(chart) {
    const figure = make("figure", { class: chart.dots ? "card wide" : "card", id: "chart-" + chart.id });
    const caption = make("figcaption");
    caption.append(make("h3", {}, chart.title));
    const note = [chart.unit, chart.note, chart.thinned ? "thinned from " + chart.thinned.toLocaleString("en-US") + " steps, extremes kept" : ""].filter(Boolean).join(" · ");
    caption.append(make("span", {}, note));
    const plot = make("div", { class: "plot", role: "img", "aria-label": words(chart) });
    const details = make("details"), scroll = make("div", { class: "scroll long", tabindex: "0" });
    details.append(make("summary", {}, "numbers"), scroll);
    scroll.append(make("table"));
    figure.append(caption, plot, details);
    host.append(figure);
    const p = { chart: chart, figure: figure, plot: plot, u: null };
    details.addEventListener("toggle", () => fill(p));
    plots.push(p);
  }

  function rebuild() {
    const open = new Set(plots.filter(p => p.figure.querySelector("details").open).map(p => p.chart.id));
    for (const p of plots.splice(0)) p.u.destroy();
    host.replaceChildren();
    for (const chart of data.charts) add(chart); // all of them first: how wide one is depends on its neighbours
    for (const p of plots) {
      p.u = new uPlot(options(p.chart, p.plot.clientWidth), columns(p.chart), p.plot);
      if (open.has(p.chart.id) || location.hash.includes("numbers")) p.figure.querySelector("details").open = true;
      fill(p);
    }
    if (plots.length === 0) host.append(make("p", { class: "note" }, "No step has been recorded yet."));
  }

  // The switches above the curves hold for all of them.
  function tools() {
    const box = document.getElementById("tools");
    const add = (name, attributes, change) => {
      const label = make("label"), input = make("input", attributes);
      input.addEventListener(attributes.type === "range" ? "input" : "change", () => { change(input); rebuild(); });
      label.append(...(attributes.type === "range" ? [name, input] : [input, name]));
      box.append(label);
    };
    add("smoothing", { type: "range", min: 0, max: 100, value: view.smooth }, i => { view.smooth = Number(i.value); });
    const checkbox = on => Object.assign({ type: "checkbox" }, on ? { checked: "" } : {});
    add("logarithmic values", checkbox(view.logY), i => { view.logY = i.checked; });
    add("logarithmic steps", checkbox(view.logX), i => { view.logX = i.checked; });
  }

  // New numbers go into the pictures that are there, unless there are others now.
  function update() {
    const shape = charts => JSON.stringify(charts.map(c => [c.id, c.series.map(s => s.label), smooths(c)]));
    if (shape(plots.map(p => p.chart)) !== shape(data.charts)) return rebuild();
    data.charts.forEach((chart, i) => {
      const p = plots[i];
      p.chart = chart;
      p.u.setData(columns(chart));
      p.plot.setAttribute("aria-label", words(chart));
      fill(p);
    });
  }

  // A token's predictions, beside each other.
  function predictions(panel, token) {
    panel.replaceChildren();
    const heads = [[data.reference || "teacher", token.teacher], ["student", token.student]];
    const line = make("p", { class: "note" });
    line.append("next token ", make("code", {}, JSON.stringify(token.text)), ": KL " + (token.kl === undefined || token.kl === null ? "–" : token.kl.toFixed(4)) +
      (token.counts ? "" : ", masked: it is not in the loss"));
    const two = make("div", { class: "two" });
    for (const [name, p] of heads) {
      if (!p) continue;
      const table = make("table"), head = make("tr");
      head.append(make("th", {}, name), make("th", { class: "n" }, "probability"), make("th"));
      table.append(head);
      const row = (text, value, hit) => {
        const tr = make("tr", hit ? { class: "hit" } : {}), cell = make("td"), bar = make("td");
        cell.append(make("code", {}, text));
        const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        svg.setAttribute("aria-hidden", "true");
        rect.setAttribute("class", "bar");
        rect.setAttribute("width", (100 * value) + "%");
        rect.setAttribute("height", "10");
        svg.append(rect);
        bar.append(svg);
        tr.append(cell, make("td", { class: "n" }, (100 * value).toFixed(2) + " %"), bar);
        table.append(tr);
      };
      for (const c of p.top) row(JSON.stringify(c.text), c.p, c.id === token.id);
      if (!p.top.some(c => c.id === token.id)) row("… " + JSON.stringify(token.text), p.p, true);
      two.append(table);
    }
    panel.append(line, two);
  }

  function look(event) {
    const tok = event.target.closest && event.target.closest(".tok[data-token]");
    if (!tok) return;
    const box = tok.closest(".sample");
    for (const other of box.querySelectorAll(".tok.on")) other.classList.remove("on");
    tok.classList.add("on");
    const token = data.samples[Number(box.dataset.sample)].tokens[Number(tok.dataset.token)];
    predictions(box.querySelector(".panel"), token);
  }
  for (const kind of ["click", "focusin", "mouseover"]) document.addEventListener(kind, look);

  // Each text begins with the token that the models differ most on.
  function choose() {
    for (const box of document.querySelectorAll(".sample")) {
      let most = null, kl = -1;
      data.samples[Number(box.dataset.sample)].tokens.forEach((t, i) => { if (t.kl > kl) { kl = t.kl; most = i; } });
      if (most !== null) look({ target: box.querySelector('.tok[data-token="' + most + '"]') });
    }
  }

  for (const key of location.hash.slice(1).split("&")) if (view[key] === false) view[key] = true;
  tools();
  rebuild();
  choose();
  let width = host.clientWidth;
  addEventListener("resize", () => {
    if (host.clientWidth === width) return;
    width = host.clientWidth;
    for (const p of plots) p.u.setSize({ width: p.plot.clientWidth, height: 250 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);

  // A live page asks for what is new.
  if (root.dataset.live === undefined) return;
  let version = root.dataset.live;
  const lost = document.getElementById("lost");
  async function poll() {
    try {
      const answer = await fetch("data.json?since=" + encodeURIComponent(version), { cache: "no-store" });
      if (answer.status === 200) {
        const fresh = await answer.json();
        version = fresh.version;
        data = fresh.data;
        for (const id in fresh.sections) document.getElementById(id).innerHTML = fresh.sections[id];
        update();
        if (fresh.sections.samples !== undefined) choose();
        root.dataset.updates = Number(root.dataset.updates || 0) + 1;
      } else if (answer.status !== 204) {
        throw new Error(answer.statusText);
      }
      lost.textContent = "";
    } catch (e) {
      lost.textContent = "The server does not answer; this is what was last known.";
    }
    setTimeout(poll, 1000);
  }
  setTimeout(poll, 1000);
})();
