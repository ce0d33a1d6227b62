// The sections of the page, one function each; a section without data is left out.

let figures = 0;
const span = ([low, high]) => (low === high ? count(low) : `${count(low)}–${count(high)}`);
const percent = (level) => `${Number((100 * level).toPrecision(4))}%`;

function section(id, title, lead, ...content) {
  return {
    id,
    title,
    node: el(
      "section",
      { id, "aria-labelledby": `${id}-title` },
      el("h2", { id: `${id}-title` }, title),
      lead && el("p", { class: "soft" }, lead),
      content,
    ),
  };
}

function figure(title, { runs = null, chart, caption, facts, table, wide = false }) {
  figures += 1;
  const node = el(
    "figure",
    { class: wide ? "wide" : null },
    el("div", { class: "head" }, el("h3", {}, `Figure ${figures}. ${title}`)),
    runs && legend(runs),
    chart,
    el("figcaption", {}, caption, el("span", { class: "facts" }, facts)),
    table && tableBehind(table),
  );
  return node;
}

const notices = (notes) =>
  notes.length > 0 &&
  el(
    "div",
    { class: "notice", role: "note" },
    notes.length === 1
      ? notes[0]
      : el(
          "ul",
          {},
          notes.map((note) => el("li", {}, note)),
        ),
  );

function seedsOf(runs) {
  const said = UNIQUE_TEXT(runs.map((run) => DATA.runs[run].seeds));
  return said.length === 1
    ? `sampling seeds ${said[0]}`
    : `sampling seeds ${runs.map((run) => `${letter(run)} ${DATA.runs[run].seeds}`).join(", ")}`;
}
const UNIQUE_TEXT = (values) => [...new Set(values)];

function perRun(curves, value) {
  const said = curves.map(value);
  return UNIQUE_TEXT(said).length === 1
    ? said[0]
    : curves.map((curve, i) => `${letter(curve.run)} ${said[i]}`).join(", ");
}

function curveFacts(curves, band) {
  const first = curves[0];
  return [
    `n = ${perRun(curves, (c) => span(c.n))} samples per problem`,
    `k = ${perRun(curves, (c) => (c.k.length > 1 ? `1…${count(c.k.at(-1))}` : "1"))}`,
    perRun(curves, inClusters),
    seedsOf(curves.map((c) => c.run)),
    `${band} (${percent(first.confidence)}, ${count(first.resamples)} resamples, seed ${first.seed})`,
  ].join(" · ");
}

// --- summary: the verdicts, then a table of runs by k
function summary() {
  if (!DATA.measures.length) {
    return section(
      "summary",
      "Summary",
      null,
      notices(DATA.notes),
      el("p", {}, "No evaluated samples were given: this page shows how the runs were trained."),
    );
  }
  const measure = DATA.measures[0];
  const columns = DATA.summary_k;
  const meanOf = (run) => {
    const found = DATA.means.find((one) => one.run === run);
    return found ? [fixed(found.mean), interval(found.low, found.high)] : "–";
  };
  const mean = DATA.means.length > 0;
  const cellsOf = (curve) => [
    runName(curve.run),
    ...columns.map((k) => {
      const i = curve.k.indexOf(k);
      return i < 0 ? "–" : [fixed(curve.mean[i]), interval(curve.low[i], curve.high[i])];
    }),
    ...(mean ? [meanOf(curve.run)] : []),
    span(curve.n),
    count(curve.problems),
    count(DATA.runs[curve.run].samples),
    count(DATA.runs[curve.run].unscored),
  ];
  const kind = measure.key.replace("k", "");
  const caption = `${measure.key} with ${percent(measure.curves[0].confidence)} intervals over problems. ${measure.about}`;
  const head = [
    ...columns.map((k) => kind + k),
    ...(mean ? ["mean reward"] : []),
    "n",
    "problems",
    "samples",
    "unscored",
  ];
  const recorded = (fact) =>
    perRun(
      DATA.runs.map((_, run) => ({ run })),
      ({ run }) => DATA.runs[run][fact] ?? "not recorded",
    );
  // A narrow screen shows the same table on its side, so that nothing has to be scrolled to.
  const columnsOfRuns = measure.curves.map(cellsOf);
  const turned = head.map((name, i) => [name, ...columnsOfRuns.map((cells) => cells[i + 1])]);
  return section(
    "summary",
    "Summary",
    null,
    notices(DATA.notes),
    el(
      "div",
      { class: "narrow" },
      el("p", { class: "small" }, measure.curves.map((curve) => [runName(curve.run), " "])),
      dataTable(["", ...measure.curves.map((curve) => tag(curve.run))], turned, { caption }),
    ),
    dataTable(
      ["run", ...head],
      measure.curves.map(cellsOf),
      { caption, className: "table broad" },
    ),
    el(
      "p",
      { class: "small soft" },
      seedsOf(DATA.runs.map((_, run) => run)),
      ". Models: ",
      recorded("model"),
      ". Tasks: ",
      recorded("task"),
      ".",
    ),
  );
}


