// Charts, drawn by uPlot. A chart is described by a plain object and rebuilt when the theme or its data
// change; hover, arrow keys, end labels and interval bands are the same for all of them.

const UNIQUE = (values) => [...new Set(values)].sort((a, b) => a - b);

// Series over different x become columns over their union, with null where a series has no value.
function align(series) {
  const x = UNIQUE(series.flatMap((one) => one.x));
  const at = new Map(x.map((value, row) => [value, row]));
  const column = (xs, ys) => {
    const filled = new Array(x.length).fill(null);
    xs.forEach((value, i) => {
      filled[at.get(value)] = isNumber(ys?.[i]) ? ys[i] : null;
    });
    return filled;
  };
  return {
    x,
    columns: series.map((one) => ({
      ...one,
      y: column(one.x, one.y),
      low: one.low && column(one.x, one.low),
      high: one.high && column(one.x, one.high),
    })),
  };
}

function powersOfTwo(u, _axis, low, high) {
  const first = Math.ceil(Math.log2(low) - 1e-9),
    last = Math.floor(Math.log2(high) + 1e-9);
  const room = Math.max(2, Math.floor((u.width - 80) / 32));
  const stride = Math.ceil((last - first + 1) / room);
  return Array.from({ length: Math.floor((last - first) / stride) + 1 }, (_, i) => 2 ** (first + i * stride));
}

