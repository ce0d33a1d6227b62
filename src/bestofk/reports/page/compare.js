// Sections that compare runs: the paired difference, problem by problem, solved by which.

// --- the paired difference
function crossingText(d) {
  if (!d.crossing) return "The curves do not cross";
  const { k, low, high, better } = d.crossing;
  const from = low < 1 ? "below 1" : Number(low.toPrecision(3)),
    to = high === null ? "beyond the last k" : Number(high.toPrecision(3));
  return `Crossing at k ≈ ${Number(k.toPrecision(3))}, ${percent(d.confidence)} interval from ${from} to ${to}; ${better} is ahead after it`;
}

function differenceSpec(d) {
  const mark = d.crossing && [
    {
      x: d.crossing.k,
      label: `crossing k ≈ ${Number(d.crossing.k.toPrecision(3))}`,
      low: Math.max(d.crossing.low, d.k[0]),
      high: Math.min(d.crossing.high ?? Infinity, d.k.at(-1)),
    },
  ];
  const name = `${letter(d.b)} − ${letter(d.a)}`;
  return {
    title: `${name}, ${d.measure} against k`,
    xLabel: "k (log scale)",
    xName: "k",
    yLabel: `${name}, ${d.measure}`,
    log: true,
    zero: true,
    write: signed,
    base: 0,
    vertical: mark || [],
    series: [{ run: d.b, x: d.k, y: d.difference, low: d.low, high: d.high, mark: name, noLabel: true }],
  };
}

function tallySpec(d) {
  return {
    title: "problems ahead",
    xLabel: "k (log scale)",
    xName: "k",
    yLabel: "problems",
    log: true,
    zero: true,
    write: count,
    series: [
      { run: d.b, x: d.k, y: d.wins, prefix: `${letter(d.b)} ahead: ` },
      { run: d.a, x: d.k, y: d.losses, prefix: `${letter(d.a)} ahead: ` },
    ],
  };
}

const differenceTable = (d) =>
  dataTable(
    [
      "k",
      `${letter(d.b)} − ${letter(d.a)}`,
      "band low",
      "band high",
      "p (corrected)",
      "wins",
      "losses",
      "ties",
    ],
    d.k.map((k, i) => [
      count(k),
      signed(d.difference[i]),
      signed(d.low[i]),
      signed(d.high[i]),
      pValue(d.p[i]),
      count(d.wins[i]),
      count(d.losses[i]),
      count(d.ties[i]),
    ]),
    {
      scroll: "scroll tall",
      caption: `Paired difference in ${d.measure}, run by run over the same problems`,
    },
  );

function differences() {
  if (!DATA.differences.length) return null;
  const title = (d) => `${letter(d.b)} against ${letter(d.a)}: ${d.measure}`;
  const host = el("div", { class: "pair" });
  const show = (i) => {
    const d = DATA.differences[i];
    figures = start;
    const main = lineChart(differenceSpec(d)),
      tally = lineChart(tallySpec(d));
    const facts = [
      `n = ${letter(d.a)} ${span(d.n_a)}, ${letter(d.b)} ${span(d.n_b)}`,
      `k = 1…${count(d.k.at(-1))}`,
      `${inClusters(d)} that both runs have`,
      seedsOf([d.a, d.b]),
      `band over all k and all pairs, ${percent(d.confidence)}, ${count(d.resamples)} sign flips, seed ${d.seed}`,
    ].join(" · ");
    host.replaceChildren(
      el(
        "div",
        {},
        el("p", { class: "verdict" }, el("strong", {}, d.effects), " ", d.verdict),
        el(
          "div",
          { class: "figures" },
          figure(`${letter(d.b)} − ${letter(d.a)}, paired by problem`, {
            chart: main.host,
            caption: `Above zero ${DATA.runs[d.b].name} is ahead of ${DATA.runs[d.a].name}; where the band leaves zero, the difference is significant. ${crossingText(d)}.`,
            facts,
            table: () => differenceTable(d),
          }),
          figure("Problems on which a run is ahead", {
            runs: [d.a, d.b],
            chart: tally.host,
            caption: `Of ${plural(d.problems, "problem")}, those where each run's ${d.measure} is larger; the rest are ties.`,
            facts,
          }),
        ),
        notices(d.notes),
      ),
    );
    main.draw();
    tally.draw();
  };
  const start = figures;
  figures += 2;
  queueMicrotask(() => {
    show(0);
  });
  const options = DATA.differences.map((d, i) => ({ value: i, label: title(d) }));
  return section(
    "difference",
    "Difference",
    "One run minus the other on the same problems. What the problems add to both cancels, so smaller differences become visible.",
    options.length > 1 && el("div", { class: "controls" }, chooser("Compare", options, 0, show)),
    host,
  );
}

