// Sections after the comparison: diversity, training, settings, methods.

function diversity() {
  if (!DATA.diversity) return null;
  const { rows, runs, m, notes, confidence } = DATA.diversity;
  const cell = (value) =>
    isNumber(value.value)
      ? [fixed(value.value, value.value >= 100 ? 1 : 2), interval(value.low, value.high, (v) => fixed(v, 2))]
      : "–";
  return section(
    "diversity",
    "Diversity",
    "Best-of-k needs samples that differ. A run whose samples agree has little to gain from drawing more, whatever its mean.",
    dataTable(
      ["", ...runs.map((run) => runName(run))],
      rows.map((row) => [
        [el("span", {}, row.label), el("span", { class: "about" }, row.about)],
        ...row.values.map(cell),
      ]),
      {
        caption: `Means over problems with ${percent(confidence)} intervals; counts are for a draw of m = ${perRun(
          runs.map((run, i) => ({ run, m: m[i] })),
          (r) => count(r.m),
        )} samples`,
      },
    ),
    notices(notes),
  );
}

function trainingFigure(metric) {
  const points = metric.kind === "evaluation";
  const series = metric.curves.map((c) => ({
    run: c.run,
    x: c.step,
    y: c.value,
    low: c.low,
    high: c.high,
    points,
  }));
  const chart = lineChart({
    title: `${metric.label} against step`,
    xLabel: "step",
    yLabel: "",
    height: 200,
    write: general,
    zero: metric.zero,
    series,
  });
  queueMicrotask(chart.draw);
  const steps = UNIQUE(metric.curves.flatMap((c) => c.step));
  const row = (step) => [count(step), ...metric.curves.map((c) => general(c.value[c.step.indexOf(step)]))];
  const head = ["step", ...metric.curves.map((c) => letter(c.run))];
  const table = () =>
    dataTable(head, steps.map(row), { scroll: "scroll tall", caption: `${metric.label} by step` });
  const facts = `${metric.facts} · ${perRun(metric.curves, (c) => plural(c.step.length, points ? "evaluation" : "step"))}`;
  return figure(metric.label, {
    runs: metric.curves.map((c) => c.run),
    chart: chart.host,
    caption: metric.about,
    facts,
    table,
  });
}

function evaluationFigure(curves) {
  const split = UNIQUE(curves.map((c) => c.split)).join(" and ");
  const metric = UNIQUE(curves.map((c) => c.metric)).join(" and ");
  const isBoth = curves.some((c) => c.when === "first");
  const name = `${split[0].toUpperCase()}${split.slice(1)} ${metric}${isBoth ? " before and after training" : ""}`;
  const series = curves.map((c) => ({
    run: c.run,
    x: c.k,
    y: c.mean,
    low: c.when === "last" ? c.low : null,
    high: c.when === "last" ? c.high : null,
    dash: c.when === "first" ? [4, 4] : null,
    before: c.when === "first",
    prefix: `step ${count(c.step)}: `,
  }));
  const chart = lineChart({
    title: name,
    xLabel: "k (log scale)",
    xName: "k",
    yLabel: metric,
    log: true,
    ceiling: metric === "pass@k" ? 1 : null,
    series,
  });
  queueMicrotask(chart.draw);
  const table = () => curveTable(curves, (c) => `${letter(c.run)} step ${c.step}`, name);
  const facts = [
    `n = ${perRun(curves, (c) => count(c.n))}`,
    `k = 1…${perRun(curves, (c) => count(c.k.at(-1)))}`,
    `${perRun(curves, (c) => count(c.problems))} problems`,
    seedsOf(UNIQUE(curves.map((c) => c.run))),
  ].join(" · ");
  return figure(name, {
    wide: true,
    runs: UNIQUE(curves.map((c) => c.run)),
    chart: chart.host,
    facts,
    table,
    caption: `${isBoth ? "Dotted: the first evaluation. Solid: the last one, with" : "With"} 95% intervals over problems.`,
  });
}

function training() {
  if (!DATA.training.length && !DATA.evaluations.length) return null;
  return section(
    "training",
    "Training",
    "A group without signal has advantages of zero only: nothing is learned from it. Falling entropy means that the samples become alike.",
    DATA.evaluations.length > 0 && el("div", { class: "figures" }, evaluationFigure(DATA.evaluations)),
    el("div", { class: "figures small" }, DATA.training.map(trainingFigure)),
  );
}

function settingsTable(rows, runs, caption) {
  const value = (v) =>
    v === null ? el("span", { class: "soft" }, "not set") : el("code", { class: "text" }, v);
  return dataTable(
    ["setting", ...runs.map(runName)],
    rows.map((row) => [el("code", {}, row.key), ...row.values.map(value)]),
    { left: runs.map((_, i) => i + 1), caption },
  );
}

function settings() {
  const { rows, runs } = DATA.config;
  if (!rows.length) return null;
  const differing = rows.filter((row) => !row.same);
  const every = el(
    "details",
    {},
    el("summary", {}, `Show all ${rows.length} settings`),
    settingsTable(rows, runs, "Every recorded setting, those that differ first"),
  );
  const lead =
    runs.length > 1 ? "The settings in which the runs differ." : "The settings of the run.";
  return section(
    "settings",
    "Settings",
    lead,
    differing.length > 0 &&
      settingsTable(differing, runs, `${plural(differing.length, "setting")} of ${rows.length} differ`),
    runs.length > 1 && !differing.length && el("p", {}, "All recorded settings agree."),
    every,
  );
}

function methods() {
  const rows = DATA.runs.map((run, i) => [
    runName(i),
    el("bdi", {}, run.source),
    run.format,
    run.task ?? "–",
    run.model ?? "–",
    run.sampling ?? "–",
    run.n,
    count(run.problems),
    run.seeds,
  ]);
  return section(
    "methods",
    "Methods and sources",
    null,
    el(
      "ul",
      { class: "small methods" },
      DATA.methods.map((line) => el("li", {}, line)),
    ),
    dataTable(["run", "source", "format", "task", "model", "sampling", "n", "problems", "seeds"], rows, {
      left: [1, 2, 3, 4, 5, 8],
      caption: "Where the samples came from",
    }),
  );
}