// --- coverage curves
const BANDS = [
  { value: "interval", label: "each k, over problems", said: "intervals at each k, over problems" },
  {
    value: "band",
    label: "whole curve, over problems",
    said: "simultaneous band over the curve, over problems",
  },
  {
    value: "fixed",
    label: "these problems only",
    said: "intervals for this fixed set of problems",
  },
];

// Curves by k, each with the ends of its interval.
function curveTable(curves, title, caption, band = "interval") {
  const cells = (c, k) => {
    const i = c.k.indexOf(k);
    return [c.mean, ...edges(c, band)].map((values) => fixed(i < 0 ? null : values[i]));
  };
  return dataTable(
    ["k", ...curves.flatMap((c) => [title(c), "low", "high"])],
    UNIQUE(curves.flatMap((c) => c.k)).map((k) => [count(k), ...curves.flatMap((c) => cells(c, k))]),
    { scroll: "scroll tall", caption },
  );
}
const edges = (c, band) => (band === "interval" ? [c.low, c.high] : [c[band].low, c[band].high]);

// The best of k trajectories of at most T turns: a line for each T of each run.
function turnsFigure(curves) {
  const name = curves[0].measure.replace("k", "(k, T)");
  const title = (c) => (DATA.runs.length > 1 ? `${letter(c.run)} T = ${c.turns}` : `T = ${c.turns}`);
  const longest = (c) => Math.max(...curves.filter((other) => other.run === c.run).map((other) => other.turns));
  const chart = lineChart({
    title: `${name} against k`,
    xLabel: "k (trajectories drawn, log scale)",
    xName: "k",
    yLabel: name,
    log: true,
    ceiling: DATA.measures.find((one) => one.key === curves[0].measure).ceiling,
    series: curves.map((c) => ({
      run: c.run,
      x: c.k,
      y: c.mean,
      low: c.low,
      high: c.high,
      dash: c.turns < longest(c) ? [4, 4] : null,
      mark: `${DATA.runs.length > 1 ? letter(c.run) : "T"}${c.turns}`,
      prefix: `T = ${c.turns}: `,
    })),
  });
  queueMicrotask(chart.draw);
  return figure(name, {
    runs: UNIQUE(curves.map((c) => c.run)),
    chart: chart.host,
    caption:
      "The best of k trajectories of at most T turns. A longer one counts as failed, because its reward after T turns is not known.",
    facts: curveFacts(curves, BANDS[0].said),
    table: () => curveTable(curves, title, name),
  });
}

function coverage() {
  if (!DATA.measures.length) return null;
  const host = el("div", { class: "figures" });
  const drawings = [];
  let band = "interval";
  for (const measure of DATA.measures) {
    const series = () =>
      measure.curves.map((c) => {
        const [low, high] = edges(c, band);
        return { run: c.run, x: c.k, y: c.mean, low, high };
      });
    const runs = measure.curves.map((c) => c.run);
    const said = () => BANDS.find((b) => b.value === band).said;
    const title = (c) => `${letter(c.run)} ${measure.key}`;
    const table = () => curveTable(measure.curves, title, `${measure.key}, ${said()}`, band);
    const lead = measure === DATA.measures[0];
    const chart = lineChart({
      title: `${measure.key} against k`,
      height: lead ? 420 : 300,
      names: lead,
      xLabel: "k (samples drawn, log scale)",
      xName: "k",
      yLabel: measure.key,
      log: true,
      ceiling: measure.ceiling,
      series: series(),
    });
    const box = figure(measure.key, {
      wide: lead,
      runs,
      chart: chart.host,
      caption: measure.about,
      facts: "",
      table,
    });
    const facts = box.querySelector(".facts");
    drawings.push(() => {
      chart.set({ series: series() });
      facts.textContent = curveFacts(measure.curves, said());
      const behind = box.querySelector(".behind");
      if (behind.children.length > 1) behind.lastChild.replaceWith(table());
    });
    host.append(box);
  }
  if (DATA.by_turns.length) host.append(turnsFigure(DATA.by_turns));
  const redraw = () => drawings.forEach((draw) => draw());
  queueMicrotask(redraw);
  const notes = UNIQUE_TEXT(
    DATA.measures.flatMap((m) => m.curves.flatMap((c) => c.notes.map((note) => `${letter(c.run)}: ${note}`))),
  );
  return section(
    "coverage",
    "Best of k",
    null,
    host,
    el(
      "div",
      { class: "controls" },
      chooser("Shaded", BANDS, band, (value) => {
        band = value;
        redraw();
      }),
    ),
    el(
      "p",
      { class: "soft" },
      "The reward of drawing k samples and keeping the best. Intervals over problems cover new problems of the same kind; those for these problems only cover drawing their samples again.",
    ),
    notices(notes),
  );
}