// --- problem by problem
function scatter(openProblems) {
  const { ids, measures } = DATA.per_problem;
  if (DATA.runs.length < 2 || !measures.length) return null;
  const { a, b } = DATA.differences[0] ?? { a: 0, b: 1 };
  let state = { measure: measures[0].key, k: measures[0].k[Math.min(1, measures[0].k.length - 1)], a, b };
  const measure = () => measures.find((m) => m.key === state.measure);
  const values = (run) => measure().values[measure().k.indexOf(state.k)][run];
  const label = () => state.measure.replace("k", state.k);
  const chart = scatterChart({
    title: "Per-problem comparison of two runs",
    ids,
    a: 0,
    b: 1,
    values,
    measure: "",
    limits: [0, 1],
    onpick: openProblems,
  });
  const table = () =>
    dataTable(
      ["problem", `${letter(state.a)} ${label()}`, `${letter(state.b)} ${label()}`],
      ids.map((id, i) => [el("bdi", {}, id), fixed(values(state.a)[i]), fixed(values(state.b)[i])]),
      { scroll: "scroll tall", caption: `${label()} of every problem` },
    );
  const controls = el("div", { class: "controls" }),
    box = el("div", { class: "figures" });
  const draw = () => {
    if (!measure().k.includes(state.k)) state.k = measure().k.at(-1);
    const runs = DATA.runs.map((run, value) => ({
      value,
      label: `${letter(value)} ${visible(run.name)}`,
    }));
    const change = (key) => (value) => {
      state = { ...state, [key]: value };
      draw();
    };
    controls.replaceChildren(
      chooser(
        "Measure",
        measures.map((m) => ({ value: m.key, label: m.key })),
        state.measure,
        change("measure"),
      ),
      chooser(
        "k",
        measure().k.map((k) => ({ value: k, label: String(k) })),
        state.k,
        change("k"),
      ),
      ...(runs.length > 2
        ? [chooser("Across", runs, state.a, change("a")), chooser("Up", runs, state.b, change("b"))]
        : []),
    );
    chart.set({ a: state.a, b: state.b, measure: label(), limits: measure().limits });
    const problems = chart.points().reduce((sum, place) => sum + place.problems.length, 0);
    box.querySelector(".facts").textContent =
      `k = ${state.k} · ${count(problems)} problems with that many scored samples in both runs · n = ${[state.a, state.b].map((run) => `${letter(run)} ${DATA.runs[run].n}`).join(", ")} · ${seedsOf([state.a, state.b])}`;
    const behind = box.querySelector(".behind");
    if (behind.children.length > 1) behind.lastChild.replaceWith(table());
  };
  box.append(
    figure("One point per problem", {
      chart: chart.host,
      caption:
        "Hollow: a tie. Problems at the same place make one larger point; choose a point to read its samples below.",
      facts: "",
      table,
    }),
    solvedFigure(openProblems),
  );
  queueMicrotask(draw);
  return section(
    "problems",
    "Problem by problem",
    "Off the diagonal the runs differ; a problem on an axis is one that only the other run solves.",
    controls,
    box,
  );
}

function solvedFigure(openProblems) {
  const { sets, rule, total } = DATA.solved;
  const name = (runs) =>
    runs.length === 0
      ? "no run"
      : runs.length === DATA.runs.length
        ? `all ${runs.length} runs`
        : runs.map((run) => DATA.runs[run].name).join(" and ") + " only";
  const largest = Math.max(...sets.map((set) => set.problems.length));
  const bars = el(
    "div",
    { class: "bars" },
    sets.map((set) => {
      const bar = el("span", {
        class: "bar",
        swatch: set.runs.length === 1 ? set.runs[0] : null,
        "aria-hidden": "true",
      });
      bar.style.width = `${(100 * set.problems.length) / largest}%`;
      return [
        el("span", { class: "name" }, set.runs.map(tag), el("bdi", {}, name(set.runs))),
        bar,
        el(
          "button",
          {
            type: "button",
            "aria-label": `Show the ${plural(set.problems.length, "problem")} solved by ${name(set.runs)}`,
            onclick: () => openProblems(set.problems),
          },
          count(set.problems.length),
        ),
      ];
    }),
  );
  const table = () =>
    dataTable(
      ["solved by", "problems"],
      sets.map((set) => [name(set.runs), set.problems.map((p) => DATA.per_problem.ids[p]).join(", ")]),
      { left: [1], scroll: "scroll tall", caption: "Problems by the runs that solve them" },
    );
  return figure("Solved by which run", {
    chart: bars,
    caption: rule,
    facts: `${plural(total, "problem")} that every run has · n = ${DATA.runs.map((run, i) => `${letter(i)} ${run.n}`).join(", ")} · ${seedsOf(DATA.runs.map((_, i) => i))}`,
    table,
  });
}