// 1, 2, 5, 10, …: there is no half of a step.
const WHOLE = Array.from({ length: 24 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

function axes(spec) {
  const base = {
    stroke: () => colour("--soft"),
    font: `12px ${colour("--sans")}`,
    labelFont: `12px ${colour("--sans")}`,
    labelSize: 22,
    labelGap: 0,
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    border: { show: false },
  };
  const x = {
    ...base,
    label: spec.xLabel,
    size: 28,
    grid: { show: false },
    border: { show: true, stroke: () => colour("--soft"), width: 1 },
    ticks: { show: true, size: 4, width: 1, stroke: () => colour("--soft") },
    values: (_, splits) => splits.map((v) => (v === null ? "" : count(v))),
  };
  if (spec.xLabel === "step") x.incrs = WHOLE;
  if (spec.log) Object.assign(x, { splits: powersOfTwo, filter: (_, splits) => splits });
  return [
    x,
    {
      ...base,
      label: spec.yLabel,
      size: 42,
      space: 34,
      values: (_, splits) => splits.map((v) => String(Number(v.toPrecision(6))).replace("-", "−")),
    },
  ];
}

function yRange(spec) {
  return (_, low, high) => {
    if (low === null || !isNumber(low)) return [0, 1];
    if (spec.zero) {
      low = Math.min(low, 0);
      high = Math.max(high, 0);
    }
    const pad = (high - low || Math.abs(high) || 1) * 0.07;
    const floor = low >= 0 && low - pad < 0 ? 0 : low - pad;
    const ceiling =
      spec.ceiling !== undefined && high <= spec.ceiling ? Math.min(spec.ceiling, high + pad) : high + pad;
    return [floor, Math.max(ceiling, floor + 1e-6)];
  };
}

function xRange(spec) {
  return (_, low, high) => {
    if (!isNumber(low)) return [1, 2];
    if (low < high) return [low, high];
    return spec.log ? [low / 1.5, high * 1.5] : [low - 0.5, high + 0.5];
  };
}

// The letter of each run at the end of its line: colour is never the only way to tell lines apart.
// The first figure says name and last value there, where the screen is wide enough.
const endText = (one, value, spec, width) => {
  if (!spec.names) return one.mark ?? letter(one.run);
  const name = width < 600 ? letter(one.run) : shorten(DATA.runs[one.run].name);
  return `${name} ${(spec.write ?? fixed)(value)}`;
};
const shorten = (name) => (name.length > 16 ? `${visible(name).slice(0, 15)}…` : visible(name));
function endRoom(spec, width) {
  if (!spec.names) return 22;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `700 13px ${colour("--sans")}`;
  const room = (one) => pen.measureText(endText(one, one.y.at(-1), spec, width)).width;
  return 14 + Math.ceil(Math.max(...spec.series.map(room)));
}

function endLabels(u, columns, spec) {
  const ends = [];
  columns.forEach((one, i) => {
    if (!u.series[one.index].show || one.before || one.noLabel) return;
    let row = one.y.length - 1;
    while (row >= 0 && one.y[row] === null) row -= 1;
    if (row < 0) return;
    ends.push({
      text: endText(one, one.y[row], spec, u.width),
      fill: runColour(one.run),
      i,
      x: u.valToPos(u.data[0][row], "x", true),
      y: u.valToPos(one.y[row], "y", true),
    });
  });
  ends.sort((a, b) => a.y - b.y);
  const gap = (spec.names ? 16 : 12) * devicePixelRatio;
  for (let i = 1; i < ends.length; i += 1) {
    if (Math.abs(ends[i].x - ends[i - 1].x) < 30 * devicePixelRatio)
      ends[i].y = Math.max(ends[i].y, ends[i - 1].y + gap);
  }
  const { ctx } = u;
  ctx.save();
  ctx.font = `700 ${(spec.names ? 13 : 11.5) * devicePixelRatio}px ${colour("--sans")}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  for (const end of ends) {
    ctx.fillStyle = end.fill;
    ctx.fillText(end.text, end.x + 6 * devicePixelRatio, end.y);
  }
  ctx.restore();
}

function guides(u, spec) {
  const { ctx, bbox } = u,
    ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  if (spec.base !== undefined) {
    const y = u.valToPos(spec.base, "y", true);
    ctx.strokeStyle = colour("--soft");
    ctx.lineWidth = ratio;
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  for (const mark of spec.vertical ?? []) {
    const x = u.valToPos(mark.x, "x", true);
    if (isNumber(mark.low)) {
      const from = u.valToPos(mark.low, "x", true),
        to = u.valToPos(mark.high, "x", true);
      ctx.fillStyle = colour("--soft");
      ctx.globalAlpha = 0.12;
      ctx.fillRect(from, bbox.top, Math.max(to - from, ratio), bbox.height);
      ctx.globalAlpha = 1;
    }
    ctx.strokeStyle = ctx.fillStyle = colour("--soft");
    ctx.lineWidth = 1.25 * ratio;
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const right = x > bbox.left + bbox.width * 0.6;
    ctx.font = `600 ${11.5 * ratio}px ${colour("--sans")}`;
    ctx.textAlign = right ? "right" : "left";
    ctx.textBaseline = "top";
    ctx.fillText(mark.label, x + (right ? -6 : 6) * ratio, bbox.top + 3 * ratio);
  }
  ctx.restore();
}

// One place for what hover and the arrow keys show: a box near the point, the same words spoken.
function tooltip(host) {
  const box = el("div", { class: "tip", hidden: true });
  host.append(box);
  return {
    hide() {
      box.hidden = true;
    },
    show(u, left, title, rows, speak, top = 0) {
      box.replaceChildren(
        el("strong", {}, title),
        ...rows.map(({ run, text }) =>
          el("div", { class: "row" }, isNumber(run) ? tag(run) : el("span"), el("span", {}, text)),
        ),
      );
      box.hidden = false;
      const at = u.over.offsetLeft + left,
        width = box.offsetWidth;
      box.style.left = `${Math.max(0, Math.min(at + 14 + width > host.clientWidth ? at - width - 14 : at + 14, host.clientWidth - width))}px`;
      // Beside the point, and inside the chart.
      const lowest = host.clientHeight - box.offsetHeight;
      box.style.top = `${Math.max(0, Math.min(u.over.offsetTop + top + 8, lowest))}px`;
      if (speak)
        announce(
          `${title}: ${rows.map(({ run, text }) => (isNumber(run) ? `${DATA.runs[run].name} ` : "") + text).join("; ")}`,
        );
    },
  };
}

function keyboard(host, steps, move, leave) {
  let at = -1;
  host.addEventListener("keydown", (event) => {
    const last = steps() - 1;
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") {
      leave();
      return;
    }
    if (next === undefined || last < 0) return;
    event.preventDefault();
    at = Math.max(0, Math.min(last, next));
    move(at);
  });
  host.addEventListener("blur", leave);
}

// Keeps a chart in its host: makes it, and makes it anew when the theme, the width or the data change.
function mount(host, build, height) {
  let plot = null,
    width = 0;
  const draw = () => {
    plot?.destroy();
    width = host.clientWidth;
    if (width > 0) plot = build(width, printing ? Math.min(height, 230) : height);
  };
  new ResizeObserver(() => {
    if (!printing && Math.abs(host.clientWidth - width) > 1) draw();
  }).observe(host);
  onChange((what) => {
    if (what === "theme") draw();
  });
  return { draw, plot: () => plot };
}

function lineChart(spec) {
  const host = el("div", {
    class: "chart",
    tabindex: "0",
    role: "group",
    "aria-roledescription": "chart",
    "aria-label": `${spec.title}. Arrow keys read the values; the numbers follow as a table.`,
  });
  const tip = tooltip(host);
  const write = spec.write ?? fixed;
  let columns = [],
    x = [];

  const reading = (u, row, speak) => {
    const rows = columns
      .filter((one) => u.series[one.index].show && isNumber(one.y[row]))
      .map((one) => ({
        run: one.run,
        text: `${one.prefix ?? ""}${write(one.y[row])} ${one.low ? range(one.low[row], one.high[row], write) : ""}`,
      }));
    if (rows.length)
      tip.show(u, u.valToPos(x[row], "x"), `${spec.xName ?? spec.xLabel} = ${count(x[row])}`, rows, speak);
    else tip.hide();
  };

  function build(width, height) {
    ({ x, columns } = align(spec.series));
    const data = [x],
      series = [{}],
      bands = [];
    for (const one of columns) {
      const stroke = one.before ? colour("--run0") : runColour(one.run),
        show = shown[one.run];
      if (one.low) {
        const edge = {
          stroke: `${stroke}80`,
          width: 1,
          points: { show: false },
          spanGaps: true,
          show,
        };
        bands.push({ series: [series.length, series.length + 1], fill: `${stroke}${columns.length > 2 ? "1a" : "26"}` });
        series.push({ ...edge }, { ...edge });
        data.push(one.high, one.low);
      }
      one.index = series.length;
      series.push({
        stroke,
        width: spec.names ? 2.5 : 2,
        dash: one.dash,
        spanGaps: true,
        show,
        points: { show: x.length < 3 || one.points === true, size: 5, fill: stroke, stroke },
      });
      data.push(one.y);
    }
    return new uPlot(
      {
        width,
        height,
        series,
        bands,
        axes: axes(spec),
        legend: { show: false },
        padding: [8, endRoom(spec, width), 0, 0],
        scales: {
          x: { time: false, distr: spec.log ? 3 : 1, log: 2, range: xRange(spec) },
          y: { range: yRange(spec) },
        },
        cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { size: 8 } },
        hooks: {
          drawClear: [(u) => guides(u, spec)],
          draw: [(u) => endLabels(u, columns, spec)],
          setCursor: [
            (u) =>
              u.cursor.idx === null || u.cursor.left < 0 ? tip.hide() : reading(u, u.cursor.idx, false),
          ],
        },
      },
      data,
      host,
    );
  }

  const chart = mount(host, build, spec.height ?? 300);
  keyboard(
    host,
    () => x.length,
    (row) => {
      const u = chart.plot();
      u.setCursor({ left: u.valToPos(x[row], "x"), top: 10 });
      reading(u, row, true);
    },
    () => tip.hide(),
  );
  onChange((what) => {
    const u = chart.plot();
    if (what !== "runs" || !u) return;
    u.batch(() =>
      columns.forEach((one) => {
        for (let i = one.low ? one.index - 2 : one.index; i <= one.index; i += 1)
          u.setSeries(i, { show: shown[one.run] });
      }),
    );
  });
  return {
    host,
    draw: chart.draw,
    set: (changes) => {
      Object.assign(spec, changes);
      chart.draw();
    },
  };
}
